"""`mm3d demo`: a synthetic exam with a cancer, as DICOM files, and all that `mm3d predict` makes of it."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydicom import Dataset
from rich.console import Console

from mm3d.data.datasets.folder import exam_code, files_in
from mm3d.data.dicom.header import read_dataset
from mm3d.data.records import Annotation
from mm3d.evaluate.metrics.hits import iou
from mm3d.model import weights
from mm3d.output.predictions import Finding, Predictions, read_json
from mm3d.phantom.dicom import write_view
from mm3d.phantom.rendered import RenderedBreast, RenderedView
from mm3d.phantom.trial import Trial, draw_case, render_breast
from mm3d.predict.detect import PredictSettings
from mm3d.predict.exam import RECORD
from mm3d.predict.output import RESULTS, clear_results, read_record
from mm3d.predict.run import Options, predict_exams
from mm3d.shared.console import say
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

HIT = 0.25  # IoU, as in the evaluation
NAMES = ("lcc.dcm", "lmlo.dcm", "rcc.dcm", "rmlo.dcm")
CONTRAST = 1.7  # of the trial that the shipped weights were trained on


def demo(output: Path, seed: int, weights_path: Path | None, scale: str = "mini") -> int:
    """Write the exam and its results into `output`, and tell what was found and what there was. Returns the exit code.

    The last line has it all: how many cancers were found, what else is marked, and which file to open.
    """
    weights.find(weights_path)  # first of all: without weights there is nothing to show
    _check(output)
    console = Console()
    say(console, "Making a synthetic exam: both breasts of a patient who has a cancer, CC and MLO, tomosynthesis.")
    clear_results(output)  # an earlier demo's, which may be of another exam or other weights
    breasts = make_exam(output / "exam", seed, scale)
    code = predict_exams([output / "exam"], output, Options(PredictSettings(), weights_path), time.perf_counter())
    if code == 0:
        threshold = json.loads((output / RECORD).read_text())["method"]["operating_point"]["threshold"]
        *lines, last = compare(breasts, read_json(output / "predictions.json"), threshold)
        for line in lines:
            say(console, line)
        say(console, f"{last} Open {output / 'report.html'} in a browser.")
    return code


def _check(output: Path) -> None:
    """Nothing is written over but an earlier demo."""
    folder = output / "exam"
    studies = set()
    for path in files_in(folder) if folder.is_dir() else []:
        dataset = read_dataset(path, ["PatientName", "StudyInstanceUID"]) if path.name in NAMES else Dataset()
        if not str(dataset.get("PatientName", "")).startswith("Virtual^"):
            raise InputError(f"{folder} holds files that no demo made; give another folder with -o.")
        studies.add(exam_code(str(dataset.get("StudyInstanceUID", ""))))
    record = read_record(output)
    own = bool(studies) if record is None else record.get("exam") in studies
    if not own and any((output / name).exists() for name in RESULTS):
        raise InputError(f"{output} holds the results of another exam; give another folder with -o.")


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
    """A line for each cancer in each view, and one that counts them, and the marks that are on none."""
    said = {view.view: view.findings for _, view in predictions.views()}
    there = found = others = 0
    for view in (view for breast in breasts for view in breast.views):
        proposals = said[_name(view)]
        cancers = [finding for finding in view.findings if finding.malignant]
        marks = [proposal for proposal in proposals if proposal.score >= threshold]
        for cancer in cancers:
            yield f"Cancer in {_name(view).upper()}{_slice(cancer.slice)}: {_found(cancer, proposals, threshold)}"
        there += len(cancers)
        found += sum(any(_hits(mark, cancer) for mark in marks) for cancer in cancers)
        others += sum(not any(_hits(mark, cancer) for cancer in cancers) for mark in marks)
    cancers_in_views = f"{there} cancer{'s' * (there != 1)}, counted in each view"
    yield f"Found {found} of {cancers_in_views}; {others} other mark{'s' * (others != 1)}."


def _found(cancer: Annotation, proposals: tuple[Finding, ...], threshold: float) -> str:
    """Whether a cancer is marked, by the highest proposal that hits it."""
    hits = [proposal for proposal in proposals if _hits(proposal, cancer)]
    if not hits:
        return "missed."
    best = max(hits, key=lambda proposal: proposal.score)
    where = f"score {best.score:.2f}{_slice(best.slice)}"
    if best.score < threshold:
        return f"missed; there is a finding of {where}, but marked is what scores at least {threshold:g}."
    return f"found, {where}."


def _hits(proposal: Finding, cancer: Annotation) -> bool:
    return bool(iou(np.array(proposal.box), np.array(cancer.box)) >= HIT)


def _slice(z: float | None) -> str:
    """For people, who count slices from 1."""
    return "" if z is None else f", slice {round(z) + 1}"


def _name(view: RenderedView) -> str:
    return (view.laterality + view.position).lower()
