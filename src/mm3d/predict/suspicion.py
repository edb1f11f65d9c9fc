"""Maximum suspicion projections: a detector of single slices says which slice each place is taken from."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mm3d.data.batches import PreparedBreast, pixels_of
from mm3d.data.inputs import suspicion_projection
from mm3d.data.prepare.prepared import PreparedView
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.predict.detect import Found, find_in
from mm3d.shared.files import replacing


def suspicion_map(found: Found, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """How suspicious each place of a volume (S, H, W) is: the highest score of a box that covers it on its slice."""
    assert found.slices is not None
    suspicion = np.zeros(shape, dtype=np.float32)
    _, height, width = shape
    for (x1, y1, x2, y2), score, s in zip(found.boxes.tolist(), found.scores.tolist(), found.slices, strict=True):
        rows = slice(max(0, round(y1)), min(height, round(y2)))
        columns = slice(max(0, round(x1)), min(width, round(x2)))
        suspicion[s, rows, columns] = np.maximum(suspicion[s, rows, columns], score)
    return suspicion


def project(
    breasts: Sequence[PreparedBreast], weights_path: Path, folder: Path, advance: Callable[[], None] = lambda: None
) -> list[PreparedBreast]:
    """Breasts whose views' pixels are their projections, (1, H, W), made in `folder` where they are not there yet."""
    mark = hashlib.sha256(weights_path.read_bytes()).hexdigest()[:16] if weights_path.is_file() else ""
    model: Detector | None = None
    projected = []
    for breast in breasts:
        files = {view.view.name: folder / f"{view.pixels.stem}-{mark}.npy" for view in breast.views}
        if not all(file.is_file() for file in files.values()):
            if model is None:  # not needed when all is there
                model = weights.load(weights_path).for_inference()
                model.to("cuda" if torch.cuda.is_available() else "cpu")
            _project_breast(model, breast, files)
        views = tuple(replace(view, pixels=files[view.view.name]) for view in breast.views)
        projected.append(replace(breast, views=views))
        advance()
    return projected


def _project_breast(model: Detector, breast: PreparedBreast, files: dict[str, Path]) -> None:
    found = find_in(model, breast, "slices", None)
    for view in breast.views:
        projection = _projection(view, found[view.view.name])
        with replacing(files[view.view.name]) as partial, partial.open("wb") as file:
            np.save(file, projection, allow_pickle=False)


def _projection(view: PreparedView, found: Found) -> NDArray[np.uint16]:
    volume = pixels_of(view)
    return suspicion_projection(volume, suspicion_map(found, volume.shape))
