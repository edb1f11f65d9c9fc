// The page as a whole: what is set, what the tools, the keys, the mouse and the fingers do.

const exam = JSON.parse(document.getElementById("exam").textContent);
const HANGING = [["R", "CC"], ["L", "CC"], ["R", "MLO"], ["L", "MLO"]];
const TOOLS = ["scroll", "window", "pan"];
const state = {
  threshold: exam.threshold,
  marks: true,
  invert: false,
  sync: false,
  tool: "scroll",
  window: { centre: 0.5, width: 1 }, // of all images alike, 0 black and 1 white as they are in the file
  active: null,
  selected: null,
  alone: null,
};
const panes = [];
let list = null;

function isShown(finding) {
  return finding.score >= state.threshold;
}

// Grey values as they are to be shown, as pixels of a canvas; null if they stay as they are.
function greyTable() {
  const { centre, width } = state.window;
  if (centre === 0.5 && width === 1 && !state.invert) return null;
  const table = new Uint32Array(256);
  for (let value = 0; value < 256; value++) {
    let grey = Math.round(255 * clamp((value / 255 - centre) / width + 0.5, 0, 1));
    if (state.invert) grey = 255 - grey;
    table[value] = 0xff000000 | (grey << 16) | (grey << 8) | grey;
  }
  return table;
}

// Left and right are shown at the same scale in mm, so that they can be compared.
function layout() {
  for (const position of ["CC", "MLO"]) {
    const row = panes.filter((pane) => pane.position === position && pane.view && pane.stage.clientWidth);
    const known = row.every((pane) => pane.view.pixelSpacing);
    const spacing = (pane) => (known ? pane.view.pixelSpacing : 1);
    const scale = Math.min(...row.map((pane) => pane.fit() / spacing(pane)));
    for (const pane of row) {
      pane.fitted = scale * spacing(pane);
      pane.limit();
      pane.redraw();
      pane.rail.draw();
    }
  }
}

function redrawAll() {
  for (const pane of panes) pane.redraw();
}

function drawRails() {
  for (const pane of panes) if (pane.view) pane.rail.draw();
}

function activate(pane) {
  if (!pane.view || state.active === pane) return;
  state.active = pane;
  for (const other of panes) other.section.classList.toggle("active", other === pane);
  if (state.alone && state.alone !== pane) enlarge(pane, true);
}

function enlarge(pane, keep = false) {
  state.alone = state.alone && !keep ? null : pane;
  document.getElementById("hanging").classList.toggle("alone", Boolean(state.alone));
  for (const other of panes) other.section.classList.toggle("enlarged", other === state.alone);
  activate(pane);
  layout();
}

function jump(finding) {
  const { view } = finding;
  state.selected = finding;
  if (view.pane.view !== view) view.pane.choose(view);
  activate(view.pane);
  view.pane.go(sliceOf(finding));
  if (view.zoom > 1) view.pane.center(finding.box);
  list.select();
  list.rows.get(finding)?.scrollIntoView({ block: "nearest" });
  redrawAll();
  drawRails();
}

function nextFinding(step) {
  const shown = list.shown();
  if (!shown.length) return;
  const at = shown.indexOf(state.selected);
  jump(shown[at < 0 ? (step > 0 ? 0 : shown.length - 1) : (at + step + shown.length) % shown.length]);
}

function nextPane(step) {
  const there = panes.filter((pane) => pane.view);
  const pane = there[(there.indexOf(state.active) + step + there.length) % there.length];
  activate(pane);
  pane.rail.slider.focus({ preventScroll: true });
}

// The slider has two digits, the operating point may have more: near it, it is meant.
function setThreshold(value) {
  const asked = clamp(value, 0, 1);
  state.threshold = Math.abs(asked - exam.threshold) < 0.005 ? exam.threshold : asked;
  if (state.selected && !isShown(state.selected)) state.selected = null;
  list.draw();
  redrawAll();
  drawRails();
}

function setWindow(centre, width) {
  state.window = { centre: clamp(centre, 0, 1), width: clamp(width, 0.02, 2) };
  redrawAll();
}

function setTool(tool) {
  state.tool = tool;
  for (const button of document.querySelectorAll("[data-tool]")) {
    button.setAttribute("aria-checked", button.dataset.tool === tool);
    button.tabIndex = button.dataset.tool === tool ? 0 : -1;
  }
  document.getElementById("hanging").dataset.tool = tool;
}

function toggle(name, on = !state[name]) {
  state[name] = on;
  document.querySelector(`[data-toggle="${name}"]`).setAttribute("aria-pressed", on);
  document.getElementById("hanging").classList.toggle("inverted", state.invert);
  redrawAll();
}

function reset() {
  state.window = { centre: 0.5, width: 1 };
  state.invert = false;
  for (const pane of panes) pane.reset();
  toggle("invert", false);
}

