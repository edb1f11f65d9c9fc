"""The settings of a preparation, the two coordinate frames, and the only thing that converts between them.

*stored*: pixels and slices of the view as decoded (see `records`). *model*: pixels and slices of the prepared view,
which is cropped to the breast, mirrored so that the chest wall is on the left, resized, and pooled to fewer slices.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mm3d.data.records import Annotation
from mm3d.shared.config import check, show
from mm3d.shared.errors import InputError

Box = tuple[float, float, float, float]  # x1, y1, x2, y2


LARGEST = 1_000_000_000  # pixels of a prepared view; weights say how large theirs must be, and may be of anybody


@dataclass(frozen=True)
class PrepareSettings:
    """What a user can choose in the preparation. The settings are part of the keys of prepared views.

    The defaults are the paper's.
    """

    width: int = 1100
    """Width of a prepared view in pixels, unless its length would exceed `length`."""
    length: int = 2200
    """Greatest length (height) of a prepared view."""
    slices: int = 16
    """S: volumes are max-pooled to this many slices; those with fewer are kept as they are."""
    intensity: Literal["auto", "window", "percentile"] = "auto"
    """What becomes 0 and 1: the file's display window, or percentiles inside the breast; auto takes the window if
    there is one, unless the image is For Processing."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("width", "length", "slices"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} must be at least 1.")
        if self.width * self.length * self.slices > LARGEST:
            raise InputError(
                f"{self.slices} slices of {self.length} x {self.width} pixels are more than {LARGEST:,} pixels."
            )


@dataclass(frozen=True)
class Geometry:
    """How one view was prepared. Every box and slice that crosses between the frames goes through here."""

    crop: tuple[int, int, int, int]  # x1, y1, x2, y2 of the breast's region, stored pixels
    mirrored: bool  # left and right were exchanged after cropping
    height: int  # of the prepared view
    width: int
    stored_slices: int
    slices: int  # S of the prepared view

    def __post_init__(self) -> None:
        if len(self.crop) != 4 or not (self.crop[0] < self.crop[2] and self.crop[1] < self.crop[3]):
            raise InputError(f"the crop {show(self.crop)} is not a box")
        if min(self.height, self.width, self.stored_slices, self.slices) < 1 or self.slices > self.stored_slices:
            raise InputError("the sizes are not those of a prepared view")

    @property
    def scale(self) -> tuple[float, float]:
        """Model pixels per stored pixel, in x and y. They differ by the rounding of the size, and by the stretch of a
        squashed picture."""
        x1, y1, x2, y2 = self.crop
        return self.width / (x2 - x1), self.height / (y2 - y1)

    def box_to_model(self, box: Box) -> Box:
        x_scale, y_scale = self.scale
        x1, y1 = (box[0] - self.crop[0]) * x_scale, (box[1] - self.crop[1]) * y_scale
        x2, y2 = (box[2] - self.crop[0]) * x_scale, (box[3] - self.crop[1]) * y_scale
        return (self.width - x2, y1, self.width - x1, y2) if self.mirrored else (x1, y1, x2, y2)

    def box_to_stored(self, box: Box) -> Box:
        x_scale, y_scale = self.scale
        x1, y1, x2, y2 = (self.width - box[2], box[1], self.width - box[0], box[3]) if self.mirrored else box
        left, top = self.crop[:2]
        return x1 / x_scale + left, y1 / y_scale + top, x2 / x_scale + left, y2 / y_scale + top

    def visible_share(self, box: Box) -> float:
        """The share of a box in stored pixels that lies in the prepared view, between 0 and 1."""
        x1, y1, x2, y2 = self.crop
        width = min(box[2], x2) - max(box[0], x1)
        height = min(box[3], y2) - max(box[1], y1)
        return max(0.0, width) * max(0.0, height) / ((box[2] - box[0]) * (box[3] - box[1]))

    def region(self, s: int) -> range:
        """The stored slices that prepared slice s was pooled from; neighbouring regions may share a slice."""
        return range(s * self.stored_slices // self.slices, -(-(s + 1) * self.stored_slices // self.slices))

    def slice_to_model(self, z: int) -> int:
        """The prepared slice that the middle of stored slice z falls into."""
        return min(max((2 * z + 1) * self.slices // (2 * self.stored_slices), 0), self.slices - 1)

    def slice_to_stored(self, s: int) -> int:
        """The middle slice of the region of prepared slice s; `slice_to_model` leads back to s."""
        return (2 * s + 1) * self.stored_slices // (2 * self.slices)

    def annotation_to_model(self, annotation: Annotation) -> Annotation:
        slices = (annotation.slice, annotation.first_slice, annotation.last_slice)
        middle, first, last = (None if z is None else self.slice_to_model(z) for z in slices)
        box = self.box_to_model(annotation.box)
        return replace(annotation, box=box, slice=middle, first_slice=first, last_slice=last)


def make_geometry(
    crop: tuple[int, int, int, int], mirrored: bool, stored: int, settings: PrepareSettings, stretch: float = 1.0
) -> Geometry:
    """The geometry of a view with this many stored slices, as large as the settings allow.

    `stretch` is the height over the width of a stored pixel.
    """
    x1, y1, x2, y2 = crop
    width, height = x2 - x1, (y2 - y1) * stretch
    scale = min(settings.width / width, settings.length / height)
    return Geometry(
        crop=crop,
        mirrored=mirrored,
        height=min(settings.length, max(1, round(height * scale))),
        width=min(settings.width, max(1, round(width * scale))),
        stored_slices=stored,
        slices=min(settings.slices, stored),
    )
