// The column beside the images: scores, threshold, the findings, and what is to be known of the report.

class List {
  constructor() {
    this.slider = document.getElementById("threshold");
    this.value = document.getElementById("threshold-value");
    this.items = document.getElementById("findings");
    this.told = document.getElementById("told");
    this.rows = new Map(); // finding -> its button
    this.lesions = lesions();
    this.tellScores();
    this.tellAbout();
    const back = document.getElementById("operating-point");
    back.textContent = `Back to the operating point, ${readable(exam.threshold)}`;
    back.addEventListener("click", () => setThreshold(exam.threshold));
    this.slider.addEventListener("input", () => setThreshold(Number(this.slider.value)));
  }

  // The findings that are shown, in the order of the list.
  shown() {
    return this.lesions.flat().filter(isShown);
  }

  draw() {
    this.slider.value = state.threshold;
    this.value.textContent = readable(state.threshold);
    this.slider.setAttribute("aria-valuetext", readable(state.threshold));
    document.getElementById("operating-point").hidden = state.threshold === exam.threshold;
    this.rows.clear();
    this.items.replaceChildren();
    let before = "";
    for (const lesion of this.lesions.map((findings) => findings.filter(isShown))) {
      if (!lesion.length) continue;
      const low = lesion.every((finding) => finding.score < exam.threshold);
      const whose = lesion[0].view.prior ? `Prior exam, ${exam.prior.when}` : "";
      const part = [whose, low ? "Below the operating point" : ""].filter(Boolean).join(": ");
      if (part !== before) this.items.append(element("li", { className: "divider" }, part));
      before = part;
      this.items.append(this.item(lesion, low));
    }
    this.told.textContent = this.sentence();
    this.select();
  }

  item(lesion, low) {
    const [best] = [...lesion].sort((a, b) => b.score - a.score);
    const head = element("div", { className: "lesion" });
    head.append(
      element("span", { className: "number" }, best.name),
      element("span", { className: "side" }, `${SIDES[best.view.laterality]} breast`),
      element("span", { className: "score" }, twoDigits(best.score)),
    );
    const item = element("li", { className: low ? "below" : "" }, head);
    for (const finding of lesion) item.append(this.row(finding));
    return item;
  }

  row(finding) {
    const { view } = finding;
    const button = element("button", { type: "button", className: "finding" });
    const depth = depthText(finding);
    button.append(
      element("span", { className: "where" }, view.position),
      element("span", { className: "what" }, view.label),
      element("span", { className: "size" }, size(finding)),
      element("span", { className: "score" }, twoDigits(finding.score)),
    );
    if (depth) button.append(element("span", { className: "deep" }, depth));
    if (finding.weights && view.slices > 1) button.append(depthStrip(finding));
    const score = `score ${twoDigits(finding.score)}`;
    const told = [`Finding ${finding.name}`, `${view.pane.name} ${view.label}`, depth, size(finding), score];
    button.setAttribute("aria-label", told.filter(Boolean).join(", "));
    button.addEventListener("click", () => jump(finding));
    this.rows.set(finding, button);
    return button;
  }

  select() {
    for (const [finding, button] of this.rows) button.setAttribute("aria-current", finding === state.selected);
  }

  // What is marked and what is not, and why.
  sentence() {
    const all = exam.views.filter((view) => !view.prior).flatMap((view) => view.findings);
    const hidden = all.filter((finding) => !isShown(finding)).length;
    const those = hidden === 1 ? "1 finding scores" : `${hidden} findings score`;
    const isOperating = state.threshold === exam.threshold;
    const limit = isOperating ? `the operating point of ${readable(exam.threshold)}` : readable(state.threshold);
    if (!all.length) return "Nothing is marked: the detector proposes no finding.";
    if (hidden === all.length) return `Nothing is marked: no finding reaches ${limit}; ${those} below it.`;
    return hidden ? `Not marked: ${those} below ${limit}.` : "All findings are marked.";
  }

