"""From prepared breasts to what the model takes: views chosen, images read, padded and stacked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from mm3d.data.inputs import Histogram, Image, InputName, grey, make_input, mean_histogram, modality_of
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView, read_breasts
from mm3d.data.records import Modality
from mm3d.model.detector import VIEWS, Breasts
from mm3d.shared.errors import InputError

ImagePair = tuple[Image | None, Image | None]  # CC, MLO


def prepared_breasts(folder: Path, split: str | None, modality: Modality) -> list[PreparedBreast]:
    """The breasts of a prepared folder that have views of the modality, with these views only. Without a split, all."""
    breasts = read_breasts(folder)
    splits = {prepared.breast.split for prepared in breasts}
    if split is not None and split not in splits:
        known = ", ".join(sorted(splits - {""})) or "it has no splits"
        raise InputError(f"{folder} has no breast of the split {split!r}; known: {known}.")
    chosen = []
    for prepared in breasts:
        views = tuple(view for view in prepared.views if view.view.modality == modality)
        if views and split in (None, prepared.breast.split):
            chosen.append(replace(prepared, views=views))
    if not chosen:
        other = "ffdm" if modality == "DBT" else "volume"
        raise InputError(f"{folder} has no {modality} view; choose another folder, or an input such as {other}.")
    return chosen


def read_image(view: PreparedView, name: InputName, histogram: Histogram | None = None) -> Image:
    """The image of an input, (S, H, W)."""
    return make_input(view.image(), name, histogram)


def training_histogram(folder: Path, split: str | None) -> Histogram:
    """The average histogram of a folder's mammograms, for input hm: of the split, or of all if there are no splits."""
    if not any(prepared.breast.split for prepared in read_breasts(folder)):
        split = None
    breasts = prepared_breasts(folder, split, modality_of("ffdm"))
    return mean_histogram(grey(view.image()) for breast in breasts for view in breast.views)


def stack(pairs: Sequence[ImagePair]) -> Breasts:
    """Put the images of B breasts, which all have one number of slices, into one batch, padded with air to one size."""
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
