"""Pictures that need pixels and weights: the study draws them when its runs are done, and leaves them with the results.

w.png: how much each slice counts for calcification clusters and masses, against the slices on which they are visible.
row.jpg: one cancer as the systems of the study's gallery see it.
"""

from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mm3d.data.batches import prepared_breasts
from mm3d.data.datasets.keys import Key, keys_of
from mm3d.data.inputs import grey
from mm3d.data.prepare.prepared import PreparedView
from mm3d.data.records import Annotation
from mm3d.evaluate.figures import COLOURS, STYLE
from mm3d.evaluate.metrics.hits import iou
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.truth import TruthView, read_truth
from mm3d.experiments.cohorts import part_of
from mm3d.experiments.results import NOT_FOUND, UNIT, Result, judged_findings, read_cohort, threshold_of
from mm3d.experiments.spec import RunSpec, StudySpec
from mm3d.experiments.work import histogram_of, model_of
from mm3d.output.predictions import Finding, ViewPrediction
from mm3d.predict.detect import predict_breast
from mm3d.shared.files import replacing

W_CURVES, ROW = "w.png", "row.jpg"
SHOWN = 4  # proposals in a picture
KINDS = ("calcification", "mass")
BIN, REACH = 0.5, 3.0  # of the mean curve, in halves of the visible range
LEAST_IOU = EvaluateSettings().iou


@dataclass(frozen=True)
class Look:
    """A finding as a run sees it."""

    run: RunSpec
    prepared: PreparedView
    finding: Annotation
    predicted: ViewPrediction
    threshold: float  # what is called has at least this score

    @property
    def hit(self) -> Finding | None:
        """The highest-scoring proposal on the finding."""
        box = np.array(self.finding.box)
        on = [one for one in self.predicted.findings if iou(np.array(one.box), box) >= LEAST_IOU]
        return max(on, key=lambda one: one.score, default=None)

    @property
    def weights(self) -> tuple[float, ...]:
        """w of the last head; empty if the finding is not called or its slices are not known."""
        hit = self.hit
        called = hit is not None and hit.score >= self.threshold and self.finding.first_slice is not None
        return (hit.slice_weights or ()) if hit is not None and called else ()

    @property
    def visible(self) -> tuple[int, int]:
        """The first and the last slice of the finding, as stored."""
        assert self.finding.first_slice is not None
        assert self.finding.last_slice is not None
        return self.finding.first_slice, self.finding.last_slice

    @property
    def slice_right(self) -> bool:
        first, last = self.visible
        return self.hit is not None and self.hit.slice is not None and first <= self.hit.slice <= last


def draw_gallery(study: StudySpec, results: dict[str, Result], folder: Path, output: Path) -> list[str]:
    """Draw what can be drawn of the runs' first results, by name, to where the results are; the names of the files."""
    with chdir(folder):  # where all paths of a study are relative to
        return _draw(study, results, output)


def _draw(study: StudySpec, results: dict[str, Result], output: Path) -> list[str]:
    runs = [study.run(name) for name in study.gallery]
    if not runs or any(name not in results for name in study.gallery):
        return []
    last = runs[-1]
    cohort = read_cohort(output)
    findings = {run.name: _findings(study, run) for run in runs}
    thresholds = {run.name: threshold_of(results[run.name], cohort) for run in runs}
    drawn = []
    looks = _looks(study, last, results[last.name], findings[last.name], thresholds[last.name])
    kinds = [[look for look in looks if kind in look.finding.kind and look.weights] for kind in KINDS]
    if any(kinds):
        drawn.append(draw_w([kind for kind in kinds if kind], output / W_CURVES))
    if len({len(one) for one in findings.values()}) == 1 and looks:
        first, final = (results[run.name] for run in (runs[0], last))
        number = largest_gain(first, final, thresholds[first.run], thresholds[final.run])
        if number is not None:
            seen = [
                _looks(study, run, results[run.name], [findings[run.name][number]], thresholds[run.name])[0]
                for run in runs
            ]
            drawn.append(draw_row(seen, output / ROW))
    return drawn


