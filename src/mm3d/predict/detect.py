"""The model on one breast: from prepared views to findings in the frame of the stored images.

For input msp, a detector of single slices first decides from which slice each place of a volume is taken.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mm3d.data.batches import stack
from mm3d.data.inputs import (
    Histogram,
    ImagePair,
    InputName,
    has_slices,
    read_image,
    repeat_slices,
    suspicion_projection,
    visible_range,
)
from mm3d.data.prepare.geometry import Geometry
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView, ViewPair
from mm3d.data.records import keys_of
from mm3d.model.boxes import iou_and_giou
from mm3d.model.config import DeviceName, EngineName, PrecisionName
from mm3d.model.detector import Breasts, Detector
from mm3d.model.engines import require_bfloat16
from mm3d.model.scores import mean_logit
from mm3d.model.weights import load
from mm3d.output.predictions import BreastPrediction, Finding, ViewPrediction
from mm3d.predict.settings import PredictSettings
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
UNION_IOU = 0.5  # of boxes in 3D that are united
UNION_RATIO = 10.0  # of their scores, at most
SLICES_AT_ONCE = 8  # with input slices, where every slice is a breast of its own


@dataclass(frozen=True)
class ViewProposals:
    """All P proposals of one view, in the model's frame."""

    boxes: FloatArray  # (P, 4)
    scores: FloatArray  # (P,)
    slices: IntArray | None  # (P,) slice of the prepared view; None: the input has one slice
    weights: FloatArray | None  # (P, S) over the slices of the prepared view, only of volumes
    logit: float  # of the view: noisy-or of its proposals; with input slices, that of the highest slice


def load_model(
    path: Path,
    chunk: int | None = None,
    engine: EngineName = "torch",
    precision: PrecisionName = "auto",
    device: DeviceName = "auto",
) -> Detector:
    """The model of a weights file, ready to predict on a device."""
    device = choose_device(device, engine)
    if precision == "bfloat16":
        require_bfloat16(device)
    return load(path, chunk).for_inference(engine, precision).to(device)


def choose_device(device: DeviceName, engine: EngineName) -> Literal["cpu", "cuda", "mps"]:
    """The device that is wanted; auto: a GPU of NVIDIA if there is one, unless the engine is for CPUs."""
    if engine != "torch" and device not in ("auto", "cpu"):
        raise InputError(f"The engine {engine} runs on the CPU; leave out --device {device}, or give --engine torch.")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if engine == "torch" and there["cuda"] else "cpu"
    if not there[device]:
        raise InputError(f"torch finds no device {device} on this computer; leave out --device, or give --device cpu.")
    return device


def predict_breast(
    model: Detector,
    prepared: PreparedBreast,
    name: InputName,
    histogram: Histogram | None = None,
    settings: PredictSettings | None = None,
) -> BreastPrediction:
    """Predict one breast.

    Parameters
    ----------
    model : on its device and in eval mode.
    prepared : the breast with its prepared views, volumes or mammograms.
    name : what the model is given of each volume.
    histogram : the average histogram of mammograms, for input hm.
    settings : how proposals become findings (default: `PredictSettings()`).

    Returns
    -------
    The findings of every view, the highest score first, and the scores of the views and of the breast.
    """
    settings = settings or PredictSettings()
    found = find_proposals(model, prepared, name, histogram)
    proposals = [found[view.view.name] for view in prepared.views]
    logits = torch.tensor([own.logit for own in proposals], dtype=torch.float64)
    scores = logits.sigmoid().tolist()
    breast_score = float(mean_logit(logits, torch.ones_like(logits, dtype=torch.bool)).sigmoid())
    if settings.scores == "max":
        scores = [float(own.scores.max()) for own in proposals]
        breast_score = max(scores)
    breast = prepared.breast
    keys = dict(zip((view.name for view in breast.views), keys_of(breast), strict=True))
    views = []
    for view, own, score in zip(prepared.views, proposals, scores, strict=True):
        findings = _make_findings(own, view.file.geometry, settings, name)
        views.append(ViewPrediction(keys[view.view.name].view, findings, view.view.modality, score))
    return BreastPrediction(breast.patient, breast.exam, breast.laterality, tuple(views), breast_score)


def find_proposals(
    model: Detector, prepared: PreparedBreast, name: InputName, histogram: Histogram | None
) -> dict[str, ViewProposals]:
    """All proposals of every view of a breast, by the view's name."""
    proposals: dict[str, ViewProposals] = {}
    with torch.inference_mode():
        for pair in prepared.pairs():
            # A view that is in two pairs counts as in its first.
            proposals = _detect_in_pair(model, pair, name, histogram) | proposals
    return proposals


