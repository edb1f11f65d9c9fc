"""`mm3d quantize`: weights whose backbone is int8, with a table of their accuracy beside float32."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from mm3d.cli.import_weights import check_output
from mm3d.data.inputs import Histogram, Image, InputName, has_slices, make_input, modality_of, prepared_breasts
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.evaluate.metrics.hits import iou
from mm3d.evaluate.truth import read_truth
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.model.quantize import quantize
from mm3d.output.predictions import BreastPrediction, Finding
from mm3d.phantom.run import PREPARED, make_trial
from mm3d.phantom.trial import Trial
from mm3d.predict.detect import predict_breast
from mm3d.predict.run import Options, choose_input
from mm3d.predict.settings import PredictSettings
from mm3d.shared.config import from_dict
from mm3d.shared.console import Console, say, show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import working_folder
from mm3d.train.cohorts import ValidationCohort
from mm3d.train.config import CohortConfig
from mm3d.train.data import TrainingBreast
from mm3d.train.validate import measure

CALIBRATION_SLICES = 128  # with all their pixels, far more than the few ranges of a network need
CALIBRATION_BREASTS = 8  # of a virtual trial: as many slices, with two views of eight slices each
FIGURES = {"recall@0.25": "R@0.25", "recall@0.5": "R@0.5", "auc": "AUC"}
SAME_SLICE = "same_slice"
SAME = 0.5  # the IoU from which on a finding of int8 is that of float32


@dataclass(frozen=True)
class Images:
    """Prepared breasts, and where they come from."""

    folder: Path
    source: str
    split: str | None = None


def run(arguments: argparse.Namespace) -> int:
    """Quantise, measure, and only then write. Returns the exit code."""
    check_output(arguments.output, arguments.weights, arguments.overwrite)
    source = weights.find(arguments.weights)
    header = weights.read_header(source)
    if header.int8:
        raise InputError(f"{source} is int8 already; give the float32 weights that it was made from.")
    chosen, histogram = choose_input(Options(PredictSettings()), header)
    if chosen == "msp":
        raise InputError(f"{source} takes input msp, for which there is no quantisation; give other weights.")
    console = Console()
    with working_folder(arguments.output.resolve().parent) as folder:
        calibration, validation = _choose_images(arguments, header, folder, console)
        cohort = _read_validation(validation, chosen, histogram)
        places = _choose_slices(prepared_breasts(calibration.folder, None, modality_of(chosen)), chosen)
        model = weights.load(source).eval()
        say(console, f"Calibrating with {len(places)} slices of {calibration.source}.")
        int8 = quantize(model, places, lambda place: _read_slice(*place, chosen, histogram))
        predicted = [_predict(name, one, cohort, console) for name, one in (("float32", model), ("int8", int8))]
        accuracy = _compare(cohort, *predicted)
    card = {
        "engine": "openvino",
        "nncf": version("nncf"),
        "openvino": version("openvino"),
        "calibrated_on": f"{len(places)} slices of {calibration.source}",
        "measured_on": validation.source,
        "breasts": len(cohort.breasts),
        "malignant": sum(breast.malignant for breast in cohort.breasts),
        "accuracy": accuracy,
    }
    console.print(_make_table(card))
    provenance = header.provenance | {weights.INT8: card}
    if (point := provenance.get("operating_point")) is not None:
        point = point if isinstance(point, dict) else {"threshold": point}
        note = f"{point.get('source', 'of the weights')}, chosen with float32"
        provenance["operating_point"] = point | {"source": note}
    use = f"{header.intended_use} {describe(card)}"
    weights.save(int8, arguments.output, provenance, use)
    say(console, f"Wrote {arguments.output}, for --engine openvino. {use}")
    return 0


def describe(card: dict[str, Any]) -> str:
    """What everybody who uses the weights is told."""
    before, after = card["accuracy"]["float32"], card["accuracy"]["int8"]
    figures = ", ".join(f"{shown} {after[name]:.3f} ({before[name]:.3f})" for name, shown in FIGURES.items())
    same = after[SAME_SLICE]
    kept = "" if same is None else f"; {same:.0%} of the highest findings keep their slice"
    where = f"{card['breasts']} breasts, {card['malignant']} malignant, of {card['measured_on']}"
    return f"The backbone is int8. In brackets float32, on {where}: {figures}{kept}."


def _choose_images(
    arguments: argparse.Namespace, header: weights.WeightsHeader, folder: Path, console: Console
) -> tuple[Images, Images]:
    """The images to calibrate and to measure on: the user's, or those of two virtual trials with different seeds."""
    given = arguments.calibrate, arguments.validate
    if None not in given and given[0].resolve() == given[1].resolve():
        raise InputError(f"{given[0]} is given twice; measure on breasts that were not used to calibrate.")
    if arguments.split is not None and given[1] is None:
        raise InputError("--split is for a folder that is given with --validate.")
    images = []
    for number, (prepared, breasts) in enumerate(zip(given, (CALIBRATION_BREASTS, arguments.breasts), strict=True)):
        if prepared is not None:
            split = arguments.split if number else None
            images.append(Images(prepared, prepared.resolve().name + (f" ({split})" if split else ""), split))
            continue
        settings = _read_preparation(header, arguments.weights)
        scale = next((name for name, known in PREPARED.items() if known.width >= settings.width), "full")
        trial = Trial(
            breasts=breasts, seed=arguments.seed + number, scale=scale, malignant=0.5, contrast=arguments.contrast
        )
        say(console, f"Making a virtual trial to {'measure' if number else 'calibrate'} on, for this command only.")
        make_trial(trial, folder / str(number), settings, arguments.jobs)
        what = f"a virtual trial (scale {scale}, contrast {trial.contrast:g}, seed {trial.seed})"
        images.append(Images(folder / str(number), what))
    calibration, validation = images
    return calibration, validation


