"""`mm3d demo`: make a synthetic exam with a cancer as DICOM files, and predict it; then two pairs of real films."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydicom import Dataset

from mm3d.cli.films import film_breasts, write_films
from mm3d.data.datasets.folder import exam_code, list_files
from mm3d.data.dicom.header import read_dataset
from mm3d.data.records import Annotation, Breast, View
from mm3d.evaluate.metrics.hits import iou
from mm3d.model.weights import find
from mm3d.output.predictions import Finding, Predictions, read_json
from mm3d.output.record import read_record
from mm3d.output.writers import FILES
from mm3d.phantom.dicom import write_view
from mm3d.phantom.trial import Trial, draw_case, render_breast
from mm3d.predict.run import Options, predict_exams
from mm3d.predict.settings import PredictSettings
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import refuse_files, remove_partial, replacing

NAMES = ("lcc.dcm", "lmlo.dcm", "rcc.dcm", "rmlo.dcm")
HIT = 0.25  # IoU, as in the evaluation
CONTRAST = 1.7  # of the trial that the shipped weights were trained on


def demo(output: Path, seed: int, weights: Path | None, scale: str = "mini") -> int:
    """Write the exams and their results into `output`, and tell which cancers were found. Returns the exit code.

    Without weights, each exam gets those of ours for such breasts. With weights, the films are left out.
    """
    find(weights, synthetic=True)  # without weights there is nothing to show
    films = list(enumerate(film_breasts(), 1)) if weights is None else []
    for folder in (output, *(output / f"film-{number}" for number, _ in films)):
        _check_folder(folder)
    console = Console()
    for number, breast in films:
        say(console, f"Real films, {number} of {len(films)}: CC and MLO of a patient of CBIS-DDSM who has a cancer.")
        folder = output / f"film-{number}"
        _clear(folder)
        if code := _predict(folder, [write_films(breast, folder / "exam")], None, console):
            return code
    say(console, "Making a synthetic exam: both breasts of a patient who has a cancer, CC and MLO, tomosynthesis.")
    _clear(output)
    return _predict(output, make_exam(output / "exam", seed, scale), weights, console)


def _clear(folder: Path) -> None:
    """Remove the results of an earlier demo. The record, which says that they are, is the last."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    remove_partial(folder / "exam")


def _predict(folder: Path, breasts: list[Breast], weights: Path | None, console: Console) -> int:
    """Predict the exam of a folder, and tell which of its cancers were found. Returns the exit code."""
    code = predict_exams([folder / "exam"], folder, Options(PredictSettings(), weights), time.perf_counter())
    record = read_record(folder)
    if code == 0 and record is not None:
        threshold = record["method"]["operating_point"]["threshold"]
        lines = compare(breasts, read_json(folder / "predictions.json"), threshold)
        lines[-1] += f" Open {folder / 'report.html'} in a browser."
        for line in lines:
            say(console, line)
    return code


def _check_folder(output: Path) -> None:
    """Refuse to replace anything but an earlier demo."""
    folder = output / "exam"
    exams = set()
    for path in list_files(folder)[0] if folder.is_dir() else []:
        header = read_dataset(path, ["PatientName", "StudyInstanceUID"]) if path.name in NAMES else Dataset()
        if not str(header.get("PatientName", "")).startswith(("Virtual^", "CBIS-DDSM^")):
            raise InputError(f"{folder} holds files that no demo made; give another folder with -o.")
        exams.add(exam_code(str(header.get("StudyInstanceUID", ""))))
    record = read_record(output)
    if record is None:
        refuse_files(output, FILES, "a demo")
    elif record.get("exam") not in exams:
        raise InputError(f"{output} holds the results of another exam; give another folder with -o.")


def make_exam(folder: Path, seed: int, scale: str) -> list[Breast]:
    """Write the tomosynthesis of the first patient of a trial who has a cancer, one DICOM file for each view."""
    trial = Trial(seed=seed, breasts=1, scale=scale, contrast=CONTRAST)
    first = next(n for n in range(0, 10_000, 2) if any(draw_case(trial, n + i)[0] == "malignant" for i in (0, 1)))
    breasts = []
    for index in (first, first + 1):
        breast, images = render_breast(trial, index)
        images = [image for image in images if image.view.modality == "DBT"]
        for image in images:
            with replacing(folder / f"{_name(image.view)}.dcm") as partial:
                write_view(image, f"demo {scale} {seed}", partial)
        breasts.append(replace(breast, views=tuple(image.view for image in images)))
    return breasts


def compare(breasts: list[Breast], predictions: Predictions, threshold: float) -> list[str]:
    """A line for each cancer in each view, and a last line that counts them and the marks that are on none."""
    predicted = {view.view: view for _, view in predictions.views()}
    lines, found, others = [], 0, 0
    for view in (view for breast in breasts for view in breast.views):
        prediction = predicted[_name(view)]
        marked = prediction.marked(threshold)
        cancers = [annotation for annotation in view.annotations or () if annotation.malignant]
        for cancer in cancers:
            hits = [finding for finding in prediction.findings if _hits(finding, cancer)]
            found += any(finding in marked for finding in hits)
            where = f"{_name(view).upper()}{_slice(cancer.slice)}{_visible(cancer)}"
            lines.append(f"Cancer in {where}: {_describe(hits, cancer, threshold)}")
        others += sum(not any(_hits(finding, cancer) for cancer in cancers) for finding in marked)
    counted = f"{len(lines)} cancer{'s' * (len(lines) != 1)}, counted in each view"
    return [*lines, f"Box found for {found} of {counted}; {others} other mark{'s' * (others != 1)}."]


def _describe(hits: list[Finding], cancer: Annotation, threshold: float) -> str:
    """Whether a cancer is marked, given the findings that hit it, and how far the slice is off."""
    if not hits:
        return "missed."
    best = max(hits, key=lambda finding: finding.score)
    where = f"score {best.score:.2f}{_slice(best.slice)}"
    if best.score >= threshold:
        return f"box found, {where}{_compare_slices(best, cancer)}."
    return f"missed; there is a finding of {where}, but only scores of at least {threshold:.3g} are marked."


def _hits(finding: Finding, cancer: Annotation) -> bool:
    return bool(iou(np.array(finding.box), np.array(cancer.box)) >= HIT)


def _compare_slices(finding: Finding, cancer: Annotation) -> str:
    """How far the finding's slice is from the cancer's, and whether the cancer is visible on it, if both are known."""
    if finding.slice is None or cancer.slice is None:
        return ""
    off = abs(round(finding.slice) - cancer.slice)
    text = f", {off} off" if off else ", the right one"
    if cancer.first_slice is None or cancer.last_slice is None:
        return text
    inside = cancer.first_slice <= round(finding.slice) <= cancer.last_slice
    return f"{text}, {'inside' if inside else 'outside'} the visible range"


def _visible(cancer: Annotation) -> str:
    """The slices on which a cancer is visible, for people."""
    if cancer.first_slice is None or cancer.last_slice is None:
        return ""
    return f" (visible on {cancer.first_slice + 1} to {cancer.last_slice + 1})"


def _slice(z: float | None) -> str:
    """A slice for people, who count from 1."""
    return "" if z is None else f", slice {round(z) + 1}"


def _name(view: View) -> str:
    return (view.laterality + view.position).lower()
