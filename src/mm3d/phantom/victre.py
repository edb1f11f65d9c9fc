"""A breast that others made: VICTRE's tissue labels, imaged between our plates.

VICTRE's programs write a compressed breast as a MetaImage: a header FILE.mhd, and a label of one byte for each voxel in
FILE.raw. Nothing says how the breast lies in it. So the paddles tell which axis was compressed, and the side of the
volume that cuts through most tissue is the chest wall.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.data.records import Breast, Label, Laterality, Position
from mm3d.phantom.anatomy import SCALES, Anatomy, Array, CompressedBreast, Grid, Scale, signed_distance
from mm3d.phantom.imaging import SyntheticView
from mm3d.phantom.lesions import KINDS, Insertion, Lesion, calcium_attenuation, mass_attenuation
from mm3d.phantom.tissue import FAT, GLAND, LIGAMENT, MASS, MUSCLE, SKIN
from mm3d.phantom.trial import NOISE, Phantom, Trial, choose_system, describe_breast, image_view, make_generator
from mm3d.shared.errors import InputError

# The labels, and the material of each, are those of VICTRE_PIPELINE (Victre/Constants.py). Blood has 1.027 times the
# mass attenuation of muscle at 20 keV (ICRU 44), and in VICTRE a density of 1.00 instead of 1.05.
AIR, PADDLE = 0, 50
BLOOD = 0.979 * MUSCLE
ATTENUATION = {
    AIR: 0.0,
    1: FAT,
    2: SKIN,
    29: GLAND,
    33: SKIN,  # nipple
    40: MUSCLE,
    PADDLE: 0.0,  # it is the same everywhere
    88: LIGAMENT,
    95: MUSCLE,  # terminal ducts and lobules
    125: MUSCLE,  # ducts
    150: BLOOD,  # arteries
    225: BLOOD,  # veins
}
GLANDULAR, OUTER = (29, 95, 125), (AIR, PADDLE, 2, 33)  # of the volume without air and skin, what counts as dense
LESIONS = {200: KINDS["spiculated mass"], 250: KINDS["calcification cluster"]}
APART = 4.0  # mm: parts of a lesion are no further apart than this

Labels = NDArray[np.uint8]
Weights = tuple[Array, Array, Array]  # along z, y and x: (new voxels, voxels) share of each new voxel


@dataclass(frozen=True)
class VictreTrial(Trial):
    """A trial of one breast, in one view, whose anatomy is in a file. `malignant` and `benign` are not used."""

    anatomy: str = ""
    """Name of the file."""
    labels: str = ""
    """Hash of its labels."""
    position: Position = "CC"
    """The view: CC or MLO."""
    laterality: Laterality = "L"
    """The side: L or R."""


@dataclass(frozen=True)
class LabelVolume:
    """A compressed breast: labels (z, y, x) between the plates. Slice 0 is on the detector, x = 0 is the chest wall."""

    labels: Labels
    voxel: tuple[float, float, float]  # mm, along z, y, x

    @property
    def thickness(self) -> float:
        return len(self.labels) * self.voxel[0]

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.labels.tobytes()).hexdigest()


# ---- the file --------------------------------------------------------------------------------------------------------


def read_victre(path: Path) -> LabelVolume:
    """Read FILE.mhd and its FILE.raw or FILE.raw.gz, and turn the breast."""
    labels, spacing = _read_metaimage(path)
    unknown = set(np.flatnonzero(_count_labels(labels))) - ATTENUATION.keys() - LESIONS.keys()
    if unknown:
        raise InputError(f"{path}: the label {min(unknown)} is none of VICTRE's tissues.")
    axis, between = _find_plates(labels, path)
    labels = np.moveaxis(labels, axis, 0)[between]
    spacing = [spacing[axis], *(size for number, size in enumerate(spacing) if number != axis)]
    tissue = (labels != AIR) & (labels != PADDLE)
    cut = {(side, end): int(tissue.take(end, side).sum()) for side in (1, 2) for end in (0, -1)}
    side, end = max(cut, key=lambda wall: cut[wall])
    if not cut[side, end]:
        raise InputError(f"{path}: no side of the volume cuts through the breast, so the chest wall cannot be found.")
    if side == 1:
        labels = labels.swapaxes(1, 2)
        spacing = [spacing[0], spacing[2], spacing[1]]
    if end == -1:
        labels = labels[:, :, ::-1]
    return LabelVolume(labels, (spacing[0], spacing[1], spacing[2]))


def _read_metaimage(path: Path) -> tuple[Labels, list[float]]:
    """The labels (z, y, x as in the file) and the sizes of a voxel in mm, in the same order."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path} is no header of a MetaImage; give a .mhd file.") from None
    header = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    expected = {"NDims": "3", "ElementType": "MET_UCHAR"}
    allowed = {"BinaryData": "True", "CompressedData": "False", "HeaderSize": "0", "ElementNumberOfChannels": "1"}
    for name, value in expected.items() | {(name, value) for name, value in allowed.items() if name in header}:
        if header.get(name, "").lower() != value.lower():
            raise InputError(f"{path}: {name} = {header.get(name, '(missing)')} is not read; it must be {value}.")
    try:
        shape = [int(word) for word in header["DimSize"].split()]
        spacing = [float(word) for word in header["ElementSpacing"].split()]
    except (KeyError, ValueError):
        shape, spacing = [], []
    if [len(shape), len(spacing)] != [3, 3] or min(shape) < 1 or not all(0 < size < np.inf for size in spacing):
        raise InputError(f"{path}: DimSize and ElementSpacing must be three numbers above 0 each.")
    name = header.get("ElementDataFile", "")
    plain = path.parent / name
    if not name or Path(name).name != name:
        raise InputError(f"{path}: ElementDataFile must be the name of a file beside it.")
    file = plain if plain.is_file() else plain.with_name(f"{name}.gz")
    if not file.is_file():
        raise InputError(f"{path}: neither {name} nor {name}.gz is beside it.")
    size = int(np.prod(shape, dtype=object))
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read(size + 1)  # no more, whatever a damaged file unpacks to
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{file} is damaged.") from None
    if len(content) != size:
        raise InputError(f"{file} does not have the {size:,} bytes that {path.name} says.")
    return np.frombuffer(content, np.uint8).reshape(shape[::-1]), spacing[::-1]


