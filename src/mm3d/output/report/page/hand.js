// What the mouse, a pen and fingers do on an image.

class Hand {
  constructor(pane) {
    this.pane = pane;
    this.pointers = new Map();
    this.turned = 0; // of the wheel, in pixels that did not make a slice yet
    const { stage } = pane;
    stage.addEventListener("pointerdown", (event) => this.down(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
    stage.addEventListener("pointermove", (event) => this.hover(event));
    for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, (event) => this.up(event));
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("contextmenu", (event) => event.preventDefault());
    stage.addEventListener("dblclick", (event) => event.target.closest("button") || enlarge(pane));
  }

  down(event) {
    if (event.target.closest("button")) return;
    event.preventDefault();
    activate(this.pane);
    this.pane.rail.slider.focus({ preventScroll: true });
    this.pane.stage.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.tool = { 1: "pan", 2: "window" }[event.button] ?? state.tool;
    this.start = { slice: this.pane.view.wanted, ...state.window, x: event.clientX, y: event.clientY };
    this.clicked = this.pointers.size === 1 ? event.target.closest(".mark")?.finding : null;
    if (this.tool === "magnify") this.pane.magnifier.moveTo(this.pane.inStage(event));
    if (this.tool === "measure" && !this.clicked && this.pointers.size === 1) {
      this.pane.ruler.start(this.pane.inStage(event));
    }
  }

  // The magnifier follows a mouse that has no button pressed.
  hover(event) {
    if (state.tool === "magnify" && event.pointerType === "mouse" && !this.pointers.size) {
      activate(this.pane);
      this.pane.magnifier.moveTo(this.pane.inStage(event));
    }
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    if (Math.hypot(now[0] - this.start.x, now[1] - this.start.y) > 5) this.clicked = null;
    if (this.pointers.size > 1) this.pinch(event.pointerId, now);
    else if (this.tool === "pan") this.pane.pan(now[0] - before[0], now[1] - before[1]);
    else if (this.tool === "magnify") this.pane.magnifier.moveTo(this.pane.inStage(event));
    else if (this.tool === "measure") this.measure(event);
    else this.drag(now);
    this.pointers.set(event.pointerId, now);
  }

  drag([x, y]) {
    const [dx, dy] = [x - this.start.x, y - this.start.y];
    const { clientWidth, clientHeight } = this.pane.stage;
    if (this.tool === "window") {
      setWindow(this.start.centre + dy / clientHeight, this.start.width * 4 ** (dx / clientWidth));
      return;
    }
    const perSlice = Math.max(4, clientHeight / 1.5 / this.pane.view.slices);
    this.pane.scroll(this.start.slice + Math.trunc(dy / perSlice));
  }

  // A drag that begins on a mark measures, too.
  measure(event) {
    if (this.clicked) return;
    if (!this.pane.view.ruler) this.pane.ruler.start(this.pane.inStage(event));
    this.pane.ruler.moveTo(1, this.pane.inStage(event));
  }

  pinch(id, now) {
    const [other] = [...this.pointers].filter(([key]) => key !== id).map(([, at]) => at);
    const before = this.pointers.get(id);
    const { left, top } = this.pane.stage.getBoundingClientRect();
    this.pane.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    const apart = ([x, y]) => Math.max(Math.hypot(x - other[0], y - other[1]), 1);
    this.pane.zoom(apart(now) / apart(before), [(now[0] + other[0]) / 2 - left, (now[1] + other[1]) / 2 - top]);
    this.tool = "pan"; // the finger that stays does not begin to scroll
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    if (this.clicked && event.type === "pointerup") jump(this.clicked);
    this.pane.ruler.finish();
    this.clicked = null;
  }

  // A notch of a wheel is a slice; a touchpad's small steps add up to one.
  wheel(event) {
    event.preventDefault();
    activate(this.pane);
    const delta = event.deltaMode === 0 ? event.deltaY : event.deltaY * 40;
    if (event.ctrlKey) {
      this.pane.zoom(Math.exp(-clamp(delta, -60, 60) / 200), this.pane.inStage(event));
      return;
    }
    this.turned = Math.abs(delta) >= 50 ? 25 * Math.sign(delta) : this.turned + delta;
    const slices = Math.trunc(this.turned / 25);
    this.turned -= 25 * slices;
    if (slices) this.pane.scroll(this.pane.view.wanted + slices);
  }
}
