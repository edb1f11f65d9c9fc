"""Content items: the nodes of a structured report's tree. Each has a relationship to the one it is in."""

from collections.abc import Iterable
from typing import Any

from pydicom.dataset import Dataset

from mm3d.data.dicom.build import code, item, number
from mm3d.output.sr.codes import Code


def make_node(
    kind: str, name: Code | None, relationship: str = "", children: Iterable[Dataset] = (), **fields: Any
) -> Dataset:
    """A content item and what is below it."""
    node = item(ValueType=kind, **fields)
    if relationship:
        node.RelationshipType = relationship
    if name is not None:
        node.ConceptNameCodeSequence = [_code_item(name)]
    children = list(children)
    if children:
        node.ContentSequence = children
    return node


def make_code(relationship: str, name: Code, value: Code, children: Iterable[Dataset] = ()) -> Dataset:
    return make_node("CODE", name, relationship, children, ConceptCodeSequence=[_code_item(value)])


def make_text(relationship: str, name: Code, text: str) -> Dataset:
    return make_node("TEXT", name, relationship, TextValue=text)


def make_number(
    relationship: str, name: Code, value: float, unit: Code, children: Iterable[Dataset] = (), **fields: Any
) -> Dataset:
    measured = item(NumericValue=number(value), MeasurementUnitsCodeSequence=[_code_item(unit)], **fields)
    return make_node("NUM", name, relationship, children, MeasuredValueSequence=[measured])


def make_reference(file: Dataset, frame: int | None = None) -> Dataset:
    """What names an image, or one of its frames (counted from 1), in the SOP sequence of an item."""
    reference = item(ReferencedSOPClassUID=file.SOPClassUID, ReferencedSOPInstanceUID=file.SOPInstanceUID)
    if frame is not None:
        reference.ReferencedFrameNumber = frame
    return reference


def _code_item(known: Code) -> Dataset:
    return code(known.value, known.meaning, known.scheme)
