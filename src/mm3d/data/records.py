"""What is known of exams before any pixel is read: annotations, views, breasts, and cohorts of breasts.

Frames of reference: boxes are x1, y1, x2, y2 in *stored* pixels (x to the right, y down, the corner of the first pixel
is 0, 0). Slices are indices from 0 into the volume ordered by position. Stored means as decoded from the file. With
`View.upright`, images that lie the wrong way are first turned by 180 degrees, as the official BCS-DBT reader does.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from mm3d.shared.errors import InputError

Laterality = Literal["L", "R"]
Position = Literal["CC", "MLO"]
Modality = Literal["DBT", "FFDM"]
Label = Literal["malignant", "benign", "negative"]
# What an image is: `dicom/kinds.py` has the rule. The last two are not looked at.
ImageKind = Literal["DBT", "DBT slice", "FFDM", "film", "synthesised 2D", "captured 2D", "projection", "contrast 2D"]

KEY = ("PatientID", "StudyUID", "View")  # columns of a Key in tables; there may be a fourth one, Modality


@dataclass(frozen=True)
class Annotation:
    """A box that a radiologist drew. Benign ones are kept, because a detector must learn not to report them."""

    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in stored pixels
    malignant: bool
    slice: int | None = None  # the most visible slice; None for mammograms and if nobody marked it
    first_slice: int | None = None  # the range in which it is visible, if somebody marked it
    last_slice: int | None = None
    kind: str = ""  # mass, calcification, …, in the dataset's own words

    def __post_init__(self) -> None:
        if len(self.box) != 4:
            raise InputError(f"the box {self.box} of an annotation is not four numbers")
        x1, y1, x2, y2 = self.box
        if not (x1 < x2 and y1 < y2):
            raise InputError(f"the box {self.box} of an annotation has no area")
        first, last = self.first_slice, self.last_slice
        if (first is None) != (last is None) or (first is not None and last is not None and first > last):
            raise InputError(f"the visible slices {first} to {last} of an annotation are not a range")
        if self.slice is not None and self.slice < 0:
            raise InputError(f"the slice {self.slice} of an annotation is negative")


@dataclass(frozen=True)
class Picture:
    """What a table says of a picture or an array, which has no header to say it."""

    stretch: float = 1.0  # height over width of a stored pixel: above 1 if the picture was squashed to its size
    pixel_spacing: float | None = None  # mm, from left to right
    slice_spacing: float | None = None  # mm

    def __post_init__(self) -> None:
        if not 0.1 <= self.stretch <= 10:
            raise InputError(f"the stretch {self.stretch} of a picture is not between 0.1 and 10")
        for name in ("pixel_spacing", "slice_spacing"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 10:
                raise InputError(f"the {name.replace('_', ' ')} {value} of a picture is not between 0 and 10 mm")


@dataclass(frozen=True)
class View:
    """One image or volume of a breast, in one file or in a file per slice."""

    name: str  # unique in its cohort, free of patient data beyond the dataset's own codes
    laterality: Laterality
    position: Position
    modality: Modality
    files: tuple[Path, ...]
    annotations: tuple[Annotation, ...] | None  # None: not annotated; (): annotated, and there is none
    upright: bool = False  # boxes were drawn after the turn by 180 degrees, so pixels are turned, too
    picture: Picture | None = None  # None: the files are DICOM
    kind: ImageKind | None = None  # None: the dataset's reader does not tell more than the modality

    def __post_init__(self) -> None:
        for value, known in ((self.laterality, Laterality), (self.position, Position), (self.modality, Modality)):
            if value not in get_args(known):
                raise InputError(f"{self.name}: {value!r} is none of {', '.join(get_args(known))}")
        if not self.files:
            raise InputError(f"{self.name}: a view needs at least one file")


@dataclass(frozen=True)
class Breast:
    """One breast in one exam, with its views."""

    patient: str
    exam: str
    laterality: Laterality
    label: Label | None  # None: not known
    views: tuple[View, ...]
    split: str = ""  # train, validation or test, if the dataset says so
    attributes: dict[str, str] = field(default_factory=dict)  # density, vendor, …: columns for subgroups

    def __post_init__(self) -> None:
        if not self.views:
            raise InputError(f"{self.name}: a breast needs at least one view")
        if self.label is not None and self.label not in get_args(Label):
            raise InputError(f"{self.name}: {self.label!r} is none of {', '.join(get_args(Label))}")
        if any(view.laterality != self.laterality for view in self.views):
            raise InputError(f"{self.name}: a view is of the other side")
        malignant = any(annotation.malignant for view in self.views for annotation in view.annotations or ())
        if malignant and self.label != "malignant":
            raise InputError(f"{self.name}: a breast that is not malignant has a malignant annotation")

    @property
    def name(self) -> str:
        return f"{self.patient} {self.exam} {self.laterality}"

    @property
    def annotated(self) -> bool:
        return any(view.annotations is not None for view in self.views)


@dataclass(frozen=True)
class Problem:
    """Something left out, and why."""

    subject: str  # a view, a breast or a file
    reason: str  # one sentence
    unread: bool = False  # a file or folder that should have been read could not be


@dataclass(frozen=True)
class Cohort:
    """The breasts of a dataset, as its reader found them."""

    name: str
    breasts: tuple[Breast, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()  # what a user must know of the labels, such as "malignant means BI-RADS 4 or 5"

    def __post_init__(self) -> None:
        names = [view.name for view in self.views()]
        if len(names) != len(set(names)):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{self.name}: two views are called {twice!r}")
        splits: dict[str, str] = {}
        for breast in self.breasts:
            if splits.setdefault(breast.patient, breast.split) != breast.split:
                raise InputError(
                    f"{self.name}: patient {breast.patient} is in {splits[breast.patient]!r} and in {breast.split!r}; "
                    "splits are by patient"
                )

    def views(self) -> Iterator[View]:
        for breast in self.breasts:
            yield from breast.views


# What a view is called in tables and in files of predictions


class Key(NamedTuple):
    """What tables and predictions are joined by."""

    patient: str
    study: str
    view: str  # with the number of a repeat, such as lcc2
    modality: str = "DBT"

    @property
    def laterality(self) -> Laterality:
        return side_of_view(self.view)

    @property
    def position(self) -> Position:
        return "CC" if self.view.startswith(("lcc", "rcc")) else "MLO"

    @property
    def stem(self) -> "Key":
        """The same view without the number of a repeat."""
        view = stem_of_view(self.view)
        return self if view == self.view else self._replace(view=view)

    @property
    def name(self) -> str:
        return " ".join(self[:3] if self.modality == "DBT" else self)


@functools.cache
def is_view(name: str) -> bool:
    """Whether a view is lcc, lmlo, rcc or rmlo, with or without the number of a repeat."""
    return re.fullmatch("(l|r)(cc|mlo)[0-9]*", name) is not None


@functools.cache
def side_of_view(name: str) -> Laterality:
    return "L" if name.startswith("l") else "R"


@functools.cache
def stem_of_view(name: str) -> str:
    """The name of a view without the number of a repeat."""
    return name.rstrip("0123456789")


def keys_of(breast: Breast) -> list[Key]:
    """A key for each view. A view whose name is that of a key has this key, others the first that no view has."""
    names = {view.name for view in breast.views}
    keys: list[Key] = []
    for view in breast.views:
        kind = (view.laterality + view.position).lower()
        kinds = [kind, *(f"{kind}{number}" for number in range(1, 10 + len(names)))]
        candidates = [Key(breast.patient, breast.exam, name, view.modality) for name in kinds]
        named = next((key for key in candidates if key.name == view.name), None)
        keys.append(named or next(key for key in candidates if key.name not in names and key not in keys))
    return keys
