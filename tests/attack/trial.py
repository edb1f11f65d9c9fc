"""The exam that is attacked: of a tiny virtual trial, made by mm3d itself; and whether it can be recognised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import Dataset, dcmread

from mm3d.data.datasets.folder import describe_thin, make_entries
from mm3d.data.dicom.build import uid
from mm3d.data.dicom.header import read_header
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.view import begin_view, fill_view
from mm3d.phantom.dicom import write_view
from mm3d.phantom.trial import Trial, render_breast

TRIAL = Trial(seed=2028, breasts=2, scale="tiny", contrast=1.7)  # of the demo, in small
SETTINGS = PrepareSettings(width=48, length=96, slices=4)
KINDS = ("mammogram", "volume")
SAME = 0.8  # correlation with the whole image from which the breast counts as seen
SAME_CROP = 0.8  # IoU with the crop of the whole image
BLACK = 8  # air in a virtual trial is not brighter
VISIBLE = 10.0  # standard deviation of the breast's 256 grey values as they are shown

Grey = NDArray[Any]


def write_files(folder: Path) -> dict[str, Path]:
    """CC and MLO of a left breast as mammograms and volumes, each as JPEG 2000 and not compressed, by names."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    _, images = render_breast(TRIAL, 0)
    for image in images:
        kind = "volume" if image.view.modality == "DBT" else "mammogram"
        path = folder / f"{kind} {image.view.position}.dcm"
        write_view(image, "attack", path)
        files[path.stem] = path
        plain = dcmread(path)
        plain.decompress()
        plain["PixelData"].is_undefined_length = False
        files[f"native {path.stem}"] = path.with_name(f"native {path.name}")
        plain.save_as(files[f"native {path.stem}"])
    return files


def give_study(dataset: Dataset, name: str) -> None:
    """Make an image one of another study and patient."""
    dataset.StudyInstanceUID = uid("attack", name)
    dataset.PatientID = name
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid(
        "attack", name, str(dataset.SOPInstanceUID)
    )


@dataclass(frozen=True)
class Seen:
    """What is seen of one file: its slices as they are shown, and the crop."""

    slices: Grey  # (S, rows, columns), 0 to 255
    crop: tuple[int, int, int, int]
    said: tuple[str, ...]  # notes and warnings


def see(path: Path, work: Path) -> Seen | None:
    """Read and prepare a file as `mm3d predict` does. None: it is left out by a rule. InputError: it is refused."""
    header = read_header(path)
    entries, _ = make_entries([header])
    if not entries:
        return None
    pixels, shown = work / "pixels.npy", work / "shown.npy"
    view = replace(entries[0].view, files=(path,))
    headers, plan, filled = begin_view(view, (header,), SETTINGS, pixels, shown)
    if not filled:
        fill_view(headers, plan, pixels, range(plan.shape[0]), shown)
    slices = np.load(shown)
    thin = describe_thin(len(slices), plan.file.slice_spacing, header.thickness) if view.modality == "DBT" else ()
    return Seen(slices, plan.file.geometry.crop, (*plan.file.notes, *header.contradictions, *thin))


def find_difference(whole: Seen, now: Seen) -> str:
    """Why an image is not the one it was; "": the breast can be seen as before. It may lie upside down."""
    if whole.slices.shape != now.slices.shape:
        return f"it has the size {now.slices.shape}, not {whole.slices.shape}"
    _, rows, columns = now.slices.shape
    x1, y1, x2, y2 = now.crop
    faults = [
        _compare(whole.crop, now.crop) or compare_slices(whole.slices, now.slices),
        _compare(whole.crop, (columns - x2, rows - y2, columns - x1, rows - y1))
        or compare_slices(whole.slices, now.slices[:, ::-1, ::-1]),
    ]
    return "" if "" in faults else faults[0]


def compare_slices(whole: Sequence[Grey] | Grey, now: Sequence[Grey] | Grey) -> str:
    """Why slices do not show the breast that was there; "" if all do."""
    for z, (before, after) in enumerate(zip(whole, now, strict=True)):
        alike = _correlate(before, after)
        spread = float(after[before > BLACK].std())
        if alike < SAME or spread < VISIBLE:
            return f"slice {z} has a correlation of {alike:.2f} and a spread of {spread:.1f}"
    return ""


def _correlate(one: Grey, other: Grey) -> float:
    """Of images that are reduced to half, so that fine noise does not count."""
    one, other = (
        np.asarray(Image.fromarray(np.ascontiguousarray(image, np.uint8)).reduce(2), float).ravel()
        for image in (one, other)
    )
    return float(np.corrcoef(one, other)[0, 1]) if one.std() and other.std() else 0.0


def _compare(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> str:
    overlap = _overlap(one, other)
    return "" if overlap >= SAME_CROP else f"the crop overlaps with that of the whole image by {overlap:.2f}"


def _overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0, width) * max(0, height)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (one, other)]
    return shared / (sum(areas) - shared)
