"""per-finding.csv and per-volume.csv: what to look at when a figure surprises."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mm3d.evaluate.measure import Measured, reference_slices
from mm3d.evaluate.metrics.hits import best_proposals
from mm3d.shared.files import replacing

FINDING_COLUMNS = (
    *("system", "PatientID", "StudyUID", "View", "modality", "malignant", "kind", "x1", "y1", "x2", "y2"),
    *("slice", "first_slice", "last_slice", "hit_2d", "hit_3d", "score", "rank", "iou"),
    *("proposal_x1", "proposal_y1", "proposal_x2", "proposal_y2", "proposal_slice", "slice_error", "slice_error_mm"),
)
VOLUME_COLUMNS = (
    *("system", "PatientID", "StudyUID", "View", "modality", "split", "breast_label", "annotated", "in_froc"),
    *("findings", "malignant_findings", "malignant_findings_hit_2d", "malignant_findings_hit_3d"),
    *("proposals", "image_score", "highest_false_positive_2d"),
)

Cell = str | int | float | None


def write_lists(systems: list[Measured], folder: Path) -> None:
    _write(folder / "per-finding.csv", FINDING_COLUMNS, (row for system in systems for row in _findings(system)))
    _write(folder / "per-volume.csv", VOLUME_COLUMNS, (row for system in systems for row in _volumes(system)))


def _write(path: Path, columns: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> None:
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(tuple(map(_cell, row)) for row in rows)


def _cell(value: Cell) -> str:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _findings(system: Measured) -> Iterator[tuple[Cell, ...]]:
    """Each finding with the highest-scoring proposal that hits it in 2D; `rank` is its place in its volume, from 1."""
    judged, joined = system.judged, system.judged.joined
    proposals, flat = joined.proposals, judged.rules["2D"].hits
    best = best_proposals(flat, proposals, len(joined.marks))
    overlap = dict(zip(zip(flat.proposal.tolist(), flat.finding.tolist(), strict=True), flat.iou.tolist(), strict=True))
    deep = set(judged.rules["3D"].hits.finding.tolist()) if "3D" in judged.rules else set()
    known = ~np.isnan(judged.visible[0])
    reference = reference_slices(joined.findings)
    for f, mark in enumerate(joined.marks):
        view = joined.views[joined.findings.volume[f]]
        p = int(best[f])
        told: tuple[Cell, ...] = (None,) * 10
        if p >= 0:
            rivals = proposals.scores[proposals.volume == proposals.volume[p]]
            error = float(abs(proposals.slices[p] - reference[f]))
            told = (
                float(proposals.scores[p]),
                1 + int((rivals > proposals.scores[p]).sum()),
                overlap[p, f],
                *map(float, proposals.boxes[p]),
                float(proposals.slices[p]),
                error,
                None if view.slice_spacing is None else error * view.slice_spacing,
            )
        yield (
            *(joined.name, *view.key[:3], joined.modality, int(mark.malignant), mark.kind, *map(float, mark.box)),
            *(mark.slice, mark.first_slice, mark.last_slice, int(p >= 0)),
            int(f in deep) if "3D" in judged.rules and known[f] else None,
            *told,
        )


def _volumes(system: Measured) -> Iterator[tuple[Cell, ...]]:
    judged, joined = system.judged, system.judged.joined
    V, volume = len(joined.views), joined.findings.volume
    hit = {}
    for name, rule in judged.rules.items():
        found = np.zeros(len(joined.marks), dtype=bool)
        found[rule.hits.finding] = True
        hit[name] = np.bincount(volume[found & rule.judged], minlength=V)
    flat = judged.rules["2D"]
    false = np.ones(len(joined.proposals.scores), dtype=bool)
    false[flat.hits.proposal[flat.judged[flat.hits.finding]]] = False
    highest = np.full(V, -np.inf)
    np.maximum.at(highest, joined.proposals.volume[false], joined.proposals.scores[false])
    count = np.bincount(joined.proposals.volume, minlength=V)
    for v, view in enumerate(joined.views):
        breast = joined.breasts[joined.breast_of[v]]
        marks = view.findings or ()
        yield (
            *(joined.name, *view.key[:3], joined.modality, breast.split, breast.label),
            *(int(view.findings is not None), int(judged.volumes[v])),
            *(len(marks), sum(mark.malignant for mark in marks)),
            *(int(hit[name][v]) if name in hit else None for name in ("2D", "3D")),
            *(int(count[v]), float(joined.view_scores[v]), float(highest[v])),
        )
