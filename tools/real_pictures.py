"""The pictures of `measure_real.py`: contact sheets and the figures of docs/real.md.

A sheet shows the first patients by number, so that nobody chooses what is shown.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from mm3d.data.inputs import grey
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.evaluate.figures import COLOURS
from mm3d.experiments.gallery import draw_box, new_picture
from mm3d.output.predictions import BreastPrediction, ViewPrediction

PATIENTS, SHOWN, COLUMNS = 10, 3, 8
FIGURE = 600  # pixels
MALIGNANT, BENIGN, FOUND = COLOURS[2], COLOURS[5], COLOURS[4]


def join_figures(files: Sequence[Path], path: Path) -> None:
    """Figures side by side, in few colours: for docs/real.md."""
    figures = [Image.open(file).convert("RGB") for file in files]
    figures = [
        figure.resize((FIGURE, figure.height * FIGURE // figure.width), Image.Resampling.LANCZOS) for figure in figures
    ]
    joined = Image.new("RGB", (FIGURE * len(figures), max(figure.height for figure in figures)), "white")
    for number, figure in enumerate(figures):
        joined.paste(figure, (number * FIGURE, 0))
    joined.quantize(200, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def draw_sheet(
    breasts: Sequence[PreparedBreast], predicted: Sequence[BreastPrediction], threshold: float, path: Path
) -> None:
    """All views of the first patients. Green: cancer; blue: benign; orange: what was found, marked or (dotted) not."""
    patients = sorted({breast.breast.patient for breast in breasts})[:PATIENTS]
    pairs = zip(breasts, predicted, strict=True)
    shown = sorted((pair for pair in pairs if pair[0].breast.patient in patients), key=lambda pair: pair[0].breast.name)
    views = [
        (breast.breast, view, own) for breast, one in shown for view, own in zip(breast.views, one.views, strict=True)
    ]
    rows = -(-len(views) // COLUMNS)
    with new_picture(path, rows, COLUMNS, (2.0 * COLUMNS, 3.4 * rows), **{"axes.grid": False}) as axes:
        for place in axes.flat:
            place.set_axis_off()
        for place, (breast, view, own) in zip(axes.flat, views, strict=False):
            place.set_title(f"{breast.patient} {own.view}", fontsize=7)
            _draw_view(place, view, own, threshold)


def _draw_view(axes: Axes, view: PreparedView, own: ViewPrediction, threshold: float) -> None:
    axes.imshow(np.max(grey(view.image()), axis=0), cmap="gray", vmin=0, vmax=1)
    for annotation in view.view.annotations or ():
        draw_box(axes, view, annotation.box, MALIGNANT if annotation.malignant else BENIGN)
    for finding in sorted(own.findings, key=lambda one: -one.score)[:SHOWN]:
        line = "-" if finding.score >= threshold else ":"
        draw_box(axes, view, finding.box, FOUND, f"{finding.score:.2f}", line)
