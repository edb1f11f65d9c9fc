"""Validation with the predictions, rules and metrics of `mm3d evaluate`.

To add a figure, compute it in `measure`. `METRICS` lists what can decide which weights are the best.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from mm3d.data.inputs import modality_of
from mm3d.data.prepare.prepared import PreparedBreast
from mm3d.evaluate.match import EvaluateSettings, froc_scores, highest_findings, match_predictions
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.metrics.roc import delong
from mm3d.output.predictions import BreastPrediction, Predictions
from mm3d.train.cohorts import ValidationCohort

# The figures whose mean decides which weights are the best, for each value of validate.metric. Higher is better.
METRICS = {"recall": ("recall@0.25",), "auc": ("auc",), "auc_max": ("auc_max",), "mean": ("recall@0.25", "auc")}

Predict = Callable[[PreparedBreast, ValidationCohort], BreastPrediction]


def validate(fabric: Fabric, predict: Predict, cohorts: Sequence[ValidationCohort]) -> dict[str, float]:
    """Predict the breasts of all cohorts and return the figures. Ranks share the breasts; the first one measures."""
    rank, ranks = fabric.global_rank, fabric.world_size
    predicted = [[predict(breast, cohort) for breast in cohort.breasts[rank::ranks]] for cohort in cohorts]
    if ranks > 1:
        parts: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(parts, predicted)
        predicted = [[breast for part in parts for breast in part[number]] for number in range(len(cohorts))]
    return fabric.broadcast(measure(cohorts, predicted) if rank == 0 else {})


def measure(cohorts: Sequence[ValidationCohort], predicted: Sequence[Sequence[BreastPrediction]]) -> dict[str, float]:
    """R@0.25 and R@0.5, AUC of the model's breast score and of the highest proposal, over all cohorts together. Figures
    that cannot be computed are NaN."""
    found: dict[str, list[FrocScores]] = {"2D": [], "3D": []}
    scores: dict[str, list[np.ndarray]] = {"auc": [], "auc_max": []}
    positive = []
    for cohort, breasts in zip(cohorts, predicted, strict=True):
        settings = EvaluateSettings(split=cohort.split, modality=modality_of(cohort.input))
        matched = match_predictions("validation", Predictions(tuple(breasts)), cohort.truth, settings)
        for rule in matched.rules:
            found[rule].append(froc_scores(matched, rule))
        units = matched.units["breast"]
        scores["auc"].append(units.scores)
        scores["auc_max"].append(highest_findings(matched)[units.number])
        positive.append(units.positive)
    figures = {}
    for rule, prefix in (("2D", "recall"), ("3D", "recall3d")):
        for rate in (0.25, 0.5):
            figures[f"{prefix}@{rate:g}"] = recall_at(_concatenate(found[rule]), rate) if found[rule] else math.nan
    for name, parts in scores.items():
        figures[name] = float(delong(np.concatenate(parts)[None], np.concatenate(positive)).values[0])
    return figures


def _concatenate(parts: list[FrocScores]) -> FrocScores:
    fields = ("hit", "false", "hit_patient", "false_patient", "volume_patient")
    return FrocScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
