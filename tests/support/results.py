"""A small exam for the report page: half-disc breasts. The grey value shows the slice."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from mm3d.data.records import Laterality, Modality, Position
from mm3d.output.predictions import Finding
from mm3d.output.result import ExamResult, Method, OperatingPoint, ViewResult

HEIGHT, WIDTH = 240, 160
PREDICTED_AT = datetime(2026, 3, 4, 5, 6, 7)


def grey(z: int) -> int:
    """Of the tissue on slice z."""
    return 60 + 5 * z


def bell(slices: int, middle: int, width: float = 2.0) -> tuple[float, ...]:
    w = np.exp(-0.5 * ((np.arange(slices) - middle) / width) ** 2)
    return tuple((w / w.sum()).tolist())


def finding(score: float, z: int, slices: int, x: float = 40, lesion: int | None = None) -> Finding:
    return Finding((x, 100, x + 24, 124), score, z, slice_weights=bell(slices, z), lesion=lesion)


def view_result(
    laterality: Laterality, position: Position, modality: Modality, slices: int, *findings: Finding
) -> ViewResult:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    from_wall = x if laterality == "L" else WIDTH - 1 - x
    inside = (from_wall / 120) ** 2 + ((y - HEIGHT / 2) / 100) ** 2 < 1
    return ViewResult(
        (laterality + position).lower(),
        findings,
        modality,
        score=max((found.score for found in findings), default=0.02),
        frames=np.stack([np.where(inside, grey(z), 0).astype(np.uint8) for z in range(slices)]),
        pixel_spacing=0.5,
        slice_spacing=1.0 if slices > 1 else None,
    )


def exam_result(views: Sequence[ViewResult] | None = None, threshold: float = 0.3, **changes: Any) -> ExamResult:
    """Right CC and MLO show one lesion, 1; right CC has another, 2, and something below the operating point, 5; left CC
    has 3 in the volume and 4 in the mammogram; left MLO is missing."""
    if views is None:
        lesion = finding(0.9, 6, 20, lesion=0), finding(0.8, 20, 30, lesion=0)
        views = (
            view_result("R", "CC", "DBT", 20, finding(0.1, 10, 20, 60), lesion[0], finding(0.5, 15, 20, 90)),
            view_result("L", "CC", "FFDM", 1, Finding((20, 60, 40, 90), 0.4)),
            view_result("L", "CC", "DBT", 12, finding(0.45, 3, 12)),
            view_result("R", "MLO", "DBT", 30, lesion[1]),
        )
    scores = {"R": 0.9, "L": 0.45}
    sides = dict.fromkeys(view.laterality for view in views)
    result = ExamResult(
        "CASE-7",
        "P1",
        tuple(views),
        {side: scores[side] for side in sides},
        Method("mini-1", "Trained on synthetic breasts.", OperatingPoint(threshold)),
        PREDICTED_AT,
    )
    return replace(result, **changes)
