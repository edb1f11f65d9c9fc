"""What a prediction needs besides images: the weights, and every setting, chosen by the user or by the weights."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mm3d.data.inputs import Histogram, InputName
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.model import weights
from mm3d.model.config import EngineName
from mm3d.model.detector import Detector
from mm3d.output.result import Method
from mm3d.predict.detect import PredictSettings
from mm3d.predict.operating_point import choose_operating_point
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.workers import worker_count


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
