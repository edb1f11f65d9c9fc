"""Write per-finding.csv and per-volume.csv: what to look at when a metric is surprising."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mm3d.evaluate.match import MatchedPredictions
from mm3d.evaluate.metrics.hits import best_findings, highest_by, reference_slices
from mm3d.shared.spreadsheet import write_rows

Columns = dict[str, Any]  # of sequences


def write_lists(systems: list[MatchedPredictions], folder: Path) -> None:
    _write(folder / "per-finding.csv", [_list_annotations(matched) for matched in systems])
    _write(folder / "per-volume.csv", [_list_volumes(matched) for matched in systems])


def _write(path: Path, tables: list[Columns]) -> None:
    rows = (map(_cell, row) for columns in tables for row in zip(*columns.values(), strict=True))
    write_rows(path, chain([tables[0]], rows))


def _cell(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.10g}" if np.isfinite(value) else ""
    return "" if value is None else str(value)


def _list_annotations(matched: MatchedPredictions) -> Columns:
    """Each annotation with the best finding that hits it in 2D; `rank` is the place of the finding in its volume."""
    findings, annotations, flat = matched.findings, matched.annotations, matched.rules["2D"].hits
    best = best_findings(flat, findings, len(matched.records))

    def of_best(values: Any) -> Any:
        return np.append(values, np.nan)[best]  # the number -1, no finding, takes the NaN

    scores, overlap = of_best(findings.scores), np.full(len(best), np.nan)
    shown = best[flat.annotation] == flat.finding
    overlap[flat.annotation[shown]] = flat.iou[shown]
    ranks = [
        None if np.isnan(score) else 1 + (findings.scores[findings.volume == volume] > score).sum()
        for volume, score in zip(annotations.volume, scores, strict=True)
    ]
    hit_3d = np.full(len(best), np.nan)
    if "3D" in matched.rules:
        hit_3d[~np.isnan(matched.visible[0])] = 0
        hit_3d[matched.rules["3D"].hits.annotation] = 1
    slices = of_best(findings.slices)
    error = np.abs(slices - reference_slices(annotations))
    views = [matched.views[volume] for volume in annotations.volume]
    return {
        **_identify(matched, views),
        "malignant": matched.malignant,
        "kind": [record.kind for record in matched.records],
        **dict(zip(("x1", "y1", "x2", "y2"), annotations.boxes.T, strict=True)),
        "slice": annotations.slices,
        "first_slice": annotations.first,
        "last_slice": annotations.last,
        "hit_2d": best >= 0,
        "hit_3d": hit_3d,
        "score": scores,
        "rank": ranks,
        "iou": overlap,
        **{f"proposal_{name}": of_best(findings.boxes[:, i]) for i, name in enumerate(("x1", "y1", "x2", "y2"))},
        "proposal_slice": slices,
        "slice_error": error,
        "slice_error_mm": error * matched.of_views("slice_spacing")[annotations.volume],
    }


def _list_volumes(matched: MatchedPredictions) -> Columns:
    findings, V = matched.findings, len(matched.views)
    breasts = [matched.breasts[number] for number in matched.breast_of]
    hits = {
        name: matched.count(rule.judged & np.isin(np.arange(len(rule.judged)), rule.hits.annotation))
        for name, rule in matched.rules.items()
    }
    false = matched.rules["2D"].false
    return {
        **_identify(matched, matched.views),
        "split": [breast.split for breast in breasts],
        "breast_label": [breast.label for breast in breasts],
        "annotated": matched.annotated,
        "in_froc": matched.counted,
        "findings": np.bincount(matched.annotations.volume, minlength=V),
        "malignant_findings": matched.count(matched.malignant),
        "malignant_findings_hit_2d": hits["2D"],
        "malignant_findings_hit_3d": hits.get("3D", [None] * V),
        "proposals": np.bincount(findings.volume, minlength=V),
        "image_score": matched.view_scores,
        "highest_false_positive_2d": highest_by(findings.volume[false], findings.scores[false], V),
    }


def _identify(matched: MatchedPredictions, views: Sequence[Any]) -> Columns:
    return {
        "system": [matched.name] * len(views),
        "PatientID": [view.key.patient for view in views],
        "StudyUID": [view.key.study for view in views],
        "View": [view.key.view for view in views],
        "modality": [matched.modality] * len(views),
    }
