"""Validation with the predictions, rules and metrics of `mm3d evaluate`.

To add a figure, compute it in `measure`. `METRICS` lists what can decide which weights are the best.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from mm3d.data.inputs import modality_of
from mm3d.evaluate.match import EvaluateSettings, froc_scores, highest_findings, match_predictions
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.metrics.roc import delong
from mm3d.model import weights
from mm3d.output.predictions import BreastPrediction, Predictions
from mm3d.shared.console import say
from mm3d.train.cohorts import ValidationCohort
from mm3d.train.config import DENSE, ValidateConfig
from mm3d.train.log import Log, draw_curves
from mm3d.train.state import State

RATES = (0.25, 0.5, 1.0, 2.0)  # X of R@X that are shown
# The figures whose mean decides which weights are the best, for each value of validate.metric. Higher is better.
METRICS = {"recall": ("recall@0.25",), "auc": ("auc",), "auc_max": ("auc_max",), "mean": ("recall@0.25", "auc")}


def validate(
    fabric: Fabric, config: ValidateConfig, state: State, cohorts: Sequence[ValidationCohort], log: Log
) -> None:
    """Validate, and save the weights: always as the last, and as the best if they are."""
    learner, better = state.result, False
    if cohorts:
        learner.eval()
        figures = predict_and_measure(fabric, learner, cohorts)
        state.learner.train()
        value = fmean(figures[name] for name in METRICS[config.metric])
        better = state.best is None or value > state.best
        if better:
            state.best, state.best_step, state.worse, state.figures = value, state.step, 0, figures
        else:
            state.worse += 1
            state.stopped = 0 < config.patience <= state.worse
        log.write({"step": state.step, "validation": figures, "best": better})
        shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items() if not math.isnan(figure))
        say(log.console, f"{learner.stage}, step {state.step}: {shown}{' (best)' if better else ''}")
    if fabric.is_global_zero:
        if better:
            save_weights(state, "best.safetensors", state.figures)
        save_weights(state, "last.safetensors", {})
        draw_curves(state.folder)


def save_weights(state: State, name: str, figures: dict[str, float]) -> None:
    """Write a weights file that says how it was made."""
    # Everybody who uses the weights must see that the breasts were synthetic.
    use = [weights.RESEARCH_ONLY, *(f"Of the training data: {note}" for note in state.provenance["notes"])]
    provenance = state.provenance | {"step": state.step, "validation": figures}
    weights.save(state.result.detector, state.folder / name, provenance, " ".join(use))


def predict_and_measure(fabric: Fabric, learner: Any, cohorts: Sequence[ValidationCohort]) -> dict[str, float]:
    """Predict the breasts of all cohorts and return the figures. Ranks share the breasts; the first one measures."""
    rank, ranks = fabric.global_rank, fabric.world_size
    predicted = [[learner.predict(breast) for breast in cohort.breasts[rank::ranks]] for cohort in cohorts]
    if ranks > 1:
        parts: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(parts, predicted)
        predicted = [[breast for part in parts for breast in part[number]] for number in range(len(cohorts))]
    figures = fabric.broadcast(measure(cohorts, predicted) if rank == 0 else {})
    return {"auc": figures["auc"]} if learner.stage == DENSE else figures  # the dense stage has no boxes to measure


def measure(cohorts: Sequence[ValidationCohort], predicted: Sequence[Sequence[BreastPrediction]]) -> dict[str, float]:
    """R@X, AUC of the model's breast score and of the highest proposal, over all cohorts together. Figures
    that cannot be computed are NaN."""
    found: dict[str, list[FrocScores]] = {"2D": [], "3D": []}
    scores: dict[str, list[np.ndarray]] = {"auc": [], "auc_max": []}
    positive = []
    for cohort, breasts in zip(cohorts, predicted, strict=True):
        settings = EvaluateSettings(split=cohort.config.split, modality=modality_of(cohort.config.input))
        matched = match_predictions("validation", Predictions(tuple(breasts)), cohort.truth, settings)
        for rule in matched.rules:
            found[rule].append(froc_scores(matched, rule))
        units = matched.units["breast"]
        scores["auc"].append(units.scores)
        scores["auc_max"].append(highest_findings(matched)[units.number])
        positive.append(units.positive)
    figures = {}
    for rule, prefix in (("2D", "recall"), ("3D", "recall3d")):
        for rate in RATES:
            figures[f"{prefix}@{rate:g}"] = recall_at(_concatenate(found[rule]), rate) if found[rule] else math.nan
    for name, parts in scores.items():
        figures[name] = float(delong(np.concatenate(parts)[None], np.concatenate(positive)).values[0])
    return figures


def _concatenate(parts: list[FrocScores]) -> FrocScores:
    fields = ("hit", "false", "hit_patient", "false_patient", "volume_patient")
    return FrocScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
