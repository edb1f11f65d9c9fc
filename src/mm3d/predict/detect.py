"""The model on one breast, and what it says in the frame of the stored images."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mm3d.data.batches import ImagePair, PreparedBreast, ViewPair, read_image, stack
from mm3d.data.datasets.keys import keys_of
from mm3d.data.inputs import Histogram, InputName, deepened, has_depth, reach
from mm3d.data.prepare.geometry import Geometry
from mm3d.data.prepare.prepared import PreparedView
from mm3d.evaluate.metrics.hits import FloatArray, IntArray
from mm3d.model import weights
from mm3d.model.config import EngineName
from mm3d.model.detector import Breasts, Detector
from mm3d.model.scores import mean_logit
from mm3d.output.predictions import BreastPrediction, Finding, ViewPrediction
from mm3d.predict.nms import suppress, unite
from mm3d.shared.config import check
from mm3d.shared.errors import InputError

SLICES_AT_ONCE = 8  # of input slices: each is a breast of its own


@dataclass(frozen=True)
class PredictSettings:
    """How the model's output becomes predictions."""

    nms: float = 0.3
    """Proposals of one view whose overlap (IoU) is above this are shown once, with the highest score; 1: all."""
    scores: Literal["model", "max"] = "model"
    """A view's score: the noisy-or of its proposals ("model") or the highest; a breast's: the mean over its views
    ("model") or the highest."""

    join: Literal["best", "union"] = "best"
    """Input slices, how slices are put together: the highest-scoring box of a place counts, by the same rule as within
    a view (the paper does not say which it used), or boxes that overlap in 3D become their union (Buda's code)."""

    def __post_init__(self) -> None:
        check(self)
        if not 0 <= self.nms <= 1:
            raise InputError(f"nms = {self.nms} must be from 0 to 1.")


@dataclass(frozen=True)
class Found:
    """All proposals of one view, in the model's frame."""

    boxes: FloatArray  # (P, 4)
    scores: FloatArray  # (P,)
    slices: IntArray | None  # (P,) slice of the prepared view; None: the input has no depth
    weights: FloatArray | None  # (P, S) over the slices of the prepared view, only of volumes
    logit: float  # of the view: noisy-or of its proposals; over slices, the highest


def load_model(path: Path, chunk: int | None, engine: EngineName) -> Detector:
    """The model of a weights file, ready to predict: on a GPU if there is one, unless the engine is for CPUs."""
    device = "cuda" if engine == "torch" and torch.cuda.is_available() else "cpu"
    return weights.load(path, chunk).for_inference(engine).to(device)


def predict_breast(
    model: Detector,
    prepared: PreparedBreast,
    name: InputName,
    histogram: Histogram | None = None,
    settings: PredictSettings | None = None,
) -> BreastPrediction:
    """Run the model, which is on its device and in eval mode, on every view of a breast, volumes and mammograms."""
    settings = settings or PredictSettings()
    found = find_in(model, prepared, name, histogram)
    keys = dict(zip((view.name for view in prepared.breast.views), keys_of(prepared.breast), strict=True))
    views = [
        ViewPrediction(
            view=keys[view.view.name].view,
            findings=_proposals(found[view.view.name], view.file.geometry, settings, name),
            modality=view.view.modality,
            score=_view_score(found[view.view.name], settings),
        )
        for view in prepared.views
    ]
    logits = torch.tensor([found[view.view.name].logit for view in prepared.views], dtype=torch.float64)
    mean = float(mean_logit(logits, torch.ones_like(logits, dtype=torch.bool)).sigmoid())
    highest = max(view.score for view in views if view.score is not None)
    breast = prepared.breast
    return BreastPrediction(
        patient=breast.patient,
        exam=breast.exam,
        laterality=breast.laterality,
        views=tuple(views),
        score=mean if settings.scores == "model" else highest,
    )


def find_in(
    model: Detector, prepared: PreparedBreast, name: InputName, histogram: Histogram | None
) -> dict[str, Found]:
    """All proposals of every view of a breast, by the view's name."""
    found: dict[str, Found] = {}
    with torch.inference_mode():
        for pair in prepared.pairs():
            for view, one in zip(pair, _pair(model, pair, name, histogram), strict=True):
                if view is not None and one is not None:
                    found.setdefault(view.view.name, one)  # a view that was paired twice counts as in its first pair
    return found


def input_of(view: PreparedView, name: InputName) -> InputName:
    """What the model is given of a view where `name` is asked for: a mammogram is always itself, and a volume is whole
    where weights of mammograms meet one."""
    if view.view.modality == "FFDM":
        return "ffdm"
    return "volume" if name == "ffdm" else name


