// Beside an image: its slices, the first on top, how much each counts for the findings (w), and where we are.

const CURVE = 26; // CSS pixels: the widest of w
const BAR = 9; // width of the bar that shows where a finding is visible

class Rail {
  constructor(pane) {
    this.pane = pane;
    this.svg = drawn("svg", { "aria-hidden": "true" });
    this.thumb = element("div", { className: "thumb" });
    this.ends = [element("span", { className: "end first" }), element("span", { className: "end last" })];
    this.likely = [element("span", { className: "likely" }), element("span", { className: "likely" })];
    this.slider = element(
      "div",
      { className: "slider", role: "slider", tabIndex: 0, "aria-orientation": "vertical", "aria-valuemin": 1 },
      this.svg,
      ...this.ends,
      ...this.likely,
      this.thumb,
    );
    this.enlarge = element("button", { type: "button", className: "enlarge", tabIndex: -1 });
    const arrows = drawn("path", { d: "M9.5 2.5h4v4M6.5 13.5h-4v-4M13 3 9.5 6.5M3 13l3.5-3.5" });
    this.enlarge.append(drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, arrows));
    this.enlarge.title = "This view alone, and back (F)";
    this.enlarge.setAttribute("aria-label", `${pane.name} alone, and back`);
    this.enlarge.addEventListener("click", () => enlarge(pane));
    this.element = element("div", { className: "rail" }, this.slider, this.enlarge);
    this.slider.addEventListener("pointerdown", (event) => this.press(event));
    this.slider.addEventListener("pointermove", (event) => {
      if (this.slider.hasPointerCapture(event.pointerId)) this.drag(event);
    });
    this.slider.addEventListener("focus", () => activate(pane));
  }

  // A bar leads to its finding; anywhere else leads to that slice.
  press(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.slider.focus({ preventScroll: true });
    const bar = event.target.closest(".bar");
    if (bar) {
      jump(bar.finding);
      return;
    }
    this.slider.setPointerCapture(event.pointerId);
    this.drag(event);
  }

  drag(event) {
    const { top, height } = this.slider.getBoundingClientRect();
    this.pane.scroll(Math.floor(((event.clientY - top) / height) * this.pane.view.slices));
  }

  // The middle of a slice on the rail, in CSS pixels.
  at(z) {
    return ((z + 0.5) / this.pane.view.slices) * this.slider.clientHeight;
  }

  // The findings that are shown, the highest score first.
  shown() {
    return this.pane.view.findings.filter(isShown).sort((a, b) => b.score - a.score);
  }

  // The finding whose curve is filled: the selected one, or the highest.
  first() {
    const shown = this.shown();
    return shown.find((finding) => finding === state.selected) ?? shown[0];
  }

  draw() {
    const view = this.pane.view;
    this.slider.setAttribute("aria-label", `Slice of ${this.pane.name}, ${MODALITIES[view.modality] ?? view.modality}`);
    this.slider.setAttribute("aria-valuemax", view.slices);
    this.ends[0].textContent = view.slices > 1 ? "1" : "";
    this.ends[1].textContent = view.slices > 1 ? String(view.slices) : "";
    const shown = view.slices > 1 ? this.shown() : [];
    const first = view.slices > 1 ? this.first() : null;
    const parts = [];
    for (const finding of [...shown].reverse()) {
      const kind = `${finding === first ? "first" : "other"}${finding.score < exam.threshold ? " low" : ""}`;
      const curve = finding.weights && this.curve(finding, finding === first);
      if (curve) parts.push(drawn("path", { class: `curve ${kind}`, d: curve }));
      const [from, to] = likelyRange(finding);
      const top = this.at(from - 0.5) + 0.5;
      const height = Math.max(this.at(to + 0.5) - top - 0.5, 3);
      const bar = drawn("rect", { class: `bar ${kind}`, x: 1, y: top, width: BAR, height, rx: 2 });
      bar.append(drawn("title", {}, `Finding ${finding.name}: ${depthText(finding)}`));
      bar.finding = finding;
      parts.push(bar);
    }
    if (first) {
      const y = this.at(sliceOf(first));
      const low = first.score < exam.threshold ? " low" : "";
      parts.push(drawn("path", { class: `own${low}`, d: `M${BAR + 2} ${y}h${CURVE + 4}` }));
    }
    this.svg.replaceChildren(...parts);
    this.tellRange(first);
    this.move();
  }

  // The numbers of the first and the last likely slice, if there is room for them.
  tellRange(finding) {
    const range = finding?.weights ? likelyRange(finding) : null;
    const places = range ? [this.at(range[0] - 0.5) + 7, this.at(range[1] + 0.5) - 7] : [];
    const height = this.slider.clientHeight;
    const fits = range && places[1] - places[0] > 13;
    for (const [n, label] of this.likely.entries()) {
      label.textContent = fits ? String(range[n] + 1) : "";
      if (fits) label.style.top = `${clamp(places[n], 7, height - 7)}px`;
    }
    this.ends[0].hidden = Boolean(fits && places[0] < 22);
    this.ends[1].hidden = Boolean(fits && places[1] > height - 22);
  }

  curve(finding, filled) {
    const start = BAR + 3;
    const x = (w) => (start + (CURVE * w) / finding.most).toFixed(1);
    const points = finding.weights.map((w, z) => `${x(w)} ${this.at(z).toFixed(1)}`);
    const bottom = this.slider.clientHeight;
    return filled ? `M${start} 0L${points.join("L")}L${start} ${bottom}Z` : `M${points.join("L")}`;
  }

  move() {
    if (!this.pane.view) return;
    this.thumb.style.transform = `translateY(${this.at(this.pane.view.wanted)}px)`;
  }

  tell() {
    const view = this.pane.view;
    this.slider.setAttribute("aria-valuenow", view.shown + 1);
    const seen = view.findings.filter((finding) => isShown(finding) && presence(finding, view.shown) > 0);
    const findings = seen.map((finding) => `finding ${finding.name}, score ${twoDigits(finding.score)}`);
    const told = [`slice ${view.shown + 1} of ${view.slices}`, ...findings];
    this.slider.setAttribute("aria-valuetext", told.join("; "));
  }
}