def largest_gain(first: Result, last: Result, threshold: float, last_threshold: float) -> int | None:
    """The finding whose score, compared with the run's threshold, gains most from one run to another. The first
    proposes it (a box that is just too large is no gain of the last), the last proposes it on a right slice."""
    before, after = np.array(first.scores.found["2D"]), np.array(last.scores.found["2D"])
    usable = (before != NOT_FOUND) & (after != NOT_FOUND) & (after == np.array(last.scores.found["3D"]))
    gain = UNIT * (after / last_threshold - before / threshold)
    return int(np.argmax(np.where(usable, gain, -np.inf))) if usable.any() else None


def _findings(study: StudySpec, run: RunSpec) -> list[tuple[TruthView, Annotation]]:
    """The findings that recall is of, in the order of the results."""
    part = part_of(study, run.test)
    truth = read_truth(part.folder).in_split(part.split)
    return judged_findings(truth, EvaluateSettings(modality=run.modality, leave_out_benign=study.leave_out_benign))


def _looks(
    study: StudySpec, run: RunSpec, result: Result, findings: Sequence[tuple[TruthView, Annotation]], threshold: float
) -> list[Look]:
    """Predict the findings' breasts again."""
    part, path = part_of(study, run.test), Path(result.weights)
    model, histogram = model_of(run, path).for_inference(), histogram_of(study, run, path)
    wanted = {view.key for view, _ in findings}
    seen: dict[Key, tuple[PreparedView, ViewPrediction]] = {}
    for breast in prepared_breasts(part.folder, part.split, run.modality):
        keys = dict(zip((view.name for view in breast.breast.views), keys_of(breast.breast), strict=True))
        if wanted.isdisjoint(keys.values()):
            continue
        predicted = predict_breast(model, breast, run.input, histogram)
        for prepared, view in zip(breast.views, predicted.views, strict=True):
            seen[keys[prepared.view.name]] = prepared, view
    return [
        Look(run, prepared, finding, predicted, threshold)
        for view, finding in findings
        for prepared, predicted in [seen[view.key]]
    ]


def draw_w(kinds: list[list[Look]], path: Path) -> str:
    """A row for each kind of finding: the most peaked w, and the mean of all; the name of the file."""
    with rc_context(STYLE):
        picture = Picture(figsize=(9.0, 3.0 * len(kinds)), layout="constrained")
        FigureCanvasAgg(picture)
        for (one, all_), looks in zip(picture.subplots(len(kinds), 2, squeeze=False), kinds, strict=True):
            _draw_curve(one, max(looks, key=lambda look: max(look.weights)))
            _draw_mean(all_, looks)
        _save(picture, path, "png")
    return path.name