def _pair(model: Detector, pair: ViewPair, name: InputName, histogram: Histogram | None) -> list[Found | None]:
    """What the model finds in CC and MLO; slices go in by the same number, each pair of them as a breast."""
    images = _images(pair, name, histogram)
    depth = max(len(image) for image in images if image is not None)
    if name == "slices":
        outputs = [_run(model, stack(few)) for few in _slice_groups(images, depth)]
    else:
        breasts = stack([images])
        del images  # 310 MB of a full-size breast, of which the model takes a copy
        outputs = [_run(model, breasts)]
    logits, boxes, image_logits = (torch.cat(parts) for parts in zip(*(output[:3] for output in outputs), strict=True))
    found: list[Found | None] = []
    for v, view in enumerate(pair):
        if view is None:
            found.append(None)
            continue
        slices, weights = _depth_of(view, input_of(view, name), depth, logits.shape[2], outputs[0][3], outputs[0][4], v)
        found.append(
            Found(
                boxes=boxes[:, v].flatten(0, 1).double().numpy(),
                scores=logits[:, v].flatten().double().sigmoid().numpy(),
                slices=slices,
                weights=weights,
                logit=float(image_logits[:, v].max()),
            )
        )
    return found


def _images(pair: ViewPair, name: InputName, histogram: Histogram | None) -> ImagePair:
    """What the model is given of CC and MLO, with as many slices of the one as of the other."""
    cc, mlo = (None if view is None else read_image(view, input_of(view, name), histogram) for view in pair)
    depth = max(len(image) for image in (cc, mlo) if image is not None)
    return None if cc is None else deepened(cc, depth), None if mlo is None else deepened(mlo, depth)


def _slice_groups(images: ImagePair, depth: int) -> Iterator[list[ImagePair]]:
    for start in range(0, depth, SLICES_AT_ONCE):
        yield [
            (
                None if images[0] is None else images[0][s : s + 1],
                None if images[1] is None else images[1][s : s + 1],
            )
            for s in range(start, min(start + SLICES_AT_ONCE, depth))
        ]


def _run(model: Detector, breasts: Breasts) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The last head's logits (B, V, N), boxes, image logits (B, V), slices (B, V, N) and slice weights (B, V, S, N)."""
    detections = model(breasts.to(model.proposal_boxes.device))
    weights = detections.slice_weights
    return (
        detections.logits[-1].float().cpu(),
        detections.boxes[-1].float().cpu(),
        detections.image_logits[-1].float().cpu(),
        detections.slices[-1].cpu(),
        None if weights is None else weights[-1].float().cpu(),
    )


def _depth_of(
    view: PreparedView, name: InputName, depth: int, proposals: int, slices: Tensor, weights: Tensor | None, v: int
) -> tuple[IntArray | None, FloatArray | None]:
    """Slices and slice weights of a view's proposals, counted in the prepared view's own slices (see `deepened`)."""
    own = view.file.geometry.slices
    if not has_depth(name):
        return None, None
    back = np.arange(depth) * own // depth
    if name == "slices":
        return np.repeat(back, proposals), None
    folded = None
    if weights is not None:
        folded = np.stack([weights[0, v].double().numpy()[back == s].sum(axis=0) for s in range(own)], axis=1)
    return back[slices[0, v].numpy()], folded


def _view_score(found: Found, settings: PredictSettings) -> float:
    if settings.scores == "max":
        return float(found.scores.max())
    return float(torch.tensor(found.logit, dtype=torch.float64).sigmoid())


def _proposals(found: Found, geometry: Geometry, settings: PredictSettings, name: InputName) -> tuple[Finding, ...]:
    """Cut at the image's edges, shown once, and moved to the stored frame; highest score first."""
    limits = np.array([geometry.width, geometry.height, geometry.width, geometry.height], dtype=float)
    boxes = np.clip(found.boxes, 0, limits)
    inside = np.flatnonzero((boxes[:, :2] < boxes[:, 2:]).all(axis=1))
    if name == "slices" and settings.join == "union" and found.slices is not None:
        return _united(boxes[inside], found, inside, geometry)
    kept = inside[suppress(boxes[inside], found.scores[inside], settings.nms)]
    proposals = []
    for i in kept.tolist():
        x1, y1, x2, y2 = boxes[i].tolist()
        weights = None if found.weights is None else tuple(round(float(w), 6) for w in found.weights[i])
        z = None if found.slices is None else float(geometry.slice_to_stored(int(found.slices[i])))
        proposals.append(Finding(geometry.box_to_stored((x1, y1, x2, y2)), float(found.scores[i]), z, 0.0, weights))
    return tuple(proposals)


def _united(boxes: FloatArray, found: Found, inside: IntArray, geometry: Geometry) -> tuple[Finding, ...]:
    """The boxes of all slices as boxes in 3D, each as deep as Buda's sampling reaches, joined."""
    assert found.slices is not None
    deep = []
    for (x1, y1, x2, y2), s in zip(boxes.tolist(), found.slices[inside].tolist(), strict=True):
        left, top, right, bottom = geometry.box_to_stored((x1, y1, x2, y2))
        z, either_side = geometry.slice_to_stored(s), reach((left, top, right, bottom))
        first, last = max(0, z - either_side), min(geometry.stored_slices - 1, z + either_side)
        deep.append((left, top, first, right, bottom, last + 1))
    united, scores = unite(np.array(deep, dtype=float).reshape(-1, 6), found.scores[inside])
    return tuple(
        Finding((x1, y1, x2, y2), score, (z1 + z2 - 1) / 2, z2 - z1)
        for (x1, y1, z1, x2, y2, z2), score in zip(united.tolist(), scores.tolist(), strict=True)
    )
