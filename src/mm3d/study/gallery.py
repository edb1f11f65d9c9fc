"""Pictures that need pixels and weights: the study draws them when its runs are done, and leaves them with the results.

w.png: how much each slice counts for a calcification cluster and for a mass, against the slices on which it is visible.
row.jpg: one cancer as the systems of the study's gallery see it.
"""

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

from mm3d.batches import PreparedBreast, prepared_breasts
from mm3d.cohorts.keys import keys_of
from mm3d.errors import InputError
from mm3d.evaluate.figures import COLOURS, STYLE
from mm3d.evaluate.joined import in_split
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.truth import TruthView, read_truth
from mm3d.files import replacing
from mm3d.inputs import grey
from mm3d.metrics.hits import iou
from mm3d.predict.detect import predict_breast
from mm3d.predictions import Proposal, ViewPrediction
from mm3d.prepare.prepared import PreparedView
from mm3d.records import Finding
from mm3d.study.cohorts import part_of
from mm3d.study.results import NOT_FOUND, Result, judged_findings
from mm3d.study.spec import RunSpec, StudySpec
from mm3d.study.work import histogram_of, model_of

W_CURVES, ROW = "w.png", "row.jpg"
SHOWN = 4  # proposals in a picture
LEAST_IOU = EvaluateSettings().iou


@dataclass(frozen=True)
class Look:
    """A finding as a run sees it."""

    run: RunSpec
    prepared: PreparedView
    finding: Finding
    predicted: ViewPrediction

    @property
    def hit(self) -> Proposal | None:
        """The highest-scoring proposal on the finding."""
        box = np.array(self.finding.box)
        on = [one for one in self.predicted.findings if iou(np.array(one.box), box) >= LEAST_IOU]
        return max(on, key=lambda one: one.score, default=None)


def draw_gallery(study: StudySpec, results: dict[str, Result], folder: Path, output: Path) -> list[str]:
    """Draw what can be drawn of the runs' first results, by name; returns the names of the files."""
    with chdir(folder):  # where all paths of a study are relative to
        return _draw(study, results, output)


def _draw(study: StudySpec, results: dict[str, Result], output: Path) -> list[str]:
    runs = [study.run(name) for name in study.gallery]
    if not runs or any(name not in results for name in study.gallery):
        return []
    last = runs[-1]
    if last.input != "volume":
        raise InputError(f"the last run of the gallery must be of volumes, and {last.name} is of {last.input}.")
    findings = {run.name: _findings(study, run) for run in runs}
    scores = {name: np.array(results[name].scores.found["2D"]) for name in findings}
    drawn = []
    deep = findings[last.name], scores[last.name]
    chosen = [number for number in (_narrowest(*deep), _widest(*deep)) if number is not None]
    if chosen:
        looks = [_look(study, last, results[last.name], findings[last.name][number]) for number in chosen]
        drawn.append(draw_w(looks, output / W_CURVES))
    if len({len(one) for one in findings.values()}) == 1 and len(scores[last.name]):
        number = int(np.argmax(scores[last.name] - scores[runs[0].name]))
        looks = [_look(study, run, results[run.name], findings[run.name][number]) for run in runs]
        drawn.append(draw_row(looks, output / ROW))
    return drawn


def _findings(study: StudySpec, run: RunSpec) -> list[tuple[TruthView, Finding]]:
    """The findings that recall is of, in the order of the results."""
    part = part_of(study, run.test)
    truth = in_split(read_truth(part.folder), part.split)
    return judged_findings(truth, EvaluateSettings(modality=run.modality, leave_out_benign=study.leave_out_benign))


def _extent(finding: Finding) -> int:
    if finding.first_slice is None or finding.last_slice is None:
        return 0
    return finding.last_slice - finding.first_slice + 1


def _narrowest(findings: list[tuple[TruthView, Finding]], scores: NDArray[np.int64]) -> int | None:
    """The calcification cluster, of those with a score in the upper half, that is visible on the fewest slices."""
    return min(_found(findings, scores, "calcification"), key=lambda i: _extent(findings[i][1]), default=None)


def _widest(findings: list[tuple[TruthView, Finding]], scores: NDArray[np.int64]) -> int | None:
    """The mass, of those with a score in the upper half, that is visible on the most slices."""
    return max(_found(findings, scores, "mass"), key=lambda i: _extent(findings[i][1]), default=None)


def _found(findings: list[tuple[TruthView, Finding]], scores: NDArray[np.int64], kind: str) -> list[int]:
    of = [i for i, (_, f) in enumerate(findings) if kind in f.kind and scores[i] != NOT_FOUND and _extent(f)]
    middle = np.median(scores[of]) if of else 0
    return [i for i in of if scores[i] >= middle]


