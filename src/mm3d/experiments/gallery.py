"""Pictures that need pixels and weights. The study draws them when its runs are done, and leaves them with the results.

w.png: how much each slice counts for calcification clusters and masses, against the slices on which they are visible.
row.jpg: one cancer as the systems of the study's gallery see it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from mm3d.data.inputs import grey, prepared_breasts
from mm3d.data.prepare.prepared import PreparedView
from mm3d.data.records import Annotation, Key, keys_of
from mm3d.evaluate.figures import COLOURS, STYLE
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.metrics.hits import iou
from mm3d.evaluate.truth import TruthView
from mm3d.experiments.cohorts import part_of
from mm3d.experiments.results import NOT_FOUND, UNIT, Result, list_annotations, read_cohort, read_tested, threshold_of
from mm3d.experiments.run import check_weights, load_histogram, load_model
from mm3d.experiments.spec import RunSpec, StudySpec
from mm3d.output.predictions import Finding, ViewPrediction
from mm3d.predict.detect import predict_breast
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

W_CURVES, ROW = "w.png", "row.jpg"
SHOWN = 4  # findings in a picture
KINDS = ("calcification", "mass")
BIN, FARTHEST = 0.5, 3.0  # of the mean curve, in halves of the visible range
LEAST_IOU = EvaluateSettings().iou


@dataclass(frozen=True)
class Look:
    """An annotated cancer as a run sees it."""

    run: RunSpec
    prepared: PreparedView
    annotation: Annotation
    predicted: ViewPrediction
    threshold: float  # a finding with at least this score is called

    @property
    def hit(self) -> Finding | None:
        """The highest-scoring finding on the cancer."""
        box = np.array(self.annotation.box)
        on = [one for one in self.predicted.findings if iou(np.array(one.box), box) >= LEAST_IOU]
        return max(on, key=lambda one: one.score, default=None)

    @property
    def weights(self) -> tuple[float, ...]:
        """w of the last head. Empty if the cancer is not called, or its slices are not known."""
        hit = self.hit
        if hit is None or hit.score < self.threshold or self.annotation.first_slice is None:
            return ()
        return hit.slice_weights or ()

    @property
    def visible(self) -> tuple[int, int]:
        """The first and the last slice of the cancer, as stored."""
        assert self.annotation.first_slice is not None
        assert self.annotation.last_slice is not None
        return self.annotation.first_slice, self.annotation.last_slice

    @property
    def slice_right(self) -> bool:
        first, last = self.visible
        return self.hit is not None and self.hit.slice is not None and first <= self.hit.slice <= last


def draw_gallery(study: StudySpec, results: Mapping[str, Result], output: Path) -> None:
    """Draw the curves of the gallery's last run, and the row of all, in the study's folder. `results` has the finished
    jobs by name. Weights that are gone, or are another study's, are refused before anything is drawn."""
    runs = [job.run for job in study.gallery_jobs]
    own = [results[job.name] for job in study.gallery_jobs]
    for result in own:
        if not Path(result.weights).is_file():
            raise InputError(f"{result.weights} is not in {Path().resolve()}.")
        check_weights(Path(result.weights), result.recipe)
    cohort = read_cohort(output)
    thresholds = [threshold_of(result, cohort) for result in own]
    annotations = [list_annotations(*read_tested(study, run)) for run in runs]
    looks = _look(study, runs[-1], own[-1], thresholds[-1], annotations[-1])
    kinds = [[look for look in looks if kind in look.annotation.kind and look.weights] for kind in KINDS]
    if any(kinds):
        draw_w([kind for kind in kinds if kind], output / W_CURVES)
    if looks and len({len(listed) for listed in annotations}) == 1:  # the runs have the same cancers
        number = largest_gain(own[0], own[-1], thresholds[0], thresholds[-1])
        if number is not None:
            seen = [
                _look(study, run, result, threshold, [listed[number]])[0]
                for run, result, threshold, listed in zip(runs, own, thresholds, annotations, strict=True)
            ]
            draw_row(seen, output / ROW)


def largest_gain(first: Result, last: Result, threshold: float, last_threshold: float) -> int | None:
    """The number of the annotation whose score, compared with the run's threshold, gains most from one run to another.
    The first run has it (a box that is just too large is no gain of the last), and the last has it on a right slice."""
    before, after = np.array(first.scores.found["2D"]), np.array(last.scores.found["2D"])
    usable = (before != NOT_FOUND) & (after != NOT_FOUND) & (after == np.array(last.scores.found["3D"]))
    gain = UNIT * (after / last_threshold - before / threshold)
    return int(np.argmax(np.where(usable, gain, -np.inf))) if usable.any() else None


