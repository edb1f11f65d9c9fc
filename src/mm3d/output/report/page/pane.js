// A place of the hanging: the images of one view (DBT, FFDM, or both), one of them shown, with its marks.

const SIDES = { R: "Right", L: "Left" };
const MODALITIES = { DBT: "tomosynthesis", FFDM: "mammogram" };
const FADED = 0.1; // of the largest w: here a mark is gone
const FULL = 0.5; // and from here on it is there
const GHOST = 0.35; // opacity of the selected finding on other slices
const MAX_ZOOM = 16;

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const twoDigits = (score) => score.toFixed(2);

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

// First and last slice around the finding's own where it is fully there.
function visibleRange(finding) {
  let first = sliceOf(finding);
  let last = first;
  if (finding.weights) {
    while (first > 0 && presence(finding, first - 1) === 1) first--;
    while (last < finding.weights.length - 1 && presence(finding, last + 1) === 1) last++;
  }
  return [first, last];
}

class Pane {
  constructor(laterality, position, views) {
    this.laterality = laterality;
    this.position = position;
    this.name = `${SIDES[laterality]} ${position}`;
    this.views = views;
    this.section = element("section", { className: `pane side-${laterality}`, "aria-label": this.name });
    this.view = null;
    if (!views.length) {
      this.section.classList.add("empty");
      const why = exam.unread.includes(laterality + position) ? "could not be read" : "not in this exam";
      this.section.append(element("p", {}, element("b", {}, `${laterality} ${position}`), element("span", {}, why)));
      return;
    }
    this.build();
    for (const view of views) this.prepare(view);
    this.choose(views[0]);
  }

