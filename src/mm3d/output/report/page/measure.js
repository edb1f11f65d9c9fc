// A ruler on an image, and a magnifier. Both are in stored pixels, so that they stay where they are when the view moves.

const GLASS = 190; // CSS pixels: width of the magnifier
const MAGNIFIED = 2.5; // times what the view shows

class Ruler {
  constructor(pane) {
    this.pane = pane;
    this.line = drawn("line");
    this.caption = drawn("text");
    this.svg = drawn("svg", { class: "marks measure", "aria-hidden": "true" }, this.line, this.caption);
    this.handles = [0, 1].map((end) => {
      const handle = element("button", { type: "button", className: "handle" });
      handle.addEventListener("keydown", (event) => this.onKey(event, end));
      handle.addEventListener("pointerdown", (event) => this.press(event, end));
      handle.addEventListener("pointermove", (event) => this.drag(event, end));
      handle.addEventListener("focus", () => activate(pane));
      return handle;
    });
    this.parts = [this.svg, ...this.handles];
  }

  // Across the middle of what is seen, or away.
  toggle() {
    const { view, stage } = this.pane;
    const [x, y] = this.pane.middle();
    const away = Boolean(view.ruler);
    const ends = [-1, 1].map((side) => this.pane.stored([x + side * 0.15 * stage.clientWidth, y]));
    view.ruler = away ? null : ends;
    this.draw();
    (away ? this.pane.rail.slider : this.handles[0]).focus({ preventScroll: true });
  }

  start(at) {
    const end = this.pane.stored(at);
    this.pane.view.ruler = [end, end];
    this.draw();
  }

  // A ruler without length is none.
  finish() {
    const { ruler } = this.pane.view;
    if (ruler && Math.hypot(ruler[0][0] - ruler[1][0], ruler[0][1] - ruler[1][1]) < 1) this.pane.view.ruler = null;
    this.draw();
  }

  moveTo(end, at) {
    const { view } = this.pane;
    const [x, y] = this.pane.stored(at);
    view.ruler[end] = [clamp(x, 0, view.width), clamp(y, 0, view.height)];
    this.draw();
  }

  press(event, end) {
    event.preventDefault();
    event.stopPropagation();
    this.handles[end].focus({ preventScroll: true });
    this.handles[end].setPointerCapture(event.pointerId);
  }

  drag(event, end) {
    if (!this.handles[end].hasPointerCapture(event.pointerId)) return;
    event.stopPropagation();
    this.moveTo(end, this.pane.inStage(event));
  }

  onKey(event, end) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const remove = event.key === "Delete" || event.key === "Backspace";
    if (!step && !remove) return;
    event.preventDefault();
    event.stopPropagation();
    if (remove) {
      this.toggle();
      return;
    }
    const far = event.shiftKey ? 10 : 1;
    const [x, y] = this.pane.onStage(this.pane.view.ruler[end]);
    this.moveTo(end, [x + far * step[0], y + far * step[1]]);
  }

  draw() {
    const { ruler } = this.pane.view;
    for (const part of this.parts) part.style.display = ruler ? "" : "none";
    if (!ruler) return;
    const [[x1, y1], [x2, y2]] = ruler.map((end) => this.pane.onStage(end));
    for (const [key, value] of Object.entries({ x1, y1, x2, y2 })) this.line.setAttribute(key, value);
    const text = this.length();
    this.caption.textContent = text;
    const { clientWidth, clientHeight } = this.pane.stage;
    this.caption.setAttribute("x", clamp((x1 + x2) / 2 + 8, 4, clientWidth - LETTER * text.length));
    this.caption.setAttribute("y", clamp((y1 + y2) / 2 - 8, LINE, clientHeight - 4));
    for (const [end, [x, y]] of [[x1, y1], [x2, y2]].entries()) {
      this.handles[end].style.transform = `translate(${x}px, ${y}px)`;
      this.handles[end].setAttribute("aria-label", `Ruler of ${this.pane.name}, end ${end + 1}: ${text}`);
    }
  }

  length() {
    const { ruler, pixelSpacing } = this.pane.view;
    const pixels = Math.hypot(ruler[0][0] - ruler[1][0], ruler[0][1] - ruler[1][1]);
    return pixelSpacing ? `${(pixels * pixelSpacing).toFixed(1)} mm` : `${pixels.toFixed(0)} pixels`;
  }
}

class Magnifier {
  constructor(pane) {
    this.pane = pane;
    this.canvas = element("canvas", { className: "glass" });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true, alpha: false });
    this.at = null; // stored pixels; null: nobody moved it yet
  }

  moveTo(at) {
    this.at = this.pane.stored(at);
    this.draw();
  }

  moveBy(dx, dy) {
    const [x, y] = this.pane.onStage(this.at);
    const { clientWidth, clientHeight } = this.pane.stage;
    this.moveTo([clamp(x + dx, 0, clientWidth), clamp(y + dy, 0, clientHeight)]);
  }

  draw() {
    const on = state.tool === "magnify" && state.active === this.pane && this.pane.view.shown !== null;
    this.canvas.style.display = on ? "" : "none";
    if (!on) return;
    this.at ??= this.pane.stored(this.pane.middle());
    const side = Math.round(GLASS * pixelRatio());
    if (this.canvas.width !== side) Object.assign(this.canvas, { width: side, height: side });
    const scale = this.pane.geometry().scale * MAGNIFIED * pixelRatio();
    paint(this.context, this.pane.view, scale, this.at.map((place) => side / 2 - place * scale));
    const [x, y] = this.pane.onStage(this.at);
    this.canvas.style.transform = `translate(${x - GLASS / 2}px, ${y - GLASS / 2}px)`;
  }
}
