"""Functional groups: what a multi-frame image says of all its frames, or of each."""

from typing import Any

from pydicom.dataset import Dataset


def functional_group(dataset: Dataset, name: str) -> Dataset:
    """A functional group of a multi-frame image: the one that all frames share, else that of the first frame."""
    for place in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        group = first_item(dataset.get(place)).get(name)
        if group:
            return group[0]
    return Dataset()


def first_item(sequence: Any) -> Dataset:
    return sequence[0] if sequence else Dataset()