function help() {
  const dialog = document.getElementById("help");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

const ACTIONS = {
  zoomIn: () => state.active.zoom(1.25),
  zoomOut: () => state.active.zoom(1 / 1.25),
  reset,
  help,
};

// --- keys: they are for the active view, wherever the focus is

const windowBy = (centre, width) => setWindow(state.window.centre + centre, state.window.width * width);
const by = (slices) => () => state.active.scroll(state.active.view.wanted + slices);
const move = (dx, dy) => () => state.active.pan(dx, dy);
const KEYS = {
  ArrowUp: by(-1),
  ArrowDown: by(1),
  PageUp: by(-5),
  PageDown: by(5),
  Home: () => state.active.scroll(0),
  End: () => state.active.scroll(state.active.view.slices - 1),
  ArrowLeft: () => nextPane(-1),
  ArrowRight: () => nextPane(1),
  "Shift+ArrowUp": move(0, 40),
  "Shift+ArrowDown": move(0, -40),
  "Shift+ArrowLeft": move(40, 0),
  "Shift+ArrowRight": move(-40, 0),
  n: () => nextFinding(1),
  p: () => nextFinding(-1),
  m: () => state.active.nextImage(),
  f: () => enlarge(state.active),
  Escape: () => state.alone && enlarge(state.alone),
  c: () => windowBy(0, 1 / 1.1),
  "Shift+c": () => windowBy(0, 1.1),
  b: () => windowBy(-0.03, 1),
  "Shift+b": () => windowBy(0.03, 1),
  i: () => toggle("invert"),
  "+": ACTIONS.zoomIn,
  "=": ACTIONS.zoomIn,
  "-": ACTIONS.zoomOut,
  0: reset,
  h: () => toggle("marks"),
  s: () => toggle("sync"),
  t: () => setThreshold(state.threshold + 0.05),
  "Shift+t": () => setThreshold(state.threshold - 0.05),
  d: () => setTool(TOOLS[(TOOLS.indexOf(state.tool) + 1) % TOOLS.length]),
  "?": help,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const shifted = event.shiftKey && (letter !== letter.toUpperCase() || letter.startsWith("Arrow"));
  const action = KEYS[shifted ? `Shift+${letter}` : letter];
  const ownKeys = event.target.type === "range" && /^(Arrow|Page|Home|End)/.test(event.key);
  const open = document.getElementById("help").open;
  if (!action || ownKeys || (open && letter !== "?")) return;
  if (event.target.dataset?.tool && /^Arrow(Left|Right)/.test(event.key)) return;
  event.preventDefault();
  action();
}

// The three tools are one stop of the Tab key; arrows go from one to the other.
function onToolKey(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  setTool(TOOLS[(TOOLS.indexOf(state.tool) + step + TOOLS.length) % TOOLS.length]);
  document.querySelector(`[data-tool="${state.tool}"]`).focus();
}

// --- mouse, pen and fingers on an image

class Hand {
  constructor(pane) {
    this.pane = pane;
    this.pointers = new Map();
    this.turned = 0; // of the wheel, in pixels that did not make a slice yet
    const { stage } = pane;
    stage.addEventListener("pointerdown", (event) => this.down(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
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
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    if (Math.hypot(now[0] - this.start.x, now[1] - this.start.y) > 5) this.clicked = null;
    if (this.pointers.size > 1) this.pinch(event.pointerId, now);
    else if (this.tool === "pan") this.pane.pan(now[0] - before[0], now[1] - before[1]);
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
    this.clicked = null;
  }

  // A notch of a wheel is a slice; a touchpad's small steps add up to one.
  wheel(event) {
    event.preventDefault();
    activate(this.pane);
    const delta = event.deltaMode === 0 ? event.deltaY : event.deltaY * 40;
    if (event.ctrlKey) {
      const { left, top } = this.pane.stage.getBoundingClientRect();
      this.pane.zoom(Math.exp(-clamp(delta, -60, 60) / 200), [event.clientX - left, event.clientY - top]);
      return;
    }
    this.turned = Math.abs(delta) >= 50 ? 25 * Math.sign(delta) : this.turned + delta;
    const slices = Math.trunc(this.turned / 25);
    this.turned -= 25 * slices;
    if (slices) this.pane.scroll(this.pane.view.wanted + slices);
  }
}

function start() {
  const blocks = document.querySelectorAll("script.frames");
  exam.views.forEach((view, v) => (view.block = blocks[v]));
  for (const [laterality, position] of HANGING) {
    const views = exam.views.filter((view) => view.laterality === laterality && view.position === position);
    views.sort((a, b) => b.slices - a.slices); // the volume is what opens
    const pane = new Pane(laterality, position, views);
    panes.push(pane);
    document.getElementById("hanging").append(pane.section);
    if (pane.view) new Hand(pane);
  }
  list = new List();
  for (const button of document.querySelectorAll("[data-tool]")) {
    button.addEventListener("click", () => setTool(button.dataset.tool));
    button.addEventListener("keydown", onToolKey);
  }
  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => toggle(button.dataset.toggle));
    button.setAttribute("aria-pressed", state[button.dataset.toggle]);
  }
  for (const button of document.querySelectorAll("[data-act]")) {
    button.addEventListener("click", ACTIONS[button.dataset.act]);
  }
  document.addEventListener("keydown", onKey);
  setTool("scroll");
  list.draw();
  activate(list.shown()[0]?.view.pane ?? panes.find((pane) => pane.view));
  layout();
}

start();
