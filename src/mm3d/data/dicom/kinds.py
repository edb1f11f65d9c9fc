"""What an image is: one rule for every file. docs/data.md has it as a table."""

import re
from pathlib import Path

from pydicom.dataset import Dataset

from mm3d.data.records import ImageKind, Modality
from mm3d.shared.errors import InputError

TOMOSYNTHESIS = "1.2.840.10008.5.1.4.1.1.13.1.3"
MAMMOGRAPHY = ("1.2.840.10008.5.1.4.1.1.1.2", "1.2.840.10008.5.1.4.1.1.1.2.1")  # for presentation, for processing
PROJECTIONS = ("1.2.840.10008.5.1.4.1.1.13.1.4", "1.2.840.10008.5.1.4.1.1.13.1.5")
# Computed Radiography, and Digital X-Ray for presentation and for processing: mammography if the modality says so
RADIOGRAPHY = ("1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1.1")
CT = "1.2.840.10008.5.1.4.1.1.2"
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
CAPTURES = (SECONDARY_CAPTURE, f"{SECONDARY_CAPTURE}.2", f"{SECONDARY_CAPTURE}.3")  # of one frame, and of several

# Words of ImageType (PS3.3 C.8.11.7.1.4, and what vendors write). They count as whole words.
TOMO_WORDS = ("TOMO", "TOMOSYNTHESIS")
PROJECTION_WORDS = ("TOMO_PROJ", "TOMO_SCOUT")
SYNTHESISED_WORDS = ("TOMO_2D", "GENERATED_2D")
CONTRAST_WORDS = ("SUBTRACTION", "HIGH_ENERGY")
# What vendors call their synthesised images: Hologic, GE, Siemens; it counts for images of one frame only
SYNTHESISED_NAMES = re.compile(r"\b([CS][- ]?VIEW|V[- ]?PREVIEW|INSIGHT ?2D|INTELLIGENT ?2D|SYNTH(?!ESIS\b)\w*)\b")
TOMO_NAMES = re.compile(r"\b(TOMO|DBT\b)")  # in the description of a series of captures
VIRTUAL_TRIAL = "Virtual clinical trial"  # StudyDescription of the exams that `mm3d phantom` makes
FEW_CAPTURES = 2  # captures of a series that show one view are slices of a volume if there are more

# Modalities that a message may name; anything else in the element may be a name.
MODALITIES = (
    *("CR", "CT", "DOC", "DX", "IO", "KO", "MG", "MR", "NM", "OT", "PR", "PT"),
    *("REG", "RF", "SC", "SEG", "SR", "US", "XA"),
)


class OtherKindError(InputError):
    """The file is not mammography. Nothing is wrong with it."""


def modality_of_kind(kind: ImageKind) -> Modality:
    """How an image of this kind is looked at: as a volume, or as a mammogram."""
    return "DBT" if kind in ("DBT", "DBT slice") else "FFDM"


def which_kind(path: Path, dataset: Dataset, frames: int) -> ImageKind:
    """What a file holds, by its SOP class, its ImageType and the number of its frames.

    A "captured 2D" image may turn out to be a slice when the other files of its series are known
    (`datasets/folder.py`).
    """
    sop_class = str(dataset.get("SOPClassUID", ""))
    modality = str(dataset.get("Modality", "")).upper()
    words = [str(word).upper() for word in dataset.get("ImageType") or ()]
    _refuse_hologic_sco(path, dataset, sop_class)
    if not _is_mammography(sop_class, modality, words, dataset):
        if not sop_class or not modality:  # every image and report has both
            raise InputError(f"{path} does not say what it is: it is cut off, or not an image; copy it again.")
        known = modality if modality in MODALITIES else "unknown"
        raise OtherKindError(f"{path} is not mammography (modality {known}); leave it out.")

    def says(known: tuple[str, ...]) -> bool:
        return not set(known).isdisjoint(words)

    if sop_class in PROJECTIONS or says(PROJECTION_WORDS):
        return "projection"
    text = str(dataset.get("SeriesDescription") or "").upper()
    virtual = str(dataset.get("StudyDescription") or "") == VIRTUAL_TRIAL  # whose descriptions all say "synthetic"
    if frames == 1 and (says(SYNTHESISED_WORDS) or (SYNTHESISED_NAMES.search(text) and not virtual)):
        return "synthesised 2D"
    if sop_class == TOMOSYNTHESIS or frames > 1:
        return "DBT"
    if sop_class == CT or says(TOMO_WORDS):
        return "DBT slice"
    if says(CONTRAST_WORDS):
        return "contrast 2D"
    if _is_film(dataset):
        return "film"
    if sop_class not in CAPTURES:
        return "FFDM"
    return "DBT slice" if _has_place(dataset) or TOMO_NAMES.search(text) else "captured 2D"


def _is_mammography(sop_class: str, modality: str, words: list[str], dataset: Dataset) -> bool:
    if sop_class in (TOMOSYNTHESIS, *MAMMOGRAPHY, *PROJECTIONS):
        return True
    if sop_class in RADIOGRAPHY:
        return modality == "MG"
    body = str(dataset.get("BodyPartExamined", "")).upper()
    return sop_class in (CT, *CAPTURES) and (modality == "MG" or "TOMO" in words or "BREAST" in body)


def _is_film(dataset: Dataset) -> bool:
    detector, conversion = (str(dataset.get(name) or "").upper() for name in ("DetectorType", "ConversionType"))
    return detector == "FILM" or conversion == "DF"


def _has_place(dataset: Dataset) -> bool:
    """Whether a capture says where in a volume it lies, which no film and no screenshot does."""
    return any(dataset.get(name) not in (None, "") for name in ("ImagePositionPatient", "SliceLocation"))


def _refuse_hologic_sco(path: Path, dataset: Dataset, sop_class: str) -> None:
    hologic = "HOLOGIC" in str(dataset.get("Manufacturer", "")).upper()
    if sop_class == SECONDARY_CAPTURE and hologic and any(element.tag.group == 0x7E01 for element in dataset):
        raise InputError(
            f"{path} is a Hologic SCO object, whose slices only Hologic's software can read: "
            'export the exam as "BTO" (Breast Tomosynthesis).'
        )
