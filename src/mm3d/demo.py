"""`mm3d demo`: a synthetic exam with a cancer, as DICOM files, and all that `mm3d predict` makes of it."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from mm3d.dicom.write import write_view
from mm3d.files import replacing
from mm3d.metrics.hits import iou
from mm3d.model import weights
from mm3d.phantom.rendered import RenderedBreast, RenderedView
from mm3d.phantom.trial import Trial, draw_case, render_breast
from mm3d.predict.detect import PredictSettings
from mm3d.predict.exam import RECORD
from mm3d.predict.run import Options, clear_results, run
from mm3d.predictions import Predictions, Proposal, read_json
from mm3d.records import Finding

HIT = 0.25  # IoU, as in the evaluation
CONTRAST = 2.0  # of the trial that the shipped weights were trained on


def demo(output: Path, seed: int, weights_path: Path | None, scale: str = "mini") -> int:
    """Write the exam and its results into `output`, and tell what was found and what there was. Returns the exit code.

    The last line has it all: where the cancer is, whether it was found, and which file to open.
    """
    path = weights.find(weights_path)  # first of all: without weights there is nothing to show
    console = Console()
    _say(console, "Making a synthetic exam: both breasts of a patient who has a cancer, CC and MLO, tomosynthesis.")
    breasts = make_exam(output / "exam", seed, scale)
    clear_results(output)  # an earlier demo's may be of other weights
    code = run([output / "exam"], output, Options(PredictSettings(), weights_path), time.perf_counter())
    if code == 0:
        _say(console, f"Weights: {weights.read_header(path).intended_use}")
        threshold = json.loads((output / RECORD).read_text())["method"]["operating_point"]["threshold"]
        told = " ".join(compare(breasts, read_json(output / "predictions.json"), threshold))
        _say(console, f"{told} Open {output / 'report.html'} in a browser.")
    return code


def make_exam(folder: Path, seed: int, scale: str) -> list[RenderedBreast]:
    """Write the tomosynthesis of the first patient of a trial who has a cancer, a DICOM file for each view."""
    trial = Trial(seed=seed, breasts=1, scale=scale, contrast=CONTRAST)
    first = next(n for n in range(0, 10_000, 2) if any(draw_case(trial, n + i)[0] == "malignant" for i in (0, 1)))
    breasts = []
    for index in (first, first + 1):
        breast = render_breast(trial, index)
        breast = replace(breast, views=tuple(view for view in breast.views if view.modality == "DBT"))
        for view in breast.views:
            with replacing(folder / f"{_name(view)}.dcm") as partial:
                write_view(view, breast, f"demo {scale} {seed}", partial)
        breasts.append(breast)
    return breasts


def compare(breasts: list[RenderedBreast], predictions: Predictions, threshold: float) -> Iterator[str]:
    """Where each cancer is in each view, and what the detector says there."""
    said = {view.view: view.findings for _, view in predictions.views()}
    for breast in breasts:
        for view in breast.views:
            for finding in view.findings:
                if finding.malignant:
                    yield (
                        f"There is a cancer in {_name(view).upper()}, {_place(finding.box, finding.slice)}: "
                        f"{_found(finding, said[_name(view)], threshold)}"
                    )


def _found(finding: Finding, proposals: tuple[Proposal, ...], threshold: float) -> str:
    """The highest proposal that hits a finding, and whether it is marked."""
    for rank, proposal in enumerate(proposals, 1):  # the highest score first
        if iou(np.array(proposal.box), np.array(finding.box)) >= HIT:
            z = None if proposal.slice is None else round(proposal.slice)
            where = f"score {proposal.score:.2f}, {_place(proposal.box, z)}"
            if proposal.score < threshold:
                return f"not marked; below the operating point there is number {rank} of the view, {where}."
            return f"found, number {rank} of the view, {where}."
    return "not found."


def _place(box: tuple[float, ...], z: int | None) -> str:
    """For people, who count slices from 1."""
    x1, y1, x2, y2 = (round(edge) for edge in box)
    where = f"x {x1} to {x2}, y {y1} to {y2}"
    return where if z is None else f"slice {z + 1}, {where}"


def _name(view: RenderedView) -> str:
    return (view.laterality + view.position).lower()


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
