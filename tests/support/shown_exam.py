"""A small exam for reports: half-disc breasts whose grey value is that of the slice, so that a picture tells it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mm3d.data.records import Laterality, Modality, Position
from mm3d.output.report.exam import ShownExam, ShownFinding, ShownView

HEIGHT, WIDTH = 240, 160


def grey(z: int) -> int:
    """Of the tissue on slice z."""
    return 60 + 5 * z


def bell(slices: int, middle: int, width: float = 2.0) -> tuple[float, ...]:
    w = np.exp(-0.5 * ((np.arange(slices) - middle) / width) ** 2)
    return tuple((w / w.sum()).tolist())


def finding(score: float, z: int, slices: int, x: float = 40, group: int | None = None) -> ShownFinding:
    return ShownFinding((x, 100, x + 24, 124), score, z, bell(slices, z), group)


def shown_view(
    laterality: Laterality, position: Position, modality: Modality, slices: int, *findings: ShownFinding
) -> ShownView:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    from_wall = x if laterality == "L" else WIDTH - 1 - x
    inside = (from_wall / 120) ** 2 + ((y - HEIGHT / 2) / 100) ** 2 < 1

    def frame(z: int) -> NDArray[np.uint8]:
        return np.where(inside, grey(z), 0).astype(np.uint8)

    score = max((found.score for found in findings), default=0.02)
    spacing = 1.0 if slices > 1 else None
    return ShownView(
        laterality,
        position,
        modality,
        (slices, HEIGHT, WIDTH),
        frame,
        findings,
        score,
        pixel_spacing=0.5,
        slice_spacing=spacing,
    )


def shown_exam(**changes: object) -> ShownExam:
    """Right CC and MLO show one lesion, 1; right CC has another, 2, and something below the operating point, 5; left CC
    has 3 in the volume and 4 in the mammogram; left MLO is missing."""
    views = (
        shown_view(
            "R", "CC", "DBT", 20, finding(0.1, 10, 20, 60), finding(0.9, 6, 20, group=0), finding(0.5, 15, 20, 90)
        ),
        shown_view("L", "CC", "FFDM", 1, ShownFinding((20, 60, 40, 90), 0.4)),
        shown_view("L", "CC", "DBT", 12, finding(0.45, 3, 12)),
        shown_view("R", "MLO", "DBT", 30, finding(0.8, 20, 30, group=0)),
    )
    exam = ShownExam(
        "CASE-7",
        views,
        threshold=0.3,
        weights_name="mini-1",
        intended_use="Trained on synthetic breasts.",
        score=0.9,
        breast_scores={"R": 0.9, "L": 0.45},
    )
    return replace(exam, **changes)  # type: ignore[arg-type]
