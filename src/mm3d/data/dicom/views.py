"""Which view of which breast a file shows, as its header says in many places."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from pydicom.dataset import Dataset

from mm3d.data.dicom.groups import first_item, functional_group
from mm3d.data.dicom.window import first_value
from mm3d.data.records import Laterality, Position
from mm3d.shared.errors import InputError

VIEW_CODES: dict[str, str] = {"R-10242": "CC", "399162004": "CC", "R-10226": "MLO", "399368009": "MLO"}
OTHER = "another view"
# Views that are not used, by code and by ViewPosition: ML, LM, LMO, SIO, ISO, from below, exaggerated CC
OTHER_CODES = (
    *("399260004", "R-10224", "399352003", "R-10228", "399099002", "R-10230", "399188001", "R-102D0"),
    *("441555000", "R-40AAA", "399196006", "R-10244", "399192008", "R-1024A", "399101009", "R-1024B"),
)
OTHER_VIEWS = ("ML", "LM", "LMO", "SIO", "ISO", "FB", "XCC", "XCCL", "XCCM")
VIEW_IN_TEXT = re.compile(r"(?<![A-Z])([LR])?[\s_-]*(CC|MLO)(?![A-Z])")
TEXTS = ("SeriesDescription", "ProtocolName", "AcquisitionDeviceProcessingDescription", "ImageComments")
# Images of an intervention: taken with a stereotactic device, or of tissue that was removed.
INTERVENTION = re.compile("STEREO|SPECIMEN|BIOPSY")
SPECIMEN_CODES = ("127457009", "G-8310")  # SCT, and SRT in older files
# Modifiers of a view, by code (SCT, and SRT in older files) and by word
PART_CODES = (  # magnification, spot compression, tangential, cleavage, axillary tail, axillary tissue
    *("399163009", "R-102D6", "399055006", "R-102D7", "399110001", "R-102C2"),
    *("399161006", "R-102D2", "399011000", "R-102D1", "442580003", "R-40AB2"),
)
PART = re.compile("MAGNIF|SPOT|TANGENTIAL|CLEAVAGE|AXILLARY")
DISPLACED_CODES = ("399209000", "R-102D5")
DISPLACED = re.compile("IMPLANT DISPLACED")
MAGNIFIED = 1.3  # EstimatedRadiographicMagnificationFactor: at most 1.1 on the detector, at least 1.5 on a stand


def which_view(dataset: Dataset) -> tuple[Laterality | None, Position | None]:
    """Side and view from all the places where they may be, the most specific first. Free text counts only where these
    places say nothing."""
    sides: list[str] = list(_sides(dataset).values())
    views = list(_views(dataset).values())
    for name in TEXTS:
        for side, view in VIEW_IN_TEXT.findall(str(dataset.get(name) or "").upper()):
            sides.append(side)
            views.append(view)
    laterality = next((side for side in sides if side in ("L", "R")), None)
    position = next(iter(views), None)
    return cast(Laterality | None, laterality), cast(Position | None, position if position in ("CC", "MLO") else None)


def _sides(dataset: Dataset) -> dict[str, str]:
    """What each element that names a side says: L or R."""
    values = {
        "FrameLaterality": functional_group(dataset, "FrameAnatomySequence").get("FrameLaterality"),
        "ImageLaterality": dataset.get("ImageLaterality"),
        "Laterality": dataset.get("Laterality"),
    }
    sides = {name: str(value or "").strip().upper() for name, value in values.items()}
    return {name: side for name, side in sides.items() if side in ("L", "R")}


def _views(dataset: Dataset) -> dict[str, str]:
    """What each element that names a view says: CC, MLO, or "another view"."""
    codes = [str(item.get("CodeValue", "")).strip() for item in dataset.get("ViewCodeSequence") or ()]
    known = [VIEW_CODES.get(code, OTHER) for code in codes if code in VIEW_CODES or code in OTHER_CODES]
    views = {"ViewCodeSequence": known[0]} if known else {}
    text = str(dataset.get("ViewPosition") or "").strip().upper()
    if text in ("CC", "MLO"):
        views["ViewPosition"] = text
    elif text in OTHER_VIEWS:
        views["ViewPosition"] = OTHER
    return views


def find_contradictions(dataset: Dataset) -> tuple[str, ...]:
    """A sentence for the side and for the view, if two elements name different ones. The first of them is taken."""
    said = []
    for names in (_sides(dataset), _views(dataset)):
        if len(set(names.values())) > 1:
            all_of_them = " and ".join(f"{name} says {value}" for name, value in names.items())
            said.append(f"{all_of_them}; {next(iter(names))} is taken.")
    return tuple(said)


def check_sides(path: Path, dataset: Dataset) -> None:
    """Refuse frames of both breasts in one file."""
    groups = [first_item(dataset.get("SharedFunctionalGroupsSequence"))]
    groups += list(dataset.get("PerFrameFunctionalGroupsSequence") or ())
    anatomy = [first_item(group.get("FrameAnatomySequence")) for group in groups]
    if {"L", "R"} <= {str(item.get("FrameLaterality", "")).strip().upper() for item in anatomy}:
        raise InputError(f"{path} says its frames are of both breasts; export each breast by itself.")


def read_modifiers(dataset: Dataset) -> tuple[bool, bool, bool]:
    """Whether it is an image of an intervention, whether it shows a part of the breast, and whether an implant is
    displaced: as the image type, the view or a modifier of the view says."""
    views = list(dataset.get("ViewCodeSequence") or ())
    # Modifiers stand inside the view, or, in older files, beside it.
    modifiers = [item for place in (dataset, *views) for item in place.get("ViewModifierCodeSequence") or ()]
    codes = {str(item.get("CodeValue", "")).strip() for item in (*views, *modifiers)}
    words = [str(item.get("CodeMeaning", "")).upper() for item in (*views, *modifiers)]
    types = [str(word).upper() for word in dataset.get("ImageType") or ()]

    def says(known: Sequence[str], pattern: re.Pattern[str]) -> bool:
        return not codes.isdisjoint(known) or any(pattern.search(word) for word in words)

    intervention = says(SPECIMEN_CODES, INTERVENTION) or any(INTERVENTION.search(word) for word in types)
    magnified = float(first_value(dataset.get("EstimatedRadiographicMagnificationFactor")) or 1) >= MAGNIFIED
    return intervention, magnified or says(PART_CODES, PART), says(DISPLACED_CODES, DISPLACED)