def _count_labels(labels: Labels) -> NDArray[np.int64]:
    """(256,) voxels of each label, plane by plane: a count takes eight times the memory of what it counts."""
    return np.sum([np.bincount(plane.ravel(), minlength=256) for plane in labels], axis=0)


def _find_plates(labels: Labels, path: Path) -> tuple[int, slice]:
    """The axis that was compressed, and the planes between the plates.

    At the chest wall, the breast bulges a little around the plates. That is left out.
    """
    for axis in range(3):
        others = tuple(number for number in range(3) if number != axis)
        share = (labels == PADDLE).mean(axis=others)
        plates, middle = np.flatnonzero(share > 0.5), len(share) / 2
        below, above = plates[plates < middle], plates[plates >= middle]
        if len(below) and len(above):
            return axis, slice(int(below[-1]) + 1, int(above[0]))
    raise InputError(f"{path}: no paddles (label {PADDLE}) are on two sides of the breast; give a compressed breast.")


# ---- the breast ------------------------------------------------------------------------------------------------------


def render_victre(path: Path, trial: Trial, index: int) -> tuple[Breast, list[SyntheticView]]:
    """The record of the breast and its images: a mammogram and a volume."""
    assert isinstance(trial, VictreTrial)
    assert index == 0
    volume = read_victre(path)
    if volume.hash != trial.labels:
        raise InputError(f"{path} was changed meanwhile.")
    phantom = make_victre_phantom(volume, trial)
    names = (f"V{trial.seed}-{trial.labels[:8]}", f"V{trial.seed}-S{trial.labels[:8]}")
    system, rng = choose_system(trial, index), make_generator(trial, index, NOISE, 0)
    images = image_view(phantom, system, trial.laterality, names, rng)
    label: Label = "malignant" if phantom.lesions else "negative"
    breast = describe_breast(names, trial.laterality, label, images, phantom.breast.anatomy, system)
    breast.attributes["anatomy"] = trial.anatomy
    return breast, list(images)


def make_victre_phantom(volume: LabelVolume, trial: VictreTrial) -> Phantom:
    """The breast in our voxels. What a lesion adds is the difference to the nearest other tissue in its place."""
    scale = SCALES[trial.scale]
    table = np.zeros(256, np.float32)
    table[list(ATTENUATION)] = list(ATTENUATION.values())
    table[[*LESIONS]] = mass_attenuation(MASS[0], trial.contrast), calcium_attenuation(trial.contrast)
    filled = np.ones(256, np.float32)
    filled[[AIR, PADDLE]] = 0
    z, weights = _weights(volume, scale)
    air = 1 - _resample(volume.labels, filled, weights)
    breast, rows, columns = _make_breast(volume, air, z, trial)
    weights = (weights[0], weights[1][rows], weights[2][columns])
    return Phantom(
        breast=breast,
        volume=_resample(volume.labels, table, weights),
        lesions=tuple(_find_lesions(volume, table, weights)),
        air=air[:, rows, columns],
    )


