"""Maximum suspicion projections: a detector of single slices decides from which slice each place is taken."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mm3d.data.inputs import suspicion_projection
from mm3d.data.prepare.prepared import PreparedBreast
from mm3d.model.detector import Detector
from mm3d.predict.detect import ViewProposals, find_proposals
from mm3d.predict.setup import load_model
from mm3d.shared.files import replacing


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
            model = model or load_model(weights_path, None, "torch")
            _project_breast(model, breast, files)
        views = tuple(replace(view, pixels=files[view.view.name]) for view in breast.views)
        projected.append(replace(breast, views=views))
        advance()
    return projected


def _project_breast(model: Detector, breast: PreparedBreast, files: dict[str, Path]) -> None:
    proposals = find_proposals(model, breast, "slices", None)
    for view in breast.views:
        volume = view.image()
        projection = suspicion_projection(volume, suspicion_map(proposals[view.view.name], volume.shape))
        with replacing(files[view.view.name]) as partial, partial.open("wb") as file:
            np.save(file, projection, allow_pickle=False)