def _look(study: StudySpec, run: RunSpec, result: Result, which: tuple[TruthView, Finding]) -> Look:
    """Predict the finding's breast again."""
    view, finding = which
    breast, prepared = _breast(study, run, view)
    path = Path(result.weights)
    predicted = predict_breast(model_of(run, path).for_inference(), breast, run.input, histogram_of(study, run, path))
    own = next(one for one in predicted.views if one.view == view.key.view)
    return Look(run, prepared, finding, own)


def _breast(study: StudySpec, run: RunSpec, view: TruthView) -> tuple[PreparedBreast, PreparedView]:
    part = part_of(study, run.test)
    for breast in prepared_breasts(part.folder, part.split, run.modality):
        named = dict(zip(keys_of(breast.breast), (own.name for own in breast.breast.views), strict=True))
        if view.key in named:
            return breast, next(one for one in breast.views if one.view.name == named[view.key])
    raise InputError(f"{part.folder} has no view {view.key.name}; make the cohort again.")


def draw_w(looks: list[Look], path: Path) -> str:
    """Slice weights of each finding against the slices on which it is visible; the name of the file."""
    with rc_context(STYLE):
        picture = Picture(figsize=(4.8 * len(looks), 3.2), layout="constrained")
        FigureCanvasAgg(picture)
        for axes, look in zip(picture.subplots(1, len(looks), squeeze=False)[0], looks, strict=True):
            _draw_curve(axes, look)
        _save(picture, path, "png")
    return path.name


def _draw_curve(axes: Axes, look: Look) -> None:
    geometry, finding, hit = look.prepared.file.geometry, look.finding, look.hit
    weights = () if hit is None or hit.slice_weights is None else hit.slice_weights
    axes.plot(range(1, len(weights) + 1), weights, marker="o", color=COLOURS[0])
    if finding.first_slice is not None and finding.last_slice is not None:
        first, last = (geometry.slice_to_model(z) for z in (finding.first_slice, finding.last_slice))
        axes.plot((first + 0.5, last + 1.5), (-0.03, -0.03), color=COLOURS[1], linewidth=5, solid_capstyle="butt")
    if weights:
        inset = axes.inset_axes((0.78, 0.62, 0.22, 0.36))
        inset.imshow(_around(look, int(np.argmax(weights))), cmap="gray", vmin=0, vmax=1)
        inset.set_axis_off()
    score = "" if hit is None else f", score {hit.score:.2f}"
    axes.set(xlabel="slice (bar: visible)", ylabel="w", ylim=(-0.08, 1.02), xlim=(0.5, geometry.slices + 0.5))
    axes.set_title(f"{finding.kind}{score}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _around(look: Look, s: int) -> NDArray[np.float32]:
    """The finding on a slice, with as much again around it."""
    x1, y1, x2, y2 = look.prepared.file.geometry.box_to_model(_four(look.finding.box))
    wide, high = (x2 - x1) / 2, (y2 - y1) / 2
    rows = slice(max(0, int(y1 - high)), int(y2 + high) + 1)
    columns = slice(max(0, int(x1 - wide)), int(x2 + wide) + 1)
    return grey(look.prepared.image()[s, rows, columns])


def draw_row(looks: list[Look], path: Path) -> str:
    """One finding as several runs see it, side by side; the name of the file."""
    with rc_context(STYLE | {"axes.grid": False}):
        picture = Picture(figsize=(2.3 * len(looks), 4.2), layout="constrained")
        FigureCanvasAgg(picture)
        for axes, look in zip(picture.subplots(1, len(looks), squeeze=False)[0], looks, strict=True):
            _draw_look(axes, look)
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
        _box(axes, geometry.box_to_model(_four(one.box)), COLOURS[4], f"{one.score:.2f}")
    axes.set_title(title)
    axes.set_axis_off()


def _four(box: tuple[float, ...]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box
    return x1, y1, x2, y2


def _box(axes: Axes, box: tuple[float, float, float, float], colour: str, text: str) -> None:
    x1, y1, x2, y2 = box
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1))
    if text:
        axes.text(x1, y1 - 1, text, color=colour, fontsize=7)


def _save(picture: Picture, path: Path, kind: str) -> None:
    options: dict[str, Any] = {"pil_kwargs": {"quality": 85}} if kind == "jpg" else {}
    with replacing(path) as partial:
        picture.savefig(partial, format=kind, dpi=100, **options)
