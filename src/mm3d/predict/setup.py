"""What a prediction needs besides images: the weights, and every setting, chosen by the user or by the weights."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mm3d.data.inputs import Histogram, InputName, modality_of
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.model import weights
from mm3d.model.config import EngineName
from mm3d.model.detector import Detector
from mm3d.output.result import Method, OperatingPoint
from mm3d.predict.detect import PredictSettings
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.workers import worker_count

DEFAULT = 0.5  # the threshold if nobody gives one: no choice was made, and every output says so


@dataclass(frozen=True)
class Options:
    """What the user chose. None: the weights decide."""

    settings: PredictSettings
    weights: Path | None = None
    input: InputName | None = None
    chunk: int | None = None
    engine: EngineName = "torch"
    # For prepared folders:
    split: str | None = None
    # For exams:
    threshold: float | None = None
    operating_point: str | None = None
    identifiers: bool = False
    preparation: dict[str, Any] | None = None  # what differs from the preparation of the weights
    jobs: int | None = None


@dataclass(frozen=True)
class Setup:
    """How all breasts of a run are predicted."""

    model: Detector
    input: InputName
    histogram: Histogram | None
    settings: PredictSettings
    prepare: PrepareSettings
    jobs: int
    method: Method  # what results say about all of this


def load_model(path: Path, chunk: int | None, engine: EngineName) -> Detector:
    """The model of a weights file, ready to predict: on a GPU if there is one, unless the engine is for CPUs."""
    device = "cuda" if engine == "torch" and torch.cuda.is_available() else "cpu"
    return weights.load(path, chunk).for_inference(engine).to(device)


def choose_input(options: Options, header: weights.WeightsHeader) -> tuple[InputName, Histogram | None]:
    """What the model is given of each view, and the histogram that input hm is matched to."""
    chosen: InputName = options.input or header.provenance.get("input", "volume")
    return chosen, tuple(header.provenance.get("histogram", ())) or None


def load_setup(options: Options) -> Setup:
    """Load the weights and settle every setting for DICOM exams."""
    path = weights.find(options.weights)
    header = weights.read_header(path)
    chosen, histogram = choose_input(options, header)
    if chosen == "msp":
        raise InputError("Input msp is for prepared folders; run 'mm3d prepare folder' first, and predict its folder.")
    prepare = _choose_preparation(path, header, options.preparation or {})
    point = choose_operating_point(options.threshold, options.operating_point, header)
    model = load_model(path, options.chunk, options.engine)
    method = Method(
        weights=weights.name_of(path),
        intended_use=header.intended_use,
        operating_point=point,
        weights_hash=hashlib.sha256(path.read_bytes()).hexdigest(),
        input=chosen,
        engine=options.engine,
        device=str(model.proposal_boxes.device),
        prepare=to_dict(prepare),
        predict=to_dict(options.settings),
        identifiers=options.identifiers,
    )
    return Setup(model, chosen, histogram, options.settings, prepare, worker_count(options.jobs), method)


def _choose_preparation(path: Path, header: weights.WeightsHeader, given: dict[str, Any]) -> PrepareSettings:
    own = header.provenance.get("prepare", {})
    missing = [f"--{name}" for name in ("width", "length", "slices") if name not in own | given]
    if missing:
        raise InputError(f"{path} does not say to which size its views were prepared; give {', '.join(missing)}.")
    return from_dict(PrepareSettings, own | given, f"{path}: prepare")


def choose_operating_point(threshold: float | None, file: str | None, header: weights.WeightsHeader) -> OperatingPoint:
    """The threshold that was given, or one of an evaluation, or that of the weights, or the default."""
    if threshold is not None:
        return OperatingPoint(threshold, "given with --threshold")
    if file is not None:
        return _read_evaluation(file)
    own = header.provenance.get("operating_point")
    if own is None:
        return OperatingPoint(DEFAULT, "a default: neither the command nor the weights have an operating point")
    own = own if isinstance(own, dict) else {"threshold": own}
    trained_on = header.provenance.get("input")  # a point in the weights is for what they were trained on
    modality = None if trained_on is None else modality_of(trained_on)
    threshold = _check_threshold(own.get("threshold"), "the weights")
    return OperatingPoint(threshold, str(own.get("source", "of the weights")), modality)


def _read_evaluation(text: str) -> OperatingPoint:
    """FILE or FILE:NAME: a metrics.json of `mm3d evaluate` and one of its operating points of findings, such as
    2D@0.25. Without a name, the first is taken."""
    path, name = Path(text), ""
    if not path.exists() and ":" in text:
        before, _, name = text.rpartition(":")
        path = Path(before)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a metrics.json that 'mm3d evaluate' wrote.")
    try:
        systems = json.loads(path.read_text(encoding="utf-8"))["systems"]
        found = [point for system in systems for point in system["operating_points"] if point.get("of") == "findings"]
        points = {f"{point['rule']}@{point['wanted']['fp_per_volume']:g}": point for point in found}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no metrics.json of 'mm3d evaluate'; give one.") from error
    if len(systems) != 1:
        raise InputError(f"{path} compares {len(systems)} systems; evaluate the predictions of these weights alone.")
    if not points:
        raise InputError(f"{path} has no operating point of findings; evaluate predictions that have some.")
    if name and name not in points:
        raise InputError(f"{path} has no operating point {name!r}; it has {', '.join(points)}.")
    chosen = name or next(iter(points))
    threshold = _check_threshold(points[chosen].get("threshold"), f"{path}, {chosen},")
    return OperatingPoint(threshold, f"{chosen} false positives per volume", systems[0].get("modality"))


def _check_threshold(threshold: Any, owner: str) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise InputError(f"The operating point of {owner} is {threshold}, no score from 0 to 1; give a --threshold.")
    return float(threshold)
