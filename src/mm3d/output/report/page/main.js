// The page as a whole: what is set, what the tools, the keys, the mouse and the fingers do.

const exam = JSON.parse(document.getElementById("exam").textContent);
const HANGING = [["R", "CC"], ["L", "CC"], ["R", "MLO"], ["L", "MLO"]];
const TOOLS = ["scroll", "window", "pan", "measure", "magnify"];
const SLABS = ["slice", "mean", "max"]; // what is shown: one slice, or the mean or maximum of several
const THICKEST = 25; // slices of a slab
const PLAYED = 125; // milliseconds from slice to slice
const PAIRS = 1100; // CSS pixels: from this width on, a prior exam is shown from the start
const state = {
  threshold: exam.threshold,
  marks: true,
  invert: false,
  sync: false,
  prior: false,
  tool: "scroll",
  slab: "slice",
  thickness: 5,
  playing: null, // a timer
  window: { centre: 0.5, width: 1 }, // of all images alike, 0 black and 1 white as they are in the file
  active: null,
  selected: null,
  alone: null,
};
const panes = [];
let list = null;

function isShown(finding) {
  return finding.score >= state.threshold && (state.prior || !finding.view.prior);
}

// Left and right, and the prior exam, are shown at the same scale in mm, so that they can be compared.
function layout() {
  const there = panes.filter((pane) => pane.view && pane.stage.clientWidth);
  for (const position of ["CC", "MLO"]) {
    const row = there.filter((pane) => pane.position === position);
    const known = row.every((pane) => pane.view.pixelSpacing);
    const spacing = (pane) => (known ? pane.view.pixelSpacing : 1);
    const scale = Math.min(...row.map((pane) => pane.fit() / spacing(pane)));
    for (const pane of row) {
      pane.section.classList.toggle("narrow", pane.stage.clientWidth < 260);
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
  if (state.alone && pane.section.hidden) enlarge(pane, true);
  for (const other of panes) if (other.view) other.magnifier.draw();
}

// One view alone, with the same view of the prior exam if that is shown.
function enlarge(pane, keep = false) {
  state.alone = state.alone && !keep ? null : pane;
  activate(pane);
  arrange();
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
  const there = panes.filter((pane) => pane.view && (state.prior || !pane.prior));
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
  for (const pane of panes) if (pane.view) pane.magnifier.draw();
}

// The slices of the active view, to and fro, until that is pressed again.
function play() {
  const on = !state.playing;
  clearInterval(state.playing);
  let step = 1;
  const next = () => {
    const { view } = state.active;
    if (view.wanted + step < 0 || view.wanted + step >= view.slices) step = -step;
    if (view.shown === view.wanted) state.active.scroll(view.wanted + step); // it waits for slices to be decoded
  };
  state.playing = on ? setInterval(next, PLAYED) : null;
  const button = document.querySelector('[data-act="play"]');
  button.setAttribute("aria-pressed", on);
}

function setSlab(slab, thickness = state.thickness) {
  state.slab = slab;
  state.thickness = clamp(Math.round(thickness) || 2, 2, THICKEST);
  document.getElementById("slab").value = state.slab;
  document.getElementById("thickness").value = state.thickness;
  document.getElementById("thickness").disabled = slab === "slice";
  redrawAll();
}

function setPrior(on) {
  state.prior = on;
  document.querySelector("[data-act=prior]").setAttribute("aria-pressed", on);
  if (!on && state.selected?.view.prior) state.selected = null;
  if (!on && state.active?.prior) activate(panes.find((pane) => pane.view && !pane.prior));
  if (on && state.active && innerWidth < PAIRS) state.alone = state.active;
  arrange();
  list.draw();
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
  setSlab("slice");
  toggle("invert", false);
}

function help() {
  const dialog = document.getElementById("help");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

const ACTIONS = {
  zoomIn: () => state.active.zoomIn(1.25),
  zoomOut: () => state.active.zoomIn(1 / 1.25),
  play,
  prior: () => setPrior(!state.prior),
  reset,
  help,
};

// --- keys: they are for the active view, wherever the focus is

const windowBy = (centre, width) => setWindow(state.window.centre + centre, state.window.width * width);
const by = (slices) => () => state.active.scroll(state.active.view.wanted + slices);
const move = (dx, dy) => () => {
  if (state.tool === "magnify") state.active.magnifier.moveBy(-dx, -dy);
  else state.active.pan(dx, dy);
};
const nextOf = (all, now) => all[(all.indexOf(now) + 1) % all.length];
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
  d: () => setTool(nextOf(tools(), state.tool)),
  r: () => state.active.ruler.toggle(),
  g: () => setTool(state.tool === "magnify" ? tools()[0] : "magnify"),
  k: play,
  a: () => setSlab(nextOf(SLABS, state.slab)),
  "[": () => setSlab(state.slab, state.thickness - 1),
  "]": () => setSlab(state.slab, state.thickness + 1),
  o: () => exam.prior && setPrior(!state.prior),
  "?": help,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const shifted = event.shiftKey && (letter !== letter.toUpperCase() || letter.startsWith("Arrow"));
  const action = KEYS[shifted ? `Shift+${letter}` : letter];
  const ownKeys =
    (event.target.type === "range" && /^(Arrow|Page|Home|End)/.test(event.key)) ||
    event.target.type === "number" ||
    event.target.matches?.("select");
  const open = document.getElementById("help").open;
  if (!action || ownKeys || (open && letter !== "?")) return;
  if (event.target.dataset?.tool && /^Arrow(Left|Right)/.test(event.key)) return;
  event.preventDefault();
  action();
}

// The tools that an exam needs: without a volume, there is nothing to scroll.
function tools() {
  return TOOLS.slice(exam.views.some((view) => view.slices > 1) ? 0 : 1);
}

// The tools are one stop of the Tab key; arrows go from one to the other.
function onToolKey(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  setTool(tools().at((tools().indexOf(state.tool) + step) % tools().length));
  document.querySelector(`[data-tool="${state.tool}"]`).focus();
}

// The places of the hanging. A breast or a position of which there is no image has none; the list says so.
function places() {
  const there = [...exam.views.map((view) => view.laterality + view.position), ...exam.unread];
  return HANGING.filter(([side, position]) => {
    return there.some((name) => name.startsWith(side)) && there.some((name) => name.endsWith(position));
  });
}

// The images of the prior exam are on the outer sides of their views.
function hang() {
  const blocks = document.querySelectorAll("script.frames");
  exam.views.forEach((view, v) => (view.block = blocks[v]));
  for (const [laterality, position] of places()) {
    const exams = !exam.prior ? [false] : laterality === "R" ? [true, false] : [false, true];
    for (const prior of exams) {
      const views = exam.views.filter((view) => view.laterality === laterality && view.position === position);
      const own = views.filter((view) => view.prior === prior).sort((a, b) => b.slices - a.slices); // the volume opens
      panes.push(new Pane(laterality, position, own, prior));
    }
  }
  document.getElementById("hanging").append(...panes.map((pane) => pane.section));
  for (const pane of panes) if (pane.view) new Hand(pane);
}

// Which views are on the screen, and in how many columns: one view has all of it, two views of a breast halves.
function arrange() {
  const shown = panes.filter((pane) => {
    const same = pane.laterality === state.alone?.laterality && pane.position === state.alone?.position;
    return (state.prior || !pane.prior) && (!state.alone || same);
  });
  for (const pane of panes) pane.section.hidden = !shown.includes(pane);
  const each = state.prior ? 2 : 1;
  const sides = new Set(shown.map((pane) => pane.laterality)).size;
  const columns = sides * each === 1 ? shown.length : sides * each;
  const cells = (count) => `repeat(${count}, minmax(0, 1fr))`;
  const hanging = document.getElementById("hanging");
  hanging.style.gridTemplate = `${cells(Math.ceil(shown.length / columns))} / ${cells(columns)}`;
  hanging.classList.toggle("single", panes.filter((pane) => !pane.prior).length === 1);
  layout();
}

// Controls that this exam has no use for are not shown.
function setUp() {
  const volumes = exam.views.some((view) => view.slices > 1);
  for (const control of document.querySelectorAll("[data-for=volumes]")) control.hidden = !volumes;
  document.querySelector("[data-act=prior]").hidden = !exam.prior;
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
  const [slab, thickness] = ["slab", "thickness"].map((id) => document.getElementById(id));
  slab.addEventListener("change", () => setSlab(slab.value));
  thickness.addEventListener("change", () => setSlab(state.slab, Number(thickness.value)));
  document.addEventListener("keydown", onKey);
  setTool(tools()[0]);
  setSlab(state.slab);
}

hang();
list = new List();
setUp();
setPrior(Boolean(exam.prior) && innerWidth >= PAIRS);
activate(list.shown()[0]?.view.pane ?? panes.find((pane) => pane.view && !pane.prior));
