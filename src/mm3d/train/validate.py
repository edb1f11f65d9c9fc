"""Validation with the predictions, rules and metrics of `mm3d evaluate`.

A new figure needs a line in `FIGURES` and a value in `measure`; `METRICS` lists what can decide which weights are best.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from mm3d.data.inputs import modality_of
from mm3d.data.prepare.prepared import PreparedBreast
from mm3d.evaluate.match import froc_scores, highest_findings, match_predictions, score_breasts
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.metrics.roc import delong
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.output.predictions import BreastPrediction, Predictions, read_json, write_json
from mm3d.train.cohorts import ValidationCohort

# Figures that cannot be computed are NaN. The order is fixed, because ranks exchange the bare numbers.
FIGURES = ("recall@0.25", "recall@0.5", "recall3d@0.25", "recall3d@0.5", "auc", "auc_max")
# The figures whose mean decides which weights are the best, for each value of validate.metric. Higher is better.
METRICS = {"recall": ("recall@0.25",), "auc": ("auc",), "auc_max": ("auc_max",), "mean": ("recall@0.25", "auc")}

Predict = Callable[[PreparedBreast, ValidationCohort], BreastPrediction]


def validate(fabric: Fabric, predict: Predict, cohorts: Sequence[ValidationCohort], exchange: Path) -> dict[str, float]:
    """Predict the breasts of all cohorts and return the figures. Ranks share the breasts, and the first one measures.

    The other ranks leave their predictions in the folder `exchange`, which all nodes must be able to read.
    """
    rank, ranks = fabric.global_rank, fabric.world_size
    predicted = [[predict(breast, cohort) for breast in cohort.breasts[rank::ranks]] for cohort in cohorts]

    def file(number: int, rank: int) -> Path:
        return exchange / f"cohort-{number}-rank-{rank}.json"

    if rank > 0:
        for number, breasts in enumerate(predicted):
            write_json(Predictions(tuple(breasts)), file(number, rank))
    fabric.barrier()
    values = torch.zeros(len(FIGURES), dtype=torch.float64, device=fabric.device)
    if rank == 0:
        for number, breasts in enumerate(predicted):
            for other in range(1, ranks):
                breasts += read_json(file(number, other)).breasts
                file(number, other).unlink()
        figures = measure(cohorts, predicted)
        values += torch.tensor([figures[name] for name in FIGURES], dtype=torch.float64)
    together: Any = fabric.all_reduce(values, reduce_op="sum")  # the other ranks add zeros
    return dict(zip(FIGURES, together.tolist(), strict=True))


def measure(cohorts: Sequence[ValidationCohort], predicted: Sequence[Sequence[BreastPrediction]]) -> dict[str, float]:
    """R@0.25 and R@0.5, AUC of the model's breast score and of the highest proposal, over all cohorts together."""
    found: dict[str, list[FrocScores]] = {"2D": [], "3D": []}
    scores: dict[str, list[np.ndarray]] = {"auc": [], "auc_max": []}
    positive = []
    for cohort, breasts in zip(cohorts, predicted, strict=True):
        settings = EvaluateSettings(split=cohort.split, modality=modality_of(cohort.input))
        matched = match_predictions("validation", Predictions(tuple(breasts)), cohort.truth, settings)
        for rule in matched.rules:
            found[rule].append(froc_scores(matched, rule))
        units = score_breasts(matched)
        scores["auc"].append(units.scores)
        scores["auc_max"].append(score_breasts(matched, scores=highest_findings(matched)).scores)
        positive.append(units.positive)
    figures = {}
    for rule, prefix in (("2D", "recall"), ("3D", "recall3d")):
        for rate in (0.25, 0.5):
            figures[f"{prefix}@{rate:g}"] = recall_at(_concatenate(found[rule]), rate) if found[rule] else math.nan
    for name, parts in scores.items():
        figures[name] = float(delong(np.concatenate(parts)[None], np.concatenate(positive)).auc[0])
    return figures


def _concatenate(parts: list[FrocScores]) -> FrocScores:
    fields = ("hit", "false", "hit_patient", "false_patient", "volume_patient")
    return FrocScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