def _make_breast(
    volume: LabelVolume, air: Array, z: Array, trial: VictreTrial
) -> tuple[CompressedBreast, slice, slice]:
    """The shape of the breast, and the rows and columns of the volume that hold it."""
    scale = SCALES[trial.scale]
    distance = signed_distance(air.min(axis=0) < 0.5, scale.pixel)
    near = distance > -2 * scale.pixel
    used_rows, used_columns = np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))
    rows, columns = slice(int(used_rows[0]), int(used_rows[-1]) + 1), slice(int(used_columns[-1]) + 1)
    inside: Array = distance[rows, columns].astype(np.float32)
    free = [there - here for there, here in zip(scale.shape, inside.shape, strict=True)]
    if min(free) < 0:
        raise InputError(f"{trial.anatomy}: the breast is larger than the detector.")
    height, width = (np.arange(n, dtype=np.float32) * scale.pixel for n in inside.shape)
    counts = _count_labels(volume.labels)
    anatomy = Anatomy(
        density=float(counts[[*GLANDULAR]].sum() / np.delete(counts, OUTER).sum()),
        thickness=volume.thickness,
        nipple_distance=float(width[-1]),
        length=float(height[-1]),
        # The others are only for shapes that are drawn.
        **dict.fromkeys(("skin", "fat_layer", "roundness", "nipple_shift", "nipple_radius"), 0.0),
        waves=(),
        muscle=(0.0, 0.0),
    )
    breast = CompressedBreast(
        anatomy=anatomy,
        position=trial.position,
        scale=scale,
        grid=Grid(z, height - height.mean(), width + scale.pixel / 2, (scale.slice, scale.pixel, scale.pixel)),
        top=free[0] // 2,
        inside=inside,
        nipple=inside,  # the nipple is part of the volume
    )
    return breast, rows, columns


def _find_lesions(volume: LabelVolume, table: Array, weights: Weights) -> list[Insertion]:
    lesions = []
    for label, kind in LESIONS.items():
        places = np.argwhere(volume.labels == label)
        if not len(places):
            continue
        # Specks of a cluster and pieces of a mass are one lesion if they are in the same or neighbouring blocks.
        blocks = (places * volume.voxel / APART).astype(int)
        taken = np.zeros(blocks.max(axis=0) + 1, bool)
        taken[tuple(blocks.T)] = True
        number, count = ndimage.label(taken, np.ones((3, 3, 3)))
        for lesion in range(1, count + 1):
            own = places[number[tuple(blocks.T)] == lesion]
            first, last = np.maximum(own.min(axis=0) - 2, 0), own.max(axis=0) + 3
            where = tuple(slice(int(a), int(b)) for a, b in zip(first, last, strict=True))
            labels = volume.labels[where]
            nearest = ndimage.distance_transform_edt(
                np.isin(labels, [*LESIONS]), volume.voxel, return_distances=False, return_indices=True
            )
            touched = [np.flatnonzero(w[:, part].any(axis=1)) for w, part in zip(weights, where, strict=True)]
            z, y, x = (slice(int(rows[0]), int(rows[-1]) + 1) for rows in touched)
            part = (weights[0][z, where[0]], weights[1][y, where[1]], weights[2][x, where[2]])
            added = _resample(labels, table, part) - _resample(labels[tuple(nearest)], table, part)
            size = float(max((last - first) * volume.voxel))
            views: tuple[Position, ...] = ("CC", "MLO")
            attenuation = float(table[label])
            lesions.append(Insertion(Lesion(kind, size, attenuation, attenuation, 0, views), (z, y, x), added))
    return lesions


# ---- other voxels ----------------------------------------------------------------------------------------------------


def _weights(volume: LabelVolume, scale: Scale) -> tuple[Array, Weights]:
    """The heights of our slices from the middle, and the weights from voxels of the file to ours."""
    count, rows, columns = volume.labels.shape
    dz, dy, dx = volume.voxel
    slices = max(2, round(volume.thickness / scale.slice))
    z = (np.arange(slices, dtype=np.float32) + 0.5 - slices / 2) * scale.slice
    first = (volume.thickness - slices * scale.slice) / 2
    return z, (
        _overlap(count, dz, slices, scale.slice, first),
        _overlap(rows, dy, int(np.ceil(rows * dy / scale.pixel)), scale.pixel),
        _overlap(columns, dx, int(np.ceil(columns * dx / scale.pixel)), scale.pixel),
    )


def _overlap(count: int, voxel: float, new_count: int, new: float, first: float = 0.0) -> Array:
    """(new voxels, voxels) share of each new voxel that lies in each voxel; the first new one begins at `first` mm."""
    old_edges, new_edges = np.arange(count + 1) * voxel, first + np.arange(new_count + 1)[:, None] * new
    low, high = np.maximum(old_edges[:-1], new_edges[:-1]), np.minimum(old_edges[1:], new_edges[1:])
    return (np.clip(high - low, 0, None) / new).astype(np.float32)


def _resample(labels: Labels, table: Array, weights: Weights) -> Array:
    """(z, y, x) means over new voxels of what the table has for each label (256,)."""
    along_z, along_y, along_x = weights
    result = np.empty([len(w) for w in weights], np.float32)
    for plane, shares in zip(result, along_z, strict=True):
        used = np.flatnonzero(shares)
        plane[:] = along_y @ np.tensordot(shares[used], table[labels[used]], 1) @ along_x.T
    return result