def _draw_curve(axes: Axes, look: Look) -> None:
    geometry, weights, hit = look.prepared.file.geometry, look.weights, look.hit
    assert hit is not None
    axes.plot(range(1, len(weights) + 1), weights, marker="o", color=COLOURS[0])
    first, last = (geometry.slice_to_model(z) for z in look.visible)
    _draw_visible(axes, first + 0.5, last + 1.5)
    inset = axes.inset_axes((0.78, 0.62, 0.22, 0.36))
    inset.imshow(_around(look, int(np.argmax(weights))), cmap="gray", vmin=0, vmax=1)
    inset.set_axis_off()
    axes.set(xlabel="slice (bar: visible)", ylabel="w", ylim=(-0.08, 1.02), xlim=(0.5, geometry.slices + 0.5))
    axes.set_title(f"{look.finding.kind}, score {hit.score:.2f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_mean(axes: Axes, looks: list[Look]) -> None:
    at, means = mean_weights(looks)
    axes.plot(at, means, marker="o", color=COLOURS[0])
    axes.axhline(1.0, color="0.5", linewidth=1, linestyle="--")
    _draw_visible(axes, -1.0, 1.0)
    right = np.mean([look.slice_right for look in looks])
    axes.set(xlabel="distance from its middle, in halves of the visible range", ylabel="w, 1: all slices alike")
    axes.set_title(f"mean of {len(looks)}; slice right: {right:.0%}")


def mean_weights(looks: Sequence[Look]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of S w, which is 1 where all slices count alike, by the distance from the middle of the visible range
    in halves of the range: within it from -1 to 1."""
    edges = np.arange(-REACH - BIN / 2, REACH + BIN, BIN)
    distances, weights = [], []
    for look in looks:
        geometry, (first, last) = look.prepared.file.geometry, look.visible
        own = np.array([geometry.slice_to_stored(s) for s in range(len(look.weights))])
        distances.append((own - (first + last) / 2) / ((last - first + 1) / 2))
        weights.append(np.array(look.weights) * len(look.weights))
    together = np.concatenate(distances)
    count = np.histogram(together, edges)[0]
    total = np.histogram(together, edges, weights=np.concatenate(weights))[0]
    enough = count >= max(1, len(looks) // 10)
    return ((edges[1:] + edges[:-1]) / 2)[enough], total[enough] / count[enough]


def _draw_visible(axes: Axes, first: float, last: float) -> None:
    """A bar at the bottom of the axes."""
    low = axes.get_xaxis_transform()
    axes.plot((first, last), (0.02, 0.02), color=COLOURS[1], linewidth=5, solid_capstyle="butt", transform=low)


def _around(look: Look, s: int) -> NDArray[np.float32]:
    """The finding on a slice, with as much again around it."""
    x1, y1, x2, y2 = look.prepared.file.geometry.box_to_model(_four(look.finding.box))
    wide, high = (x2 - x1) / 2, (y2 - y1) / 2
    rows = slice(max(0, int(y1 - high)), int(y2 + high) + 1)
    columns = slice(max(0, int(x1 - wide)), int(x2 + wide) + 1)
    return grey(look.prepared.image()[s, rows, columns])


def draw_row(looks: list[Look], path: Path) -> str:
    """One finding, whose kind is told above, as several runs see it, side by side; the name of the file."""
    with rc_context(STYLE | {"axes.grid": False}):
        picture = Picture(figsize=(2.3 * len(looks), 4.2), layout="constrained")
        FigureCanvasAgg(picture)
        for axes, look in zip(picture.subplots(1, len(looks), squeeze=False)[0], looks, strict=True):
            _draw_look(axes, look)
        picture.suptitle(looks[0].finding.kind)
        _save(picture, path, "jpg")
    return path.name


def _draw_look(axes: Axes, look: Look) -> None:
    geometry = look.prepared.file.geometry
    pixels = look.prepared.image()
    shown = look.hit or max(look.predicted.findings, key=lambda one: one.score, default=None)
    title = look.run.label
    if look.run.input in ("volume", "slices") and shown is not None and shown.slice is not None:
        s = geometry.slice_to_model(int(shown.slice))
        image, title = pixels[s], f"{title}, slice {s + 1} of {len(pixels)}"
    else:
        image = pixels.max(axis=0)
    axes.imshow(grey(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    _box(axes, geometry.box_to_model(_four(look.finding.box)), "#00C853", "")
    best = sorted(look.predicted.findings, key=lambda one: -one.score)[:SHOWN]
    for one in best:
        line = "-" if one.score >= look.threshold else ":"
        _box(axes, geometry.box_to_model(_four(one.box)), COLOURS[4], f"{one.score:.2f}", line)
    axes.set_title(title)
    axes.set_axis_off()


def _four(box: tuple[float, ...]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box
    return x1, y1, x2, y2


def _box(axes: Axes, box: tuple[float, float, float, float], colour: str, text: str, line: str = "-") -> None:
    x1, y1, x2, y2 = box
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1, linestyle=line))
    if text:
        axes.text(x1, y1 - 1, text, color=colour, fontsize=7)


def _save(picture: Picture, path: Path, kind: str) -> None:
    options: dict[str, Any] = {"pil_kwargs": {"quality": 85}} if kind == "jpg" else {}
    with replacing(path) as partial:
        picture.savefig(partial, format=kind, dpi=100, **options)
