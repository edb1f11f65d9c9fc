"""Proposals and findings written down in a line, for the tests of the metrics."""

import numpy as np

from mm3d.evaluate.metrics.froc import Detections
from mm3d.evaluate.metrics.hits import Findings, FloatArray, Proposals

Box = tuple[float, float, float, float]
SQUARE: Box = (0, 0, 100, 100)


def proposals(*rows: tuple[int, Box, float, float], depth: float = 0.0) -> Proposals:
    """Rows of volume, box, slice, score."""
    return Proposals(
        volume=np.array([row[0] for row in rows], dtype=np.int64),
        boxes=np.array([row[1] for row in rows], dtype=float).reshape(-1, 4),
        slices=np.array([row[2] for row in rows], dtype=float),
        depths=np.full(len(rows), depth),
        scores=np.array([row[3] for row in rows], dtype=float),
    )


def findings(*rows: tuple[int, Box, float], ranges: dict[int, tuple[int, int]] | None = None) -> Findings:
    """Rows of volume, box, slice; `ranges` has the visible range of some."""
    known = ranges or {}
    return Findings(
        volume=np.array([row[0] for row in rows], dtype=np.int64),
        boxes=np.array([row[1] for row in rows], dtype=float).reshape(-1, 4),
        slices=np.array([row[2] for row in rows], dtype=float),
        first=np.array([known.get(i, (np.nan, np.nan))[0] for i in range(len(rows))], dtype=float),
        last=np.array([known.get(i, (np.nan, np.nan))[1] for i in range(len(rows))], dtype=float),
    )


def detections(found: list[float], false: list[float], volumes: int) -> Detections:
    """All of one patient each, in turn: who owns what matters to the bootstrap only."""

    def owners(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(count, dtype=np.int64) % max(volumes, 1)

    return Detections(array(found), array(false), owners(len(found)), owners(len(false)), owners(volumes))


def array(values: list[float]) -> FloatArray:
    return np.array(values, dtype=float)
