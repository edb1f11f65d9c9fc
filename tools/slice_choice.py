"""Does w choose the slice whose box it is? For `measure_real.py`, on volumes of which several slices are known."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mm3d.data.datasets import images
from mm3d.data.picture import read_picture
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import PreparedBreast, read_view
from mm3d.data.prepare.run import prepare_array
from mm3d.data.records import Annotation, Breast, View
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.metrics.hits import iou
from mm3d.model.detector import Detector
from mm3d.output.predictions import ViewPrediction
from mm3d.predict.detect import predict_breast
from mm3d.predict.settings import PredictSettings

COLUMNS = "file=jpg,patient=PatientID,exam=StudyUID,view=View,label=Class,x=X,y=Y,w=Width,h=Height"


def measure_slice_choice(model: Detector, folder: Path, size: tuple[int, int], output: Path) -> dict[str, Any]:
    """Of the boxes of volumes with several slices: how many have a finding, and how many of these the right slice.

    The slices of a volume that are known become a volume of their own. Every proposal counts, however low its score:
    of those on a box, the highest. `by chance` is what a choice without looking would have right.
    """
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        origin = {row["jpg"]: (row["View"], int(row["Slice"])) for row in csv.DictReader(file)}
    columns = dict(pair.split("=") for pair in COLUMNS.split(","))
    width, length = size
    settings = PrepareSettings(width=width, length=length)
    rows: list[dict[str, Any]] = []
    for breast in images.read(folder, columns=columns, modality="DBT").breasts:
        volumes = [stack for stack in _stack_slices(breast, origin) if len(stack.files) > 1]
        for volume in volumes:
            _prepare(volume, settings, output)
        views = tuple(read_view(output, volume.name, volume) for volume in volumes)
        if not views:
            continue
        whole = PreparedBreast(replace(breast, views=tuple(volumes)), views)
        predicted = predict_breast(model, whole, "volume", settings=PredictSettings(nms=1.0))
        for volume, view in zip(volumes, predicted.views, strict=True):
            rows += [_describe_choice(volume, annotation, view) for annotation in volume.annotations or ()]
    found = [row for row in rows if row["chosen"] is not None]
    return {
        "boxes": len(rows),
        "found": len(found),
        "right": sum(row["chosen"] == row["slice"] for row in found),
        "by chance": sum(1 / row["slices"] for row in found),
        "rows": rows,
    }


def _describe_choice(volume: View, annotation: Annotation, predicted: ViewPrediction) -> dict[str, Any]:
    """The best finding on a box, its w, and the slice that w chooses; None where nothing is on the box."""
    boxes = np.array([finding.box for finding in predicted.findings])
    on = iou(boxes, np.array(annotation.box)) >= EvaluateSettings().iou
    best = predicted.findings[int(np.argmax(on))] if on.any() else None  # the highest score comes first
    w = best.slice_weights if best is not None else None
    return {
        "view": volume.name,
        "malignant": annotation.malignant,
        "slices": len(volume.files),
        "slice": annotation.slice,
        "score": None if best is None else best.score,
        "w": None if w is None else list(w),
        "chosen": None if w is None else int(np.argmax(w)),
    }


def _stack_slices(breast: Breast, origin: dict[str, tuple[str, int]]) -> list[View]:
    """The volumes of a breast, each with the files of its known slices in their order; annotations count in them.

    `origin` has the volume and the slice of each file: rmlo and rmlo2 of one breast are two volumes.
    """
    volumes: dict[str, list[View]] = {}
    for view in sorted(breast.views, key=lambda view: origin[view.files[0].name]):
        volumes.setdefault(origin[view.files[0].name][0], []).append(view)
    stacks = []
    for name, views in volumes.items():
        annotations = tuple(
            replace(annotation, slice=s) for s, view in enumerate(views) for annotation in view.annotations or ()
        )
        files = tuple(view.files[0] for view in views)
        stacks.append(
            replace(views[0], name=f"{breast.patient}-{breast.exam}-{name}", files=files, annotations=annotations)
        )
    return stacks


def _prepare(volume: View, settings: PrepareSettings, output: Path) -> None:
    assert volume.picture is not None
    pictures = [read_picture(path, volume.picture) for path in volume.files]
    prepare_array(volume, pictures[0][0], np.stack([pixels for _, pixels in pictures]), settings, output, volume.name)
