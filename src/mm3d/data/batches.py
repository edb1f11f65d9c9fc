"""Images of breasts to the batch that the model takes."""

from collections.abc import Sequence

import torch

from mm3d.data.inputs import ImagePair
from mm3d.model.detector import VIEWS, Breasts
from mm3d.shared.errors import InputError


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
