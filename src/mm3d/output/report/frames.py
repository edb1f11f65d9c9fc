"""The frames of an exam as JPEG files that are together small enough for one page.

They are grey JPEGs. For the same error, JPEG needs a fifth more bytes than WebP. But it is written ten times faster,
and it keeps all 256 grey values, which a narrow window needs.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mm3d.output.result import ViewResult
from mm3d.shared.errors import InputError
from mm3d.shared.workers import worker_count

QUALITY = 82
STEP = 2**-0.25  # from one size to the next smaller: 30% fewer pixels
SMALLEST = 64  # pixels of the longer side; below that there is nothing to see
SAMPLES = 3  # frames of a volume from which its bytes are estimated
MARGIN = 0.97  # the share of the budget that an estimate may use, so that a second attempt is rare


@dataclass(frozen=True)
class EncodedView:
    """The frames of a view, all of one size."""

    height: int
    width: int
    frames: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.frames))


def encode(views: Sequence[ViewResult], budget: int) -> list[EncodedView]:
    """Encode all frames of all views in at most `budget` bytes: as large as that allows, and never larger than stored.

    A mammogram, which is one frame, may take as many bytes as a volume. The volumes share the rest, at one scale.
    """
    done: dict[int, EncodedView] = {}
    for v, view in enumerate(views):
        if len(view.frames) == 1:
            (done[v],) = _fit([view], budget // len(views))
    volumes = [v for v, view in enumerate(views) if len(view.frames) > 1]
    left = budget - sum(encoded.size for encoded in done.values())
    done |= zip(volumes, _fit([views[v] for v in volumes], left), strict=True)
    return [done[v] for v in range(len(views))]


def _fit(views: Sequence[ViewResult], budget: int) -> list[EncodedView]:
    """Encode the views at the largest common scale that the budget allows."""
    samples = [[np.array(view.frames[z]) for z in _spread(len(view.frames))] for view in views]
    scale = 1.0
    while sum(_estimate(view, frames, scale) for view, frames in zip(views, samples, strict=True)) > MARGIN * budget:
        scale = _smaller(views, scale, budget)
    while True:
        encoded = [_encode(view, scale) for view in views]
        if sum(view.size for view in encoded) <= budget:
            return encoded
        scale = _smaller(views, scale, budget)


def _spread(slices: int) -> list[int]:
    """Some slices of the inner part of a volume; the outer slices show less."""
    return sorted({round(slices * (n + 1) / (SAMPLES + 1)) for n in range(SAMPLES)} if slices > SAMPLES else {0})


def _estimate(view: ViewResult, frames: Sequence[NDArray[np.uint8]], scale: float) -> float:
    return len(view.frames) * sum(len(encode_frame(frame, scale)) for frame in frames) / len(frames)


def _smaller(views: Sequence[ViewResult], scale: float, budget: int) -> float:
    if scale * max(max(view.frames.shape[1:]) for view in views) < SMALLEST:
        names = ", ".join(view.name for view in views)
        raise InputError(f"{names}: too many slices for a report of {budget} bytes of images; report on fewer.")
    return scale * STEP


def _encode(view: ViewResult, scale: float) -> EncodedView:
    with ThreadPoolExecutor(worker_count(None)) as pool:
        frames = tuple(pool.map(lambda z: encode_frame(np.array(view.frames[z]), scale), range(len(view.frames))))
    _, height, width = view.frames.shape
    return EncodedView(*_scaled(height, width, scale), frames)


def _scaled(height: int, width: int, scale: float) -> tuple[int, int]:
    return max(1, round(scale * height)), max(1, round(scale * width))


def encode_frame(frame: NDArray[np.uint8], scale: float) -> bytes:
    """A frame as JPEG, at a scale of its size."""
    image = Image.fromarray(frame)
    height, width = _scaled(image.height, image.width, scale)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BOX)  # a mean: quick, and makes no rings
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()
