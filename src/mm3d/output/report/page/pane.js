// A place of the hanging: the images of one view (DBT, FFDM, or both), one of them shown, with its marks.

const SIDES = { R: "Right", L: "Left" };
const MODALITIES = { DBT: "tomosynthesis", FFDM: "mammogram" };
const MAX_ZOOM = 16;

class Pane {
  constructor(laterality, position, views, prior) {
    this.laterality = laterality;
    this.position = position;
    this.prior = prior;
    this.name = `${prior ? "Prior " : ""}${SIDES[laterality]} ${position}`;
    this.views = views;
    const kind = prior ? " prior" : "";
    this.section = element("section", { className: `pane side-${laterality}${kind}`, "aria-label": this.name });
    this.view = null;
    if (!views.length) {
      this.section.classList.add("empty");
      const unread = !prior && exam.unread.includes(laterality + position);
      const why = unread ? "could not be read" : `not in ${prior ? "the prior" : "this"} exam`;
      this.section.append(element("p", {}, element("b", {}, `${laterality} ${position}`), element("span", {}, why)));
      return;
    }
    this.build();
    for (const view of views) this.prepare(view);
    this.choose(views[0]);
  }

  build() {
    this.canvas = element("canvas", { className: "image" });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true, alpha: false });
    this.marks = new Marks(this);
    this.ruler = new Ruler(this);
    this.magnifier = new Magnifier(this);
    this.modality = element("div", { className: "modality" });
    this.viewScore = element("div", { className: "view-score" });
    this.place = element("div", { className: "place" });
    this.depth = element("div", { className: "depth" });
    this.settings = element("div", { className: "settings" });
    this.scaleBar = element("div", { className: "scale", "aria-hidden": "true" });
    const top = element("div", { className: "label top" }, element("b", {}, `${this.laterality} ${this.position}`));
    if (this.prior) top.append(element("div", { className: "when" }, exam.prior.when));
    top.append(this.modality, this.viewScore);
    const bottom = element("div", { className: "label bottom" });
    bottom.append(this.settings, this.scaleBar, this.depth, this.place);
    this.labels = [top, bottom];
    this.stage = element("div", { className: "stage" }, this.canvas, this.marks.svg, ...this.ruler.parts, top, bottom);
    this.stage.append(this.magnifier.canvas);
    this.rail = new Rail(this);
    this.section.append(this.stage, this.rail.element);
    new ResizeObserver(() => layout()).observe(this.stage);
  }

  // What a view needs to be shown, kept when the other image of the place is looked at.
  prepare(view) {
    view.pane = this;
    view.shown = null;
    view.zoom = 1;
    view.shift = [0, 0];
    view.ruler = null;
    view.frames = new Frames(view, view.block, (z) => {
      if (this.view === view) this.arrived(z);
    });
    for (const finding of view.findings) {
      finding.view = view;
      finding.name = `${view.prior ? "P" : ""}${finding.number}`;
      finding.most = Math.max(...(finding.weights ?? [])) || 1;
      Marks.prepare(finding);
    }
    // It opens where its highest mark is; without a mark, in the middle.
    const [top] = view.findings.filter((f) => f.score >= exam.threshold).sort((a, b) => b.score - a.score);
    view.wanted = top ? sliceOf(top) : (view.slices - 1) >> 1;
    const count = this.views.filter((other) => other.modality === view.modality).length;
    const number = this.views.filter((other) => other.modality === view.modality).indexOf(view) + 1;
    view.label = count > 1 ? `${view.modality} ${number}` : view.modality;
    view.button = element("button", { type: "button", tabIndex: -1 }, view.label);
    view.button.addEventListener("click", () => this.choose(view));
    this.modality.append(view.button);
  }

  choose(view) {
    this.view = view;
    this.modality.classList.toggle("several", this.views.length > 1);
    for (const other of this.views) other.button.setAttribute("aria-pressed", other === view);
    this.viewScore.textContent = view.score === null ? "" : `score ${twoDigits(view.score)}`;
    this.marks.show(view);
    this.magnifier.at = null;
    this.section.classList.toggle("flat", view.slices === 1);
    view.shown = null;
    layout();
    this.go(view.wanted);
    this.rail.draw();
  }

  nextImage() {
    this.choose(this.views[(this.views.indexOf(this.view) + 1) % this.views.length]);
  }

  go(z) {
    const view = this.view;
    view.wanted = clamp(Math.round(z), 0, view.slices - 1);
    view.frames.want(view.wanted);
    this.arrived(view.wanted);
    this.rail.move();
  }

  // By the user's hand: the other view of the breast follows if that is asked for.
  scroll(z) {
    this.go(z);
    if (!state.sync || this.view.slices === 1) return;
    const depth = this.view.wanted / (this.view.slices - 1);
    for (const pane of panes) {
      const other = pane.view;
      if (!other || pane === this || pane.laterality !== this.laterality || other.slices === 1) continue;
      pane.go(depth * (other.slices - 1));
    }
  }

  // A frame may be shown if it is nearer to what is wanted than what is there, or if it is part of the slab.
  arrived(z) {
    const view = this.view;
    if (!view.frames.get(z)) return;
    if (state.slab !== "slice" && view.shown !== null) this.redraw();
    if (view.shown !== null && Math.abs(z - view.wanted) > Math.abs(view.shown - view.wanted)) return;
    if (view.shown === z) return;
    view.shown = z;
    this.redraw();
  }

  redraw() {
    if (this.pending || !this.view) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
      this.tell();
      this.marks.draw();
      this.ruler.draw();
      this.magnifier.draw();
    });
  }

  // --- where the image lies: stored pixels times `scale`, from `origin` on, in CSS pixels of the stage

  fit() {
    const [x1, y1, x2, y2] = this.view.region;
    return Math.min(this.stage.clientWidth / (x2 - x1), this.stage.clientHeight / (y2 - y1));
  }

  geometry() {
    const view = this.view;
    const scale = this.fitted * view.zoom;
    const [x1, y1, x2, y2] = view.region;
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    const x = this.laterality === "L" ? -x1 * scale : width - x2 * scale; // chest walls face each other
    const y = height / 2 - (scale * (y1 + y2)) / 2;
    return { scale, origin: [x + view.shift[0], y + view.shift[1]] };
  }

  // Half of the stage at least stays filled.
  limit() {
    const { scale, origin } = this.geometry();
    const sizes = [this.view.width * scale, this.view.height * scale];
    const stage = [this.stage.clientWidth, this.stage.clientHeight];
    for (const axis of [0, 1]) {
      const inside = clamp(origin[axis], stage[axis] / 2 - sizes[axis], stage[axis] / 2);
      this.view.shift[axis] += inside - origin[axis];
    }
  }

  // Stored pixels as CSS pixels of the stage, and back.
  onStage([x, y]) {
    const { scale, origin } = this.geometry();
    return [origin[0] + scale * x, origin[1] + scale * y];
  }

  stored([x, y]) {
    const { scale, origin } = this.geometry();
    return [(x - origin[0]) / scale, (y - origin[1]) / scale];
  }

  inStage(event) {
    const { left, top } = this.stage.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  // The selected finding, else the middle of the breast; in CSS pixels of the stage.
  middle() {
    const [x1, y1, x2, y2] = state.selected?.view === this.view ? state.selected.box : this.view.region;
    const [x, y] = this.onStage([(x1 + x2) / 2, (y1 + y2) / 2]);
    return [clamp(x, 0, this.stage.clientWidth), clamp(y, 0, this.stage.clientHeight)];
  }

  // What keys and buttons do: the selected finding, if this view has it, comes into the middle.
  zoomIn(factor) {
    this.zoom(factor, this.middle());
    if (state.selected?.view === this.view && this.view.zoom > 1) this.center(state.selected.box);
  }

  zoom(factor, at) {
    const before = this.geometry();
    this.view.zoom = clamp(this.view.zoom * factor, 1, MAX_ZOOM);
    const after = this.geometry();
    for (const axis of [0, 1]) {
      const stored = (at[axis] - before.origin[axis]) / before.scale;
      this.view.shift[axis] += at[axis] - stored * after.scale - after.origin[axis];
    }
    if (this.view.zoom === 1) this.view.shift = [0, 0];
    this.limit();
    this.redraw();
  }

  pan(dx, dy) {
    this.view.shift = [this.view.shift[0] + dx, this.view.shift[1] + dy];
    this.limit();
    this.redraw();
  }

  center(box) {
    const { scale, origin } = this.geometry();
    this.pan(
      this.stage.clientWidth / 2 - origin[0] - (scale * (box[0] + box[2])) / 2,
      this.stage.clientHeight / 2 - origin[1] - (scale * (box[1] + box[3])) / 2,
    );
  }

  reset() {
    for (const view of this.views) Object.assign(view, { zoom: 1, shift: [0, 0], ruler: null });
  }

  // --- what is seen

  paint() {
    const ratio = pixelRatio();
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight].map((side) => Math.round(side * ratio));
    if (!width || !height || !this.view.frames.get(this.view.shown)) return;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const { scale, origin } = this.geometry();
    paint(this.context, this.view, scale * ratio, origin.map((start) => start * ratio));
  }

  tell() {
    const { view } = this;
    if (view.slices > 1) {
      const depth = view.sliceSpacing ? ` · ${(view.shown * view.sliceSpacing).toFixed(0)} mm` : "";
      this.place.textContent = `${view.shown + 1} / ${view.slices}${depth}`;
    } else this.place.textContent = "";
    const told = [];
    const slab = slabSlices(view, view.shown);
    if (slab.length > 1) told.push(`${state.slab} of ${slab[0] + 1} to ${slab.at(-1) + 1}`);
    if (view.zoom > 1) told.push(`${view.zoom.toFixed(1)}×`);
    const { centre, width } = state.window;
    if (centre !== 0.5 || width !== 1) told.push(`W ${Math.round(100 * width)} L ${Math.round(100 * centre)}`);
    this.settings.textContent = told.join(" · ");
    const first = view.slices > 1 ? this.rail.first() : null;
    this.depth.textContent = first ? `${first.name}: ${depthText(first)}` : "";
    this.drawScale();
    this.section.dataset.slice = view.shown;
    this.rail.tell();
  }

  drawScale() {
    const spacing = this.view.pixelSpacing;
    this.scaleBar.classList.toggle("unknown", !spacing);
    this.scaleBar.textContent = "no scale: size of pixels unknown";
    this.scaleBar.style.width = "";
    if (!spacing) return;
    const perMm = this.geometry().scale / spacing;
    const length = [50, 20, 10, 5, 2, 1].find((mm) => mm * perMm <= 110) ?? 1;
    this.scaleBar.style.width = `${length * perMm}px`;
    this.scaleBar.textContent = `${length} mm`;
  }
}
