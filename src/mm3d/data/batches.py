"""From prepared breasts to what the model takes: views chosen and paired, images read, padded and stacked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mm3d.data.inputs import Histogram, Image, InputName, grey, mean_histogram, modality_of, model_input
from mm3d.data.prepare.prepared import PreparedBreast as PreparedBreast
from mm3d.data.prepare.prepared import PreparedView, read_breasts
from mm3d.data.prepare.prepared import ViewPair as ViewPair
from mm3d.data.records import Modality
from mm3d.model.detector import VIEWS, Breasts
from mm3d.shared.errors import InputError

ImagePair = tuple[Image | None, Image | None]


def prepared_breasts(folder: Path, split: str | None, modality: Modality) -> list[PreparedBreast]:
    """The breasts of a prepared folder that have views of the modality; of one split, or of all."""
    everything = read_breasts(folder)
    if split is not None and not any(breast.split == split for breast, _ in everything):
        known = ", ".join(sorted({breast.split for breast, _ in everything} - {""})) or "it has no splits"
        raise InputError(f"{folder} has no breast of the split {split!r}; known: {known}.")
    breasts = []
    for breast, views in everything:
        chosen = tuple(view for view in views if view.view.modality == modality)
        if chosen and split in (None, breast.split):
            breasts.append(PreparedBreast(breast, chosen))
    if not breasts:
        other = "ffdm" if modality == "DBT" else "volume"
        raise InputError(f"{folder} has no {modality} view; choose another folder, or an input such as {other}.")
    return breasts


def read_image(view: PreparedView, name: InputName, histogram: Histogram | None = None) -> Image:
    """The image of an input, (S, H, W)."""
    return model_input(pixels_of(view), name, histogram)


def pixels_of(view: PreparedView) -> np.ndarray:
    """A prepared view's pixels, memory-mapped; they were there when the folder was read, and may be gone since."""
    try:
        return view.image()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{view.pixels} is missing or damaged ({error}); make it again with 'mm3d prepare' or 'mm3d phantom'."
        ) from error


def training_histogram(folder: Path, split: str | None) -> Histogram:
    """The average histogram of a folder's mammograms, for input hm: of the split, or of all without splits."""
    if not any(breast.split for breast, _ in read_breasts(folder)):
        split = None
    breasts = prepared_breasts(folder, split, modality_of("ffdm"))
    return mean_histogram(grey(pixels_of(view)) for breast in breasts for view in breast.views)


def stack(pairs: Sequence[ImagePair]) -> Breasts:
    """Images of B breasts, all with one number of slices, padded with air to one size."""
    shapes = [image.shape for pair in pairs for image in pair if image is not None]
    if len({shape[0] for shape in shapes}) != 1:
        raise InputError(f"A batch has images of one slice count, not of {sorted({shape[0] for shape in shapes})}.")
    S, H, W = (max(sizes) for sizes in zip(*shapes, strict=True))
    images = torch.zeros(len(pairs), len(VIEWS), S, H, W)
    sizes = torch.zeros(len(pairs), len(VIEWS), 2, dtype=torch.long)
    present = torch.zeros(len(pairs), len(VIEWS), dtype=torch.bool)
    for b, pair in enumerate(pairs):
        for v, image in enumerate(pair):
            if image is not None:
                height, width = image.shape[1:]
                images[b, v, :, :height, :width] = torch.from_numpy(image)
                sizes[b, v] = torch.tensor([height, width])
                present[b, v] = True
    return Breasts(images, sizes, present)
