"""Which score a finding must reach to be marked: given by the user, by an evaluation, or by the weights."""

import json
from pathlib import Path
from typing import Any

from mm3d.data.inputs import modality_of
from mm3d.model.weights import WeightsHeader
from mm3d.output.result import OperatingPoint
from mm3d.shared.errors import InputError

DEFAULT = 0.5  # if nobody gives one: no choice was made, and every output says so


def choose_operating_point(threshold: float | None, file: str | None, header: WeightsHeader) -> OperatingPoint:
    """The threshold that was given, or one of an evaluation, or that of the weights, or the default."""
    if threshold is not None:
        return OperatingPoint(threshold, "given with --threshold")
    if file is not None:
        return _read_evaluation(file)
    own = header.provenance.get("operating_point")
    if own is None:
        return OperatingPoint(DEFAULT, "a default: neither the command nor the weights have an operating point")
    own = own if isinstance(own, dict) else {"threshold": own}
    trained_on = header.provenance.get("input")  # a point in the weights is for what they were trained on
    modality = None if trained_on is None else modality_of(trained_on)
    threshold = _check_threshold(own.get("threshold"), "the weights")
    return OperatingPoint(threshold, str(own.get("source", "of the weights")), modality)


def _read_evaluation(text: str) -> OperatingPoint:
    """FILE or FILE:NAME: a metrics.json of `mm3d evaluate` and one of its operating points of findings, such as
    2D@0.25. Without a name, the first is taken."""
    path, name = Path(text), ""
    if not path.exists() and ":" in text:
        before, _, name = text.rpartition(":")
        path = Path(before)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a metrics.json that 'mm3d evaluate' wrote.")
    try:
        systems = json.loads(path.read_text(encoding="utf-8"))["systems"]
        found = [point for system in systems for point in system["operating_points"] if point.get("of") == "findings"]
        points = {f"{point['rule']}@{point['wanted']['fp_per_volume']:g}": point for point in found}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no metrics.json of 'mm3d evaluate'; give one.") from error
    if len(systems) != 1:
        raise InputError(f"{path} compares {len(systems)} systems; evaluate the predictions of these weights alone.")
    if not points:
        raise InputError(f"{path} has no operating point of findings; evaluate predictions that have some.")
    if name and name not in points:
        raise InputError(f"{path} has no operating point {name!r}; it has {', '.join(points)}.")
    chosen = name or next(iter(points))
    threshold = _check_threshold(points[chosen].get("threshold"), f"{path}, {chosen},")
    return OperatingPoint(threshold, f"{chosen} false positives per volume", systems[0].get("modality"))


def _check_threshold(threshold: Any, owner: str) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise InputError(f"The operating point of {owner} is {threshold}, no score from 0 to 1; give a --threshold.")
    return float(threshold)
