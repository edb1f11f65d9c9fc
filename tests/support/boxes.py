"""Findings and annotations written in a line, for the tests of the metrics."""

import numpy as np

from mm3d.evaluate.metrics.froc import FrocScores
from mm3d.evaluate.metrics.hits import Annotations, Findings, FloatArray

Box = tuple[float, float, float, float]
SQUARE: Box = (0, 0, 100, 100)


def make_findings(*rows: tuple[int, Box, float, float], span: float = 0.0) -> Findings:
    """Rows of volume, box, slice, score."""
    return Findings(
        volume=np.array([row[0] for row in rows], dtype=np.int64),
        boxes=np.array([row[1] for row in rows], dtype=float).reshape(-1, 4),
        slices=np.array([row[2] for row in rows], dtype=float),
        spans=np.full(len(rows), span),
        scores=np.array([row[3] for row in rows], dtype=float),
    )


def make_annotations(*rows: tuple[int, Box, float], ranges: dict[int, tuple[int, int]] | None = None) -> Annotations:
    """Rows of volume, box, slice; `ranges` has the visible range of some."""
    known = ranges or {}
    return Annotations(
        volume=np.array([row[0] for row in rows], dtype=np.int64),
        boxes=np.array([row[1] for row in rows], dtype=float).reshape(-1, 4),
        slices=np.array([row[2] for row in rows], dtype=float),
        first=np.array([known.get(i, (np.nan, np.nan))[0] for i in range(len(rows))], dtype=float),
        last=np.array([known.get(i, (np.nan, np.nan))[1] for i in range(len(rows))], dtype=float),
    )


def make_scores(hit: list[float], false: list[float], volumes: int) -> FrocScores:
    """Patients take turns: only the bootstrap looks at them."""

    def patients(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(count, dtype=np.int64) % max(volumes, 1)

    return FrocScores(array(hit), array(false), patients(len(hit)), patients(len(false)), patients(volumes))


def array(values: list[float]) -> FloatArray:
    return np.array(values, dtype=float)