def _detect_in_pair(
    model: Detector, pair: ViewPair, name: InputName, histogram: Histogram | None
) -> dict[str, ViewProposals]:
    """Run the model on CC and MLO. With input slices, each pair of slices with the same number is a breast."""
    images = _read_images(pair, name, histogram)
    S = max(len(image) for image in images if image is not None)
    batches = _slice_batches(images, S) if name == "slices" else iter([stack([images])])
    del images  # 310 MB of a full-size breast, of which the batch is a copy
    parts = [_run(model, batch) for batch in batches]
    output = {part: torch.cat([tensors[part] for tensors in parts]) for part in parts[0]}
    proposals = {}
    for v, view in enumerate(pair):
        if view is not None:
            slices, weights = _find_slices(view, _choose_input(view, name), S, output, v)
            proposals[view.view.name] = ViewProposals(
                boxes=output["boxes"][:, v].flatten(0, 1).double().numpy(),
                scores=output["logits"][:, v].flatten().double().sigmoid().numpy(),
                slices=slices,
                weights=weights,
                logit=float(output["image_logits"][:, v].max()),
            )
    return proposals


def _choose_input(view: PreparedView, name: InputName) -> InputName:
    """A mammogram is given as it is, and a volume whole if the weights are for mammograms; otherwise input `name`."""
    if view.view.modality == "FFDM":
        return "ffdm"
    return "volume" if name == "ffdm" else name


def _read_images(pair: ViewPair, name: InputName, histogram: Histogram | None) -> ImagePair:
    """What the model is given of CC and MLO, both with the same number of slices."""
    cc, mlo = (None if view is None else read_image(view, _choose_input(view, name), histogram) for view in pair)
    S = max(len(image) for image in (cc, mlo) if image is not None)
    return None if cc is None else repeat_slices(cc, S), None if mlo is None else repeat_slices(mlo, S)


def _slice_batches(images: ImagePair, S: int) -> Iterator[Breasts]:
    cc, mlo = images
    pairs = [(None if cc is None else cc[s : s + 1], None if mlo is None else mlo[s : s + 1]) for s in range(S)]
    for start in range(0, S, SLICES_AT_ONCE):
        yield stack(pairs[start : start + SLICES_AT_ONCE])


def _run(model: Detector, breasts: Breasts) -> dict[str, Tensor]:
    """The output of the last head: logits (B, V, N), boxes (B, V, N, 4), image_logits (B, V), slices (B, V, N) and, if
    the fusion has them, slice_weights (B, V, S, N)."""
    detections = model(breasts.to(model.proposal_boxes.device))
    names = ("logits", "boxes", "image_logits", "slices", "slice_weights")
    output = {name: getattr(detections, name) for name in names}
    return {name: heads[-1].float().cpu() for name, heads in output.items() if heads is not None}


def _find_slices(
    view: PreparedView, name: InputName, S: int, output: dict[str, Tensor], v: int
) -> tuple[IntArray | None, FloatArray | None]:
    """Slice and slice weights of each proposal of a view, in the prepared view's own slices (see `repeat_slices`)."""
    if not has_slices(name):
        return None, None
    own = view.file.geometry.slices
    back = np.arange(S) * own // S
    if name == "slices":
        return np.repeat(back, output["logits"].shape[2]), None
    weights = None
    if "slice_weights" in output:
        w = output["slice_weights"][0, v].double().numpy()  # (S, N)
        weights = np.stack([w[back == s].sum(axis=0) for s in range(own)], axis=1)
    return back[output["slices"][0, v].long().numpy()], weights


def _make_findings(
    proposals: ViewProposals, geometry: Geometry, settings: PredictSettings, name: InputName
) -> tuple[Finding, ...]:
    """Cut boxes at the image's edges, keep the best of those that overlap, and move them to the stored frame."""
    boxes = np.clip(proposals.boxes, 0, [geometry.width, geometry.height, geometry.width, geometry.height])
    inside = np.flatnonzero((boxes[:, :2] < boxes[:, 2:]).all(axis=1))
    scores = proposals.scores
    if name == "slices" and settings.join == "union" and proposals.slices is not None:
        return _unite_slices(boxes[inside], scores[inside], proposals.slices[inside], geometry)
    findings = []
    for i in inside[suppress(boxes[inside], scores[inside], settings.nms)].tolist():
        x1, y1, x2, y2 = boxes[i].tolist()
        z = None if proposals.slices is None else float(geometry.slice_to_stored(int(proposals.slices[i])))
        weights = None if proposals.weights is None else tuple(round(float(w), 6) for w in proposals.weights[i])
        box = geometry.box_to_stored((x1, y1, x2, y2))
        findings.append(Finding(box, float(scores[i]), z, slice_weights=weights))
    return tuple(findings)


def suppress(boxes: FloatArray, scores: FloatArray, limit: float) -> IntArray:
    """Non-maximum suppression of boxes (P, 4) xyxy: from the highest score down, a box is kept unless its IoU with a
    kept one exceeds `limit`. Returns the indices of the kept boxes, the highest score first."""
    tensors = torch.from_numpy(boxes)
    overlap = iou_and_giou(tensors[:, None], tensors[None])[0].numpy()
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        if not (overlap[index, kept] > limit).any():
            kept.append(index)
    return np.array(kept, dtype=np.int64)


