// The boxes of the findings on an image, and their captions, which move apart where they would overlap.

const GHOST = 0.35; // opacity of the selected finding on other slices
const PAD = 4; // between a finding and its frame, so that the edge of a lesion is not covered
const LINE = 17; // height of a caption
const LETTER = 7.6; // width of a letter of it

class Marks {
  constructor(pane) {
    this.pane = pane;
    this.svg = drawn("svg", { class: "marks", "aria-hidden": "true" });
  }

  // What a finding needs to be drawn.
  static prepare(finding) {
    finding.frame = drawn("rect");
    finding.caption = drawn("text", {}, `${finding.name} · ${twoDigits(finding.score)}`);
    finding.leader = drawn("line", { class: "leader" });
    finding.mark = drawn("g", { class: "mark" }, finding.frame, finding.leader, finding.caption);
    finding.mark.finding = finding;
  }

  show(view) {
    this.svg.replaceChildren(...view.findings.map((finding) => finding.mark));
  }

  draw() {
    const { pane } = this;
    const { scale, origin } = pane.geometry();
    const slices = slabSlices(pane.view, pane.view.shown);
    const seen = pane.view.findings.filter((finding) => this.light(finding, slices));
    const frames = seen.map((finding) => {
      const [x1, y1, x2, y2] = finding.box.map((edge, i) => edge * scale + origin[i % 2]);
      const frame = { x: x1 - PAD, y: y1 - PAD, width: x2 - x1 + 2 * PAD, height: y2 - y1 + 2 * PAD };
      for (const [key, value] of Object.entries(frame)) finding.frame.setAttribute(key, value);
      return frame;
    });
    const taken = pane.labels.map((label) => this.inStage(label));
    const order = seen.map((_, n) => n).sort((a, b) => rank(seen[b]) - rank(seen[a]));
    for (const n of order) taken.push(this.place(seen[n], frames[n], taken, frames));
  }

  // How a finding is seen on these slices; whether it is seen at all.
  light(finding, slices) {
    const selected = finding === state.selected;
    const there = Math.max(...slices.map((z) => presence(finding, z)));
    const opacity = isShown(finding) && state.marks ? Math.max(there, selected ? GHOST : 0) : 0;
    finding.mark.style.opacity = opacity;
    finding.mark.style.display = opacity ? "" : "none";
    const low = finding.score < exam.threshold;
    const words = ["mark", selected && "selected", !there && "elsewhere", low && "low"];
    finding.mark.setAttribute("class", words.filter(Boolean).join(" "));
    return opacity > 0;
  }

  inStage(label) {
    const stage = this.pane.stage.getBoundingClientRect();
    const { left, top, width, height } = label.getBoundingClientRect();
    return { x: left - stage.left, y: top - stage.top, width, height };
  }

  // Put a caption at the place beside its frame that covers least of other captions, labels and frames.
  place(finding, frame, taken, frames) {
    const width = LETTER * finding.caption.textContent.length;
    const { clientWidth, clientHeight } = this.pane.stage;
    const box = { width, height: LINE };
    const lefts = [frame.x, frame.x + frame.width - width];
    const rows = [frame.y - LINE - 2, frame.y + frame.height + 2];
    const spots = rows.flatMap((y) => lefts.map((x) => ({ x, y, ...box })));
    for (const x of [frame.x + frame.width + 5, frame.x - width - 5]) spots.push({ x, y: frame.y, ...box });
    for (let row = 2; row < 6; row++) {
      for (const y of [frame.y - row * (LINE + 2), frame.y + frame.height + row * (LINE + 2) - LINE]) {
        spots.push({ x: frame.x, y, ...box, far: true });
      }
    }
    let [best, least] = [null, Infinity];
    for (const [n, spot] of spots.entries()) {
      spot.x = clamp(spot.x, 3, Math.max(3, clientWidth - width - 3));
      spot.y = clamp(spot.y, 2, Math.max(2, clientHeight - LINE - 2));
      const covered = (others) => others.reduce((sum, other) => sum + overlap(spot, other), 0);
      const cost = 100 * covered(taken) + covered(frames) + n + (spot.far ? 50 : 0);
      if (cost < least) [best, least] = [spot, cost];
    }
    finding.caption.setAttribute("x", best.x);
    finding.caption.setAttribute("y", best.y + LINE - 4);
    const above = best.y < frame.y;
    finding.leader.style.display = best.far ? "" : "none";
    const ends = { x1: best.x + 6, y1: above ? best.y + LINE : best.y, x2: frame.x + 6, y2: frame.y };
    if (!above) ends.y2 += frame.height;
    for (const [key, value] of Object.entries(ends)) finding.leader.setAttribute(key, value);
    return best;
  }
}

// Whose caption is placed first: that of the selected finding, then by the score.
function rank(finding) {
  return finding.score + (finding === state.selected ? 2 : 0);
}

// The area that two rectangles share.
function overlap(a, b) {
  const width = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
  const height = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
  return Math.max(width, 0) * Math.max(height, 0);
}
