// Where in a volume a finding lies, and how sure that is, from w: how much each slice counts for it.

const FADED = 0.1; // of the largest w: here a mark is gone
const FULL = 0.5; // and from here on it is there; these slices are its likely depth

// The slice to look at: that of the finding, else the one with the largest w.
function sliceOf(finding) {
  if (finding.slice !== null) return finding.slice;
  return finding.weights ? finding.weights.indexOf(Math.max(...finding.weights)) : 0;
}

// How much a finding is there on a slice, from 0 to 1.
function presence(finding, z) {
  if (finding.weights) {
    const share = finding.weights[z] / finding.most;
    return clamp((share - FADED) / (FULL - FADED), 0, 1);
  }
  return finding.slice === null || finding.slice === z ? 1 : 0;
}

// First and last of the slices that count at least half as much as the one that counts most, around that one; and the
// finding's own, which may lie elsewhere.
function likelyRange(finding) {
  const own = sliceOf(finding);
  if (!finding.weights) return [own, own];
  let first = finding.weights.indexOf(Math.max(...finding.weights));
  let last = first;
  while (first > 0 && presence(finding, first - 1) === 1) first--;
  while (last < finding.weights.length - 1 && presence(finding, last + 1) === 1) last++;
  return [Math.min(first, own), Math.max(last, own)];
}

// "slice 12, likely 9 to 15", or that the depth is unsure; "" in a mammogram. People count from 1.
function depthText(finding) {
  const { slices } = finding.view;
  if (slices === 1) return "";
  const slice = `slice ${sliceOf(finding) + 1}`;
  if (!finding.weights) return slice;
  const [first, last] = likelyRange(finding);
  const range = first === last ? "" : `, likely ${first + 1} to ${last + 1}`;
  return `${slice}${range}${2 * (last - first + 1) > slices ? " (depth unsure)" : ""}`;
}

// The slices from left to right, those that are likely, and the finding's own: for the list.
function depthStrip(finding) {
  const { slices } = finding.view;
  const [first, last] = likelyRange(finding);
  const strip = element("span", { className: "strip", "aria-hidden": "true" }, element("i"), element("i"));
  const place = (part, from, to) => {
    part.style.left = `${(100 * from) / slices}%`;
    part.style.width = `${(100 * (to + 1 - from)) / slices}%`;
  };
  place(strip.firstChild, first, last);
  place(strip.lastChild, sliceOf(finding), sliceOf(finding));
  return strip;
}