def _unite_slices(boxes: FloatArray, scores: FloatArray, slices: IntArray, geometry: Geometry) -> tuple[Finding, ...]:
    """Make boxes in 3D of the boxes of all slices, each as many slices thick as Buda's sampling reaches, and unite
    those that overlap."""
    thick = []
    for (x1, y1, x2, y2), s in zip(boxes.tolist(), slices.tolist(), strict=True):
        left, top, right, bottom = geometry.box_to_stored((x1, y1, x2, y2))
        visible = visible_range((left, top, right, bottom), geometry.slice_to_stored(s), geometry.stored_slices)
        thick.append((left, top, visible.start, right, bottom, visible.stop))
    united, best = unite(np.array(thick, dtype=float).reshape(-1, 6), scores)
    return tuple(
        Finding((x1, y1, x2, y2), score, (z1 + z2 - 1) / 2, z2 - z1)
        for (x1, y1, z1, x2, y2, z2), score in zip(united.tolist(), best.tolist(), strict=True)
    )


def unite(boxes: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Buda's published rule for boxes in 3D (P, 6), x1, y1, z1, x2, y2, z2: boxes with an IoU above 0.5 and scores
    within a factor of 10 become their union with the highest score, until there are none. Highest score first."""
    united, best = [], []
    left = np.ones(len(boxes), dtype=bool)
    for index in np.argsort(-scores, kind="stable").tolist():
        if not left[index]:
            continue
        box, score = boxes[index], scores[index]
        left[index] = False
        while (near := left & (_iou_3d(box, boxes) > UNION_IOU) & (score <= UNION_RATIO * scores)).any():
            low, high = boxes[near, :3].min(axis=0), boxes[near, 3:].max(axis=0)
            box = np.concatenate([np.minimum(box[:3], low), np.maximum(box[3:], high)])
            left &= ~near
        united.append(box)
        best.append(score)
    return np.array(united).reshape(-1, 6), np.array(best)


def _iou_3d(box: FloatArray, boxes: FloatArray) -> FloatArray:
    overlap = np.minimum(box[3:], boxes[:, 3:]) - np.maximum(box[:3], boxes[:, :3])
    intersection = np.prod(np.maximum(overlap, 0.0), axis=1)
    union = np.prod(box[3:] - box[:3]) + np.prod(boxes[:, 3:] - boxes[:, :3], axis=1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def project(
    breasts: Sequence[PreparedBreast], weights_path: Path, folder: Path, advance: Callable[[], None] = lambda: None
) -> list[PreparedBreast]:
    """Replace the pixels of every view by its projection (1, H, W). Those that `folder` has are not made again."""
    mark = hashlib.sha256(weights_path.read_bytes()).hexdigest()[:16] if weights_path.is_file() else ""
    model: Detector | None = None
    projected = []
    for breast in breasts:
        files = {view.view.name: folder / f"{view.pixels.stem}-{mark}.npy" for view in breast.views}
        if not all(file.is_file() for file in files.values()):
            model = model or load_model(weights_path)
            _project_breast(model, breast, files)
        projected.append(
            replace(breast, views=tuple(_as_projection(view, files[view.view.name]) for view in breast.views))
        )
        advance()
    return projected


def _as_projection(view: PreparedView, file: Path) -> PreparedView:
    """The view with one slice, whose pixels are in `file`."""
    geometry = replace(view.file.geometry, slices=1)
    return replace(view, pixels=file, file=replace(view.file, geometry=geometry))


def _project_breast(model: Detector, breast: PreparedBreast, files: dict[str, Path]) -> None:
    proposals = find_proposals(model, breast, "slices", None)
    for view in breast.views:
        volume = view.image()
        projection = suspicion_projection(volume, suspicion_map(proposals[view.view.name], volume.shape))
        with replacing(files[view.view.name]) as partial, partial.open("wb") as file:
            np.save(file, projection, allow_pickle=False)


def suspicion_map(proposals: ViewProposals, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """How suspicious each place of a volume (S, H, W) is: the highest score of the boxes that cover it on its slice."""
    assert proposals.slices is not None
    suspicion = np.zeros(shape, dtype=np.float32)
    _, height, width = shape
    boxes = zip(proposals.boxes.tolist(), proposals.scores.tolist(), proposals.slices, strict=True)
    for (x1, y1, x2, y2), score, s in boxes:
        rows = slice(max(0, round(y1)), min(height, round(y2)))
        columns = slice(max(0, round(x1)), min(width, round(x2)))
        suspicion[s, rows, columns] = np.maximum(suspicion[s, rows, columns], score)
    return suspicion