  tellScores() {
    const scores = [["Exam", exam.score], ["Right", exam.breasts.R], ["Left", exam.breasts.L]];
    const shown = scores.filter(([, score]) => score !== null && score !== undefined);
    for (const [name, score] of shown) {
      const high = exam.suspicious.some((side) => name === "Exam" || name === SIDES[side]) ? "high" : "";
      const bar = element("span", { className: "bar", "aria-hidden": "true" }, element("i"));
      bar.firstChild.style.width = `${100 * score}%`;
      const percent = exam.percents[name[0]];
      const shownScore = percent === undefined ? twoDigits(score) : `${twoDigits(score)} · ${percent.toPrecision(2)}%`;
      const value = element("dd", {}, shownScore, bar);
      document.getElementById("scores").append(element("div", { className: high }, element("dt", {}, name), value));
    }
    document.getElementById("scores").after(element("p", { className: "explained" }, exam.explanation));
  }

  tellAbout() {
    document.getElementById("banner").textContent = `Weights ${exam.weights}: ${exam.intendedUse}`;
    const warnings = exam.warnings.map((warning) => ` Warning, ${warning}`).join("");
    document.getElementById("banner").append(element("strong", {}, warnings));
    const problems = document.getElementById("problems");
    problems.hidden = !exam.problems.length;
    problems.querySelector("ul").append(...exam.problems.map((problem) => element("li", {}, problem)));
    document.getElementById("absent").textContent = absent();
    if (exam.prior) {
      const told = `Beside it: the exam ${exam.prior.when}, score ${twoDigits(exam.prior.score)}.`;
      document.getElementById("absent").append(element("span", { className: "before" }, told));
    }
    const volumes =
      " The curve beside a volume shows how much each slice counts for a finding; likely are those around the one that " +
      "counts most, as far as they count at least half as much, and up to the finding's own slice.";
    document.getElementById("about").textContent =
      `mm3d ${exam.version}. Scores run from 0 to 1. The images are copies with 256 grey values, not for diagnosis: ` +
      `${sizes()}.${exam.views.some((view) => view.slices > 1) ? volumes : ""}`;
  }
}

// The findings by their numbers, those of the prior exam last; those of a lesion as the views hang: CC before MLO, the
// volume first.
function lesions() {
  const found = [[], []];
  for (const finding of panes.flatMap((pane) => pane.views.flatMap((view) => view.findings))) {
    (found[Number(finding.view.prior)][finding.number - 1] ??= []).push(finding);
  }
  return found.flat();
}

// The usual views that the exam does not have and that have no place on the screen.
function absent() {
  const names = HANGING.filter(([side, position]) => {
    return !panes.some((pane) => !pane.prior && pane.laterality === side && pane.position === position);
  });
  return names.length ? `Not in this exam: ${names.map((name) => name.join(" ")).join(", ")}.` : "";
}

// How large the copies are: "DBT at 46% and FFDM at 100% of the stored size".
function sizes() {
  const percents = new Map();
  for (const view of exam.views) {
    if (view.prior) continue;
    const percent = Math.round((100 * view.frameWidth) / view.width);
    percents.set(view.modality, Math.min(percent, percents.get(view.modality) ?? 100));
  }
  return `${[...percents].map(([modality, percent]) => `${modality} at ${percent}%`).join(" and ")} of the stored size`;
}

function size(finding) {
  const spacing = finding.view.pixelSpacing;
  if (!spacing) return "";
  const [x1, y1, x2, y2] = finding.box;
  return `${((x2 - x1) * spacing).toFixed(0)} × ${((y2 - y1) * spacing).toFixed(0)} mm`;
}

// Two digits, or three where the operating point has them.
function readable(score) {
  return Number(score.toFixed(2)) === Number(score.toFixed(4)) ? score.toFixed(2) : score.toFixed(3);
}
