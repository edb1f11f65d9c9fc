"""The score from which on a finding is marked, and where that number comes from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm3d.data.inputs import modality_of
from mm3d.data.records import Modality
from mm3d.model.weights import WeightsHeader
from mm3d.shared.errors import InputError

DEFAULT = 0.5  # where nobody says: not a chosen point, and every output says so


@dataclass(frozen=True)
class OperatingPoint:
    """Findings that score at least `threshold` are marked."""

    threshold: float
    source: str  # who said so
    chosen_on: Modality | None = None  # None: nobody knows, or it was not chosen on images

    def remark(self, modalities: set[Modality]) -> str | None:
        """A sentence if images of these kinds include one that it was not chosen on."""
        if self.chosen_on is None or modalities <= {self.chosen_on}:
            return None
        judged, chosen = ("Mammograms", "volumes") if self.chosen_on == "DBT" else ("Volumes", "mammograms")
        return f"{judged} are judged by an operating point that was chosen on {chosen}; --threshold sets another."


def choose(threshold: float | None, file: str | None, header: WeightsHeader) -> OperatingPoint:
    """The threshold given, or one of an evaluation, or the weights' own, or the default."""
    if threshold is not None:
        return OperatingPoint(threshold, "given with --threshold")
    if file is not None:
        return from_evaluation(file)
    own = header.provenance.get("operating_point")
    if own is not None:
        told = own if isinstance(own, dict) else {"threshold": own}
        threshold = _checked(told.get("threshold"), "the weights")
        trained_on = header.provenance.get("input")  # a point in the weights is of what they were trained on
        modality = None if trained_on is None else modality_of(trained_on)
        return OperatingPoint(threshold, str(told.get("source", "of the weights")), modality)
    return OperatingPoint(DEFAULT, "a default: neither the command nor the weights have an operating point")


def from_evaluation(text: str) -> OperatingPoint:
    """FILE or FILE:NAME, a metrics.json of `mm3d evaluate` and one of its operating points of findings, such as
    2D@0.25; without a name, the first."""
    path, name = Path(text), ""
    if not path.exists() and ":" in text:
        before, _, name = text.rpartition(":")
        path = Path(before)
    system = _system(path)
    points = {_name(point): point for point in system["operating_points"] if point.get("of") == "findings"}
    if not points:
        raise InputError(f"{path} has no operating point of findings; evaluate predictions that have some.")
    if name and name not in points:
        raise InputError(f"{path} has no operating point {name!r}; it has {', '.join(points)}.")
    chosen = name or next(iter(points))
    threshold = _checked(points[chosen].get("threshold"), f"{path}, {chosen},")
    return OperatingPoint(threshold, f"{chosen} false positives per volume", system.get("modality"))


def _name(point: dict[str, Any]) -> str:
    return f"{point['rule']}@{point['wanted']['fp_per_volume']:g}"


def _system(path: Path) -> dict[str, Any]:
    """What an evaluation of one system says."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a metrics.json that 'mm3d evaluate' wrote.")
    try:
        systems = json.loads(path.read_text(encoding="utf-8"))["systems"]
        points = [system["operating_points"] for system in systems]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no metrics.json of 'mm3d evaluate'; give one.") from error
    if len(points) != 1:
        raise InputError(f"{path} compares {len(points)} systems; evaluate the predictions of these weights alone.")
    return systems[0]


def _checked(threshold: Any, whose: str) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise InputError(f"The operating point of {whose} is {threshold}, no score from 0 to 1; give a --threshold.")
    return float(threshold)