  build() {
    this.canvas = element("canvas");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true, alpha: false });
    this.marks = drawn("svg", { class: "marks", "aria-hidden": "true" });
    this.modality = element("div", { className: "modality" });
    this.viewScore = element("div", { className: "view-score" });
    this.place = element("div", { className: "place" });
    this.settings = element("div", { className: "settings" });
    this.ruler = element("div", { className: "ruler", "aria-hidden": "true" });
    const top = element("div", { className: "label top" });
    top.append(element("b", {}, `${this.laterality} ${this.position}`), this.modality, this.viewScore);
    const bottom = element("div", { className: "label bottom" }, this.settings, this.ruler, this.place);
    this.stage = element("div", { className: "stage" }, this.canvas, this.marks, top, bottom);
    this.rail = new Rail(this);
    this.section.append(this.stage, this.rail.element);
    new ResizeObserver(() => layout()).observe(this.stage);
  }

  // What a view needs to be shown, kept when the other image of the place is looked at.
  prepare(view) {
    const top = view.findings.reduce((best, finding) => (best && best.score >= finding.score ? best : finding), null);
    view.pane = this;
    view.wanted = top ? sliceOf(top) : (view.slices - 1) >> 1;
    view.opening = view.wanted;
    view.shown = null;
    view.zoom = 1;
    view.shift = [0, 0];
    view.frames = new Frames(view, view.block, (z) => {
      if (this.view === view) this.arrived(z);
    });
    for (const finding of view.findings) {
      finding.view = view;
      finding.most = Math.max(...(finding.weights ?? [])) || 1;
      finding.frame = drawn("rect");
      finding.caption = drawn("text", {}, `${finding.number} · ${twoDigits(finding.score)}`);
      finding.mark = drawn("g", { class: "mark" }, finding.frame, finding.caption);
      finding.mark.finding = finding;
    }
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
    this.marks.replaceChildren(...view.findings.map((finding) => finding.mark));
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

  // A frame may be shown if it is nearer to what is wanted than what is there.
  arrived(z) {
    const view = this.view;
    if (!view.frames.get(z)) return;
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
      this.drawMarks();
      this.tell();
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

  // What keys and buttons zoom at: the selected finding, else the middle of the breast; in CSS pixels of the stage.
  middle() {
    const { scale, origin } = this.geometry();
    const [x1, y1, x2, y2] = state.selected?.view === this.view ? state.selected.box : this.view.region;
    return [
      clamp(origin[0] + (scale * (x1 + x2)) / 2, 0, this.stage.clientWidth),
      clamp(origin[1] + (scale * (y1 + y2)) / 2, 0, this.stage.clientHeight),
    ];
  }

  zoom(factor, at = this.middle()) {
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
    for (const view of this.views) Object.assign(view, { zoom: 1, shift: [0, 0] });
  }

  // --- what is seen

  paint() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2); // more is work without anything to see
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight].map((side) => Math.round(side * ratio));
    const bitmap = this.view.frames.get(this.view.shown);
    if (!width || !height || !bitmap) return;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const { scale, origin } = this.geometry();
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, width, height);
    this.context.imageSmoothingQuality = "medium";
    const [x, y] = origin.map((start) => start * ratio);
    const [w, h] = [this.view.width * scale * ratio, this.view.height * scale * ratio];
    this.context.drawImage(bitmap, x, y, w, h);
    const grey = greyTable();
    if (!grey) return;
    const [left, top] = [clamp(Math.round(x), 0, width), clamp(Math.round(y), 0, height)];
    const [right, bottom] = [clamp(Math.round(x + w), 0, width), clamp(Math.round(y + h), 0, height)];
    if (right <= left || bottom <= top) return;
    const image = this.context.getImageData(left, top, right - left, bottom - top);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = grey[pixels[i] & 255];
    this.context.putImageData(image, left, top);
  }

  drawMarks() {
    const { scale, origin } = this.geometry();
    for (const finding of this.view.findings) {
      const selected = finding === state.selected;
      const there = presence(finding, this.view.shown);
      const opacity = isShown(finding) && state.marks ? Math.max(there, selected ? GHOST : 0) : 0;
      finding.mark.style.opacity = opacity;
      finding.mark.style.display = opacity ? "" : "none";
      finding.mark.setAttribute(
        "class",
        ["mark", selected && "selected", !there && "elsewhere", finding.score < exam.threshold && "low"]
          .filter(Boolean)
          .join(" "),
      );
      if (!opacity) continue;
      const [x1, y1, x2, y2] = finding.box.map((edge, i) => edge * scale + origin[i % 2]);
      const pad = 4; // so that the edge of a lesion is not covered
      const frame = { x: x1 - pad, y: y1 - pad, width: x2 - x1 + 2 * pad, height: y2 - y1 + 2 * pad };
      for (const [key, value] of Object.entries(frame)) finding.frame.setAttribute(key, value);
      const above = y1 - pad - 5 > 14;
      finding.caption.setAttribute("y", above ? y1 - pad - 5 : y2 + pad + 14);
      const room = this.stage.clientWidth - 70;
      finding.caption.setAttribute("x", clamp(x1 - pad, 4, Math.max(room, 4)));
    }
  }

  tell() {
    const view = this.view;
    if (view.slices > 1) {
      const depth = view.sliceSpacing ? ` · ${(view.shown * view.sliceSpacing).toFixed(0)} mm` : "";
      this.place.textContent = `${view.shown + 1} / ${view.slices}${depth}`;
    } else this.place.textContent = "";
    const told = [];
    if (view.zoom > 1) told.push(`${view.zoom.toFixed(1)}×`);
    const { centre, width } = state.window;
    if (centre !== 0.5 || width !== 1) told.push(`W ${Math.round(100 * width)} L ${Math.round(100 * centre)}`);
    this.settings.textContent = told.join(" · ");
    this.drawRuler();
    this.section.dataset.slice = view.shown;
    this.rail.tell();
  }

  drawRuler() {
    const spacing = this.view.pixelSpacing;
    this.ruler.hidden = !spacing;
    if (!spacing) return;
    const perMm = this.geometry().scale / spacing;
    const length = [50, 20, 10, 5, 2, 1].find((mm) => mm * perMm <= 110) ?? 1;
    this.ruler.style.width = `${length * perMm}px`;
    this.ruler.textContent = `${length} mm`;
  }
}
