"""Small pieces of the DICOM that we write: identifiers, numbers, codes and items of sequences."""

import uuid
from typing import Any

from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import UID
from pydicom.valuerep import format_number_as_ds

NAMESPACE = uuid.UUID("6e1a2f0e-3f0b-5f57-9a5e-3d6d6d336400")  # of all our UIDs; any, but always this one


def uid(*names: str) -> UID:
    """A UID that is a pure function of the names (PS3.5 B.2: a UUID under 2.25)."""
    return UID(f"2.25.{uuid.uuid5(NAMESPACE, '|'.join(names)).int}")


def number(value: float) -> str:
    """A number as DICOM writes it, in at most 16 characters; -0 is 0."""
    return format_number_as_ds(float(value) + 0.0)


def code(value: str, meaning: str, scheme: str = "SCT", **fields: Any) -> Dataset:
    return item(CodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning, **fields)


def item(**fields: Any) -> Dataset:
    ds = Dataset()
    for name, value in fields.items():
        setattr(ds, name, Sequence(value) if name.endswith("Sequence") else value)
    return ds