def _look(
    study: StudySpec,
    run: RunSpec,
    result: Result,
    threshold: float,
    annotations: Sequence[tuple[TruthView, Annotation]],
) -> list[Look]:
    """Predict the breasts of the annotations again."""
    path = Path(result.weights)
    model, histogram = load_model(run, path).for_inference(), load_histogram(study, run, path)
    wanted = {view.key for view, _ in annotations}
    seen: dict[Key, tuple[PreparedView, ViewPrediction]] = {}
    for breast in prepared_breasts(*part_of(study, run.test), run.modality):
        keys = dict(zip((view.name for view in breast.breast.views), keys_of(breast.breast), strict=True))
        if not wanted.isdisjoint(keys.values()):
            predicted = predict_breast(model, breast, run.input, histogram)
            for prepared, view in zip(breast.views, predicted.views, strict=True):
                seen[keys[prepared.view.name]] = prepared, view
    return [Look(run, seen[view.key][0], own, seen[view.key][1], threshold) for view, own in annotations]


@contextmanager
def new_picture(
    path: Path, rows: int, columns: int, size: tuple[float, float], dpi: int = 100, **style: Any
) -> Iterator[Any]:
    """Give the axes of a picture (rows, columns), and save it when the block ends."""
    with rc_context(STYLE | style):
        picture = Picture(figsize=size, layout="constrained")
        FigureCanvasAgg(picture)
        yield picture.subplots(rows, columns, squeeze=False)
        options: dict[str, Any] = {"pil_kwargs": {"quality": 85}} if path.suffix == ".jpg" else {}
        with replacing(path) as partial:
            picture.savefig(partial, format=path.suffix[1:], dpi=dpi, **options)


def draw_w(kinds: list[list[Look]], path: Path) -> None:
    """Draw a row for each kind of cancer: the most peaked w, and the mean of all."""
    with new_picture(path, len(kinds), 2, (9.0, 3.0 * len(kinds))) as rows:
        for (one, mean), looks in zip(rows, kinds, strict=True):
            _draw_curve(one, max(looks, key=lambda look: max(look.weights)))
            _draw_mean(mean, looks)


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
    axes.set_title(f"{look.annotation.kind}, score {hit.score:.2f}")
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
    edges = np.arange(-FARTHEST - BIN / 2, FARTHEST + BIN, BIN)
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
    """The cancer on a slice, with as much again around it."""
    x1, y1, x2, y2 = look.prepared.file.geometry.box_to_model(look.annotation.box)
    wide, high = (x2 - x1) / 2, (y2 - y1) / 2
    rows = slice(max(0, int(y1 - high)), int(y2 + high) + 1)
    columns = slice(max(0, int(x1 - wide)), int(x2 + wide) + 1)
    return grey(look.prepared.image()[s, rows, columns])


def draw_row(looks: list[Look], path: Path) -> None:
    """Draw one cancer as several runs see it, side by side, under its kind."""
    with new_picture(path, 1, len(looks), (2.3 * len(looks), 4.2), **{"axes.grid": False}) as rows:
        for axes, look in zip(rows[0], looks, strict=True):
            _draw_look(axes, look)
        rows[0][0].figure.suptitle(looks[0].annotation.kind)


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
    draw_box(axes, look.prepared, look.annotation.box, "#00C853")
    for one in sorted(look.predicted.findings, key=lambda one: -one.score)[:SHOWN]:
        line = "-" if one.score >= look.threshold else ":"
        draw_box(axes, look.prepared, one.box, COLOURS[4], f"{one.score:.2f}", line)
    axes.set_title(title)
    axes.set_axis_off()


def draw_box(
    axes: Axes, view: PreparedView, box: tuple[float, ...], colour: str, text: str = "", line: str = "-"
) -> None:
    """A box in stored pixels on the picture of a prepared view."""
    left, top, right, bottom = box
    x1, y1, x2, y2 = view.file.geometry.box_to_model((left, top, right, bottom))
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1, linestyle=line))
    if text:
        axes.text(x1, y1 - 1, text, color=colour, fontsize=7)