def _read_preparation(header: weights.WeightsHeader, path: Path) -> PrepareSettings:
    own = header.provenance.get("prepare", {})
    if not {"width", "length", "slices"} <= own.keys():
        raise InputError(
            f"{path} does not say to which size its views were prepared; give folders with --calibrate and --validate."
        )
    return from_dict(PrepareSettings, own, f"{path}: prepare")


def _read_validation(images: Images, chosen: InputName, histogram: Histogram | None) -> ValidationCohort:
    breasts = prepared_breasts(images.folder, images.split, modality_of(chosen))
    cohort = ValidationCohort(
        CohortConfig(images.folder, images.split, chosen),
        [TrainingBreast(breast, chosen, histogram) for breast in breasts],
        read_truth(images.folder),
    )
    labels = {breast.prepared.breast.label for breast in cohort.breasts} - {None}
    boxes = any(breast.malignant and breast.prepared.annotated for breast in cohort.breasts)
    if not boxes or labels == {"malignant"}:
        raise InputError(
            f"{images.source} needs breasts with annotated cancers and breasts without, or there is no accuracy to "
            "measure; give another folder with --validate, or more --breasts."
        )
    return cohort


def _choose_slices(breasts: Sequence[PreparedBreast], chosen: InputName) -> list[tuple[PreparedView, int]]:
    """Views and slices to calibrate with, evenly chosen from all."""
    places = [
        (view, s)
        for breast in breasts
        for view in breast.views
        for s in range(view.file.geometry.slices if has_slices(chosen) else 1)
    ]
    count = min(len(places), CALIBRATION_SLICES)
    return [places[i * len(places) // count] for i in range(count)]


def _read_slice(view: PreparedView, s: int, chosen: InputName, histogram: Histogram | None) -> Image:
    pixels = view.image()
    return make_input(pixels[s : s + 1] if has_slices(chosen) else pixels, chosen, histogram)[0]


def _predict(name: str, model: Detector, cohort: ValidationCohort, console: Console) -> list[BreastPrediction]:
    fast = model.for_inference("openvino")
    predicted = []
    with show_progress(console, f"predicting with {name}", len(cohort.breasts)) as advance:
        for breast in cohort.breasts:
            predicted.append(predict_breast(fast, breast.prepared, breast.input, breast.histogram))
            advance()
    return predicted


def _compare(
    cohort: ValidationCohort, before: list[BreastPrediction], after: list[BreastPrediction]
) -> dict[str, dict[str, float | None]]:
    """The table: the figures of float32 and int8, and the share of findings whose slice stays the same."""
    table: dict[str, dict[str, float | None]] = {}
    for name, predicted in (("float32", before), ("int8", after)):
        measured = measure([cohort], [predicted])
        table[name] = {figure: measured[figure] for figure in FIGURES}
    table["int8"][SAME_SLICE] = share_of_same_slices(before, after)
    return table


def share_of_same_slices(before: Sequence[BreastPrediction], after: Sequence[BreastPrediction]) -> float | None:
    """Of the highest findings of `before`, as many as there are views, the share that `after` has on the same slice.

    A finding of `after` is the same one if no other of its view overlaps more, and the IoU is at least 0.5. One that is
    gone does not count as the same. None if findings have no slice.
    """
    found: list[tuple[Finding, Sequence[Finding]]] = []
    views = 0
    for own, other in zip(before, after, strict=True):
        for view, again in zip(own.views, other.views, strict=True):
            views += 1
            found += [(finding, again.findings) for finding in view.findings if finding.slice is not None]
    found.sort(key=lambda pair: -pair[0].score)
    return float(np.mean([_keeps_slice(*pair) for pair in found[:views]])) if found else None


def _keeps_slice(finding: Finding, others: Sequence[Finding]) -> bool:
    if not others:
        return False
    overlaps = iou(np.array(finding.box), np.array([other.box for other in others]))
    best = int(overlaps.argmax())
    return bool(overlaps[best] >= SAME) and others[best].slice == finding.slice


def _make_table(card: dict[str, Any]) -> Table:
    names = FIGURES | {SAME_SLICE: "same slice"}
    table = Table("", *(Column(shown, justify="right") for shown in names.values()), title=f"on {card['measured_on']}")
    for row, figures in card["accuracy"].items():
        values = (figures.get(name) for name in names)
        table.add_row(row, *("" if value is None else f"{value:.3f}" for value in values))
    return table
