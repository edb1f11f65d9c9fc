"""Validation with the figures of `mm3d evaluate`: the same predictions, rules and metrics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from mm3d.data.batches import PreparedBreast
from mm3d.data.inputs import Histogram, InputName, modality_of
from mm3d.evaluate.match import froc_scores, highest_findings, match_predictions, score_breasts
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.metrics.roc import delong
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.truth import Truth
from mm3d.model.detector import Detector
from mm3d.output.predictions import BreastPrediction, Predictions, read_json, write_json
from mm3d.predict.detect import predict_breast
from mm3d.train.dense import DenseLearner, highest_of

# What a validation says; NaN where it cannot be told. The order is fixed, because ranks exchange the bare numbers.
FIGURES = ("recall@0.25", "recall@0.5", "recall3d@0.25", "recall3d@0.5", "auc", "auc_max")


@dataclass(frozen=True)
class ValidationCohort:
    """Breasts to validate on, and the truth about them."""

    breasts: list[PreparedBreast]
    truth: Truth
    input: InputName
    histogram: Histogram | None
    split: str | None


def figures(cohorts: Sequence[ValidationCohort], predicted: Sequence[Sequence[BreastPrediction]]) -> dict[str, float]:
    """R@0.25 and R@0.5, AUC of the model's breast score and of the highest proposal, over all cohorts together."""
    found: dict[str, list[FrocScores]] = {"2D": [], "3D": []}
    own, highest, positive = [], [], []
    for cohort, breasts in zip(cohorts, predicted, strict=True):
        settings = EvaluateSettings(split=cohort.split, modality=modality_of(cohort.input))
        matched = match_predictions("validation", Predictions(tuple(breasts)), cohort.truth, settings)
        for rule in matched.rules:
            found[rule].append(froc_scores(matched, rule))
        units = score_breasts(matched)
        own.append(units.scores)
        highest.append(score_breasts(matched, scores=highest_findings(matched)).scores)
        positive.append(units.positive)
    result = {}
    for rule, prefix in (("2D", "recall"), ("3D", "recall3d")):
        for rate in (0.25, 0.5):
            result[f"{prefix}@{rate:g}"] = recall_at(_together(found[rule]), rate) if found[rule] else math.nan
    for name, scores in (("auc", own), ("auc_max", highest)):
        result[name] = float(delong(np.concatenate(scores)[None], np.concatenate(positive)).auc[0])
    return {name: result[name] for name in FIGURES}


def _together(parts: list[FrocScores]) -> FrocScores:
    fields = ("hit", "false", "hit_patient", "false_patient", "volume_patient")
    return FrocScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


def decisive(figures: dict[str, float], metric: str) -> float:
    """The one number that says which weights are the best; higher is better. NaN where it cannot be told."""
    by_name = {"recall": figures["recall@0.25"], "auc": figures["auc"], "auc_max": figures["auc_max"]}
    return (by_name["recall"] + by_name["auc"]) / 2 if metric == "mean" else by_name[metric]


@dataclass(frozen=True)
class Validation:
    """What a validation needs besides the model. Ranks share the breasts; the first one computes the figures."""

    fabric: Fabric
    cohorts: Sequence[ValidationCohort]
    folder: Path  # where ranks leave their predictions for the first one: it must be shared between nodes

    def predict(self, one: Callable[[ValidationCohort, PreparedBreast], BreastPrediction]) -> dict[str, float]:
        """The figures, with what `one` says of every breast."""
        rank, ranks = self.fabric.global_rank, self.fabric.world_size
        predicted = [[one(cohort, breast) for breast in cohort.breasts[rank::ranks]] for cohort in self.cohorts]
        if ranks > 1:
            predicted = self._exchange(predicted)
        values = torch.zeros(len(FIGURES), dtype=torch.float64, device=self.fabric.device)
        if self.fabric.is_global_zero:
            values += torch.tensor(list(figures(self.cohorts, predicted).values()), dtype=torch.float64)
        together: Any = self.fabric.all_reduce(values, reduce_op="sum")  # the others add zeros
        return dict(zip(FIGURES, together.tolist(), strict=True))

    def _exchange(self, predicted: list[list[BreastPrediction]]) -> list[list[BreastPrediction]]:
        """Give the first rank the predictions of all, through files."""
        rank, ranks = self.fabric.global_rank, self.fabric.world_size
        for number, breasts in enumerate(predicted):
            write_json(Predictions(tuple(breasts)), self._file(number, rank))
        self.fabric.barrier()
        if rank == 0:
            predicted = [
                [breast for r in range(ranks) for breast in read_json(self._file(number, r)).breasts]
                for number in range(len(predicted))
            ]
            for number in range(len(predicted)):
                for r in range(ranks):
                    self._file(number, r).unlink()
        return predicted

    def _file(self, cohort: int, rank: int) -> Path:
        return self.folder / "validation" / f"cohort-{cohort}-rank-{rank}.json"


def validate_detector(validation: Validation, detector: Detector, metric: str) -> tuple[float, dict[str, float]]:
    """The deciding figure and all of them."""
    found = validation.predict(lambda cohort, breast: predict_breast(detector, breast, cohort.input, cohort.histogram))
    return decisive(found, metric), found


def validate_dense(validation: Validation, learner: DenseLearner) -> tuple[float, dict[str, float]]:
    """The AUC of the map's highest value; there are no boxes to tell a recall from."""

    def one(cohort: ValidationCohort, breast: PreparedBreast) -> BreastPrediction:
        score = highest_of(learner, breast, cohort.input, cohort.histogram)
        about = breast.breast
        return BreastPrediction(about.patient, about.exam, about.laterality, (), score)

    auc = validation.predict(one)["auc"]
    return auc, {"auc": auc}
