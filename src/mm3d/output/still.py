"""One picture of an exam: a slice of each view, with the boxes of what is marked."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mm3d.output.predictions import Finding
from mm3d.output.result import ExamResult, ViewResult
from mm3d.shared.errors import InputError

MARKED, BELOW = "#ffb000", "#9aa0a6"  # amber as in the report; grey: a finding below the operating point
HEIGHT, WIDEST = 4.5, 12.0  # inches


class Still(Figure):
    """A figure that a notebook shows as the result of a cell."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=100)
        return content.getvalue()


def draw_exam(result: ExamResult, view: str | None = None, slice_: int | None = None) -> Still:
    """Draw views with their boxes.

    Parameters
    ----------
    result : the exam.
    view : only this one, such as lcc; not given: all.
    slice_ : a slice of this view, from 0; not given: that of the highest marked finding of each view, or else of its
        highest finding, whose box is grey.
    """
    views = [one for one in result.views if view is None or one.view == view.lower()]
    if not views:
        known = ", ".join(one.view for one in result.views)
        raise InputError(f"The exam has no view {view!r}; it has {known}.")
    if slice_ is not None and view is None:
        raise InputError("A slice is of one view; name the view, too.")
    widths = [one.frames.shape[2] / one.frames.shape[1] for one in views]
    width = min(WIDEST, max(3.0, HEIGHT * sum(widths)))
    figure = Still(figsize=(width, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(views), squeeze=False, width_ratios=widths)[0]
    for axis, one in zip(axes, views, strict=True):
        _draw_view(axis, one, result.threshold, slice_)
    return figure


def _draw_view(axes: Axes, view: ViewResult, threshold: float, slice_: int | None) -> None:
    marked = view.marked(threshold)
    shown = marked or sorted(view.findings, key=lambda finding: -finding.score)[:1]
    z = _choose_slice(view, shown, slice_)
    axes.imshow(view.frames[z], cmap="gray", vmin=0, vmax=255)
    for finding in shown:
        if finding.slice is None or round(finding.slice) == z:
            _draw_box(axes, finding, MARKED if marked else BELOW)
    title = view.view.upper()
    if len(view.frames) > 1:
        title += f", slice {z + 1} of {len(view.frames)}"
    elsewhere = sum(finding.slice is not None and round(finding.slice) != z for finding in marked)
    if elsewhere:
        title += f"\n{elsewhere} marked on other slices"
    axes.set_title(title, fontsize="medium")
    axes.set_axis_off()


def _choose_slice(view: ViewResult, shown: Sequence[Finding], slice_: int | None) -> int:
    count = len(view.frames)
    if slice_ is not None:
        if not 0 <= slice_ < count:
            raise InputError(f"{view.name} has the slices 0 to {count - 1}, and no slice {slice_}.")
        return slice_
    best = next((finding.slice for finding in shown if finding.slice is not None), None)
    return count // 2 if best is None else round(best)


def _draw_box(axes: Axes, finding: Finding, colour: str) -> None:
    x1, y1, x2, y2 = finding.box
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.6))
    behind = {"facecolor": "black", "edgecolor": "none", "alpha": 0.6, "pad": 1}
    score = f"{finding.score:.2f}"
    axes.annotate(score, (x1, y1), (0, 4), textcoords="offset points", color=colour, fontsize="small", bbox=behind)
