"""What is kept of a run: figures, and the scores that figures, bootstraps and paired tests can be computed from again.

    results/<study>/
        test-cohort.json             who was tested: breasts, findings, volumes; the same for all runs
        <run>-seed<k>.json           one run

Scores are whole numbers, in millionths. Of the false positives those are kept that count up to KEPT_RATE per volume:
R@X for a smaller X needs no others, nor do its bootstrap replicates, unless the patients are few. The 3D rule has the
false positives of 2D and those that hit a finding on the wrong slice.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mm3d.data.records import Annotation
from mm3d.evaluate.match import MatchedPredictions, match_predictions
from mm3d.evaluate.metrics.froc import FrocScores, allowed, threshold_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray, best_scores
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.subgroups import UNKNOWN
from mm3d.evaluate.truth import Truth, TruthView
from mm3d.experiments.spec import StudySpec, recipe
from mm3d.output.predictions import Predictions
from mm3d.shared.config import difference, from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

VERSION = 1
COHORT = "test-cohort.json"
UNIT = 1e-6  # of stored scores
NOT_FOUND = -1
OPERATING_RATE = 0.25  # false positives per image
KEPT_RATE = 0.8  # false positives per volume


@dataclass(frozen=True)
class Marks:
    """The findings and volumes of one modality that are judged."""

    findings: tuple[int, ...]  # number of the breast of each malignant finding
    kinds: tuple[str, ...]  # of the findings
    deep: tuple[bool, ...]  # whether the 3D rule can judge it
    volumes: tuple[int, ...]  # number of the breast of each volume


@dataclass(frozen=True)
class JudgedCohort:
    """Who was tested. A breast's number is its place in these lists."""

    names: tuple[str, ...]
    patients: tuple[int, ...]  # number of each breast's patient
    labels: tuple[str, ...]  # malignant, benign, negative
    density: tuple[str, ...]
    marks: dict[str, Marks]  # by modality

    @property
    def malignant(self) -> BoolArray:
        return np.array([label == "malignant" for label in self.labels])


@dataclass(frozen=True)
class Scores:
    """What a run said of the test cohort, in millionths."""

    breasts: tuple[int, ...]  # (B,) of every breast
    found: dict[str, tuple[int, ...]]  # by rule: the score at which each finding is found, NOT_FOUND: at none
    false: tuple[int, ...]  # of the false positives by the 2D rule, breast by breast
    false_counts: tuple[int, ...]  # (B,) how many of them each breast has
    wrong_slice: tuple[int, ...] = ()  # what the 3D rule counts as false besides
    wrong_slice_breasts: tuple[int, ...] = ()  # their breasts


@dataclass(frozen=True)
class Result:
    """One run, finished."""

    study: str
    run: str
    seed: int
    modality: str
    recipe: dict[str, Any]
    """All settings that it depends on."""
    configuration: dict[str, Any] | None
    """The whole training configuration; None: nothing was trained."""
    figures: dict[str, float | None]
    """R@0.25, R@0.5 in 2D and 3D, auc, auc_max (of the highest proposal), their standard errors as name_se."""
    seconds: dict[str, float]
    """train and predict."""
    memory_mb: float
    """The most that the process (on a GPU: the GPU) had at a time in training; of prediction if there was none."""
    parameters: int
    weights: str
    """Where they are, below the study's folder."""
    commit: str
    mm3d: str
    scores: Scores
    version: int = VERSION


def path_of(folder: Path, run: str, seed: int) -> Path:
    return folder / f"{run}-seed{seed}.json"


def judged_cohort(truth: Truth, settings: EvaluateSettings) -> JudgedCohort:
    """Who is in a test cohort, in all modalities that it has: the same for every run."""
    modalities = sorted({view.modality for breast in truth.breasts for view in breast.views})
    nothing = Predictions(())
    judged = [match_predictions("nothing", nothing, truth, replace(settings, modality=m)) for m in modalities]
    breasts = judged[0].breasts
    names = tuple(f"{breast.patient} {breast.exam} {breast.laterality}" for breast in breasts)
    if any(len(other.breasts) != len(truth.breasts) for other in judged):
        raise InputError(
            f"{truth.name} has breasts without {' or '.join(modalities)}; a study compares them on the same."
        )
    if any(breast.label is None for breast in breasts):
        raise InputError(f"{truth.name} has breasts without a label; a study needs one of every breast it tests.")
    return JudgedCohort(
        names=names,
        patients=tuple(judged[0].patient_of.tolist()),
        labels=tuple(breast.label or UNKNOWN for breast in breasts),
        density=tuple(breast.attributes.get("density", UNKNOWN) for breast in breasts),
        marks={one.modality: _marks(one) for one in judged},
    )


def judged_findings(truth: Truth, settings: EvaluateSettings) -> list[tuple[TruthView, Annotation]]:
    """The findings of a modality that recall is of, in the order of all results, with their views."""
    matched = match_predictions("nothing", Predictions(()), truth, settings)
    volume = matched.annotations.volume
    return [(matched.views[volume[i]], matched.records[i]) for i in np.flatnonzero(_judged(matched)).tolist()]


def _marks(matched: MatchedPredictions) -> Marks:
    chosen = _judged(matched)
    return Marks(
        findings=tuple(matched.breast_of[matched.annotations.volume][chosen].tolist()),
        kinds=tuple(record.kind or UNKNOWN for record, keep in zip(matched.records, chosen, strict=True) if keep),
        deep=tuple((~np.isnan(matched.visible[0]))[chosen].tolist()),
        volumes=tuple(matched.breast_of[matched.counted].tolist()),
    )


def _judged(matched: MatchedPredictions) -> BoolArray:
    """The annotations that recall is of (A,)."""
    return matched.malignant & matched.counted[matched.annotations.volume]


def compact(matched: MatchedPredictions) -> Scores:
    """The scores of a run."""
    chosen, scores = _judged(matched), matched.findings.scores
    counts = matched.counted[matched.findings.volume]
    false = {name: rule.false & counts for name, rule in matched.rules.items()}
    breast = matched.breast_of[matched.findings.volume]
    flat = _kept(false["2D"], scores, int(matched.counted.sum()))
    flat = flat[np.argsort(breast[flat], kind="stable")]
    extra = np.zeros(0, dtype=np.int64)
    if "3D" in false:
        deep = _kept(false["3D"], scores, int(matched.counted.sum()))
        extra = deep[~false["2D"][deep]]
    return Scores(
        breasts=_units(matched.breast_scores),
        found={
            name: _units(best_scores(rule.hits, scores, len(matched.records))[chosen])
            for name, rule in matched.rules.items()
        },
        false=_units(scores[flat]),
        false_counts=tuple(np.bincount(breast[flat], minlength=len(matched.breasts)).tolist()),
        wrong_slice=_units(scores[extra]),
        wrong_slice_breasts=tuple(breast[extra].tolist()),
    )


def _kept(false: BoolArray, scores: FloatArray, volumes: int) -> IntArray:
    """Numbers of the false positives down to KEPT_RATE per volume, and all of the last one's score."""
    which = np.flatnonzero(false)
    n = int(allowed(volumes, KEPT_RATE))
    if n >= len(which):
        return which
    return which[scores[which] >= -np.sort(-scores[which])[n]]


def _units(scores: FloatArray) -> tuple[int, ...]:
    known = np.isfinite(scores)
    if known.any() and not (0 <= scores[known].min() and scores[known].max() <= 1):
        raise InputError(
            "scores that are no probabilities cannot be kept in millionths; a study needs our own model's."
        )
    return tuple(np.where(known, np.rint(np.where(known, scores, 0) / UNIT), NOT_FOUND).astype(np.int64).tolist())


def detections(
    cohort: JudgedCohort,
    result: Result,
    rule: str,
    findings: BoolArray | None = None,
    breasts: BoolArray | None = None,
) -> FrocScores | None:
    """What R@X is computed from, as `match.froc_scores` gives it; None if the run has no such rule.

    `findings` (F,) chooses what is to be found, `breasts` (B,) also the volumes and their false positives.
    """
    scores = result.scores
    if rule not in scores.found:
        return None
    marks, patients = cohort.marks[result.modality], np.array(cohort.patients)
    of = np.array(marks.findings, dtype=np.int64)
    chosen = np.array(marks.deep) if rule == "3D" else np.ones(len(of), dtype=bool)
    chosen = chosen if findings is None else chosen & findings
    kept = np.ones(len(patients), dtype=bool) if breasts is None else breasts
    chosen = chosen & kept[of]
    false = np.array(scores.false, dtype=float)
    owner = np.repeat(np.arange(len(patients)), scores.false_counts)
    if rule == "3D":
        false = np.append(false, np.array(scores.wrong_slice, dtype=float))
        owner = np.append(owner, np.array(scores.wrong_slice_breasts, dtype=np.int64))
    found = np.array(scores.found[rule], dtype=float)
    volumes = np.array(marks.volumes, dtype=np.int64)
    return FrocScores(
        hit=np.where(found == NOT_FOUND, -np.inf, found)[chosen],
        false=false[kept[owner]],
        hit_patient=patients[of[chosen]],
        false_patient=patients[owner[kept[owner]]],
        volume_patient=patients[volumes[kept[volumes]]],
    )


def threshold_of(result: Result, cohort: JudgedCohort) -> float:
    """The score that OPERATING_RATE false positives per image have."""
    found = detections(cohort, result, "2D")
    assert found is not None
    return UNIT * threshold_at(found, OPERATING_RATE)


def breast_scores(result: Result) -> FloatArray:
    """(B,) millionths."""
    return np.array(result.scores.breasts, dtype=float)


def write_result(result: Result, folder: Path) -> Path:
    path = path_of(folder, result.run, result.seed)
    with replacing(path) as partial:
        partial.write_text(_text(to_dict(result)), encoding="utf-8")
    return path


def _text(content: dict[str, Any]) -> str:
    """A line for each setting, and one for each list of numbers, so that a difference of two files can be read."""
    scores = content.pop("scores")
    told = json.dumps(content, indent=1)[:-2]
    lists = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in scores.items())
    return f'{told},\n "scores": {{\n{lists}\n }}\n}}\n'


def write_cohort(cohort: JudgedCohort, folder: Path) -> None:
    """Write who was tested, or see that it is who was tested before."""
    path = folder / COHORT
    if path.is_file():
        if read_cohort(folder) != cohort:
            raise InputError(
                f"{path} is of another test cohort; give another folder with --results, or remove the results in it."
            )
        return
    with replacing(path) as partial:
        plain = to_dict(cohort)
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in plain.items())
        partial.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def read_cohort(folder: Path) -> JudgedCohort:
    return from_dict(JudgedCohort, _json(folder / COHORT), str(folder / COHORT))


def read_result(path: Path) -> Result:
    content = _json(path)
    if content.get("version") != VERSION:
        raise InputError(f"{path} is of another version of mm3d; run it again.")
    return from_dict(Result, content, str(path))


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there; run the study first.") from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}); take it from the repository again, or remove it.") from error


def read_results(study: StudySpec, folder: Path) -> dict[tuple[str, int], Result]:
    """The finished runs of a study, by name and seed; one that was made with other settings is no result of it."""
    results = {}
    for run in study.runs:
        for seed in run.seeds:
            path = path_of(folder, run.name, seed)
            if path.is_file():
                results[run.name, seed] = result = read_result(path)
                if found := difference(result.recipe, recipe(study, run, seed)):
                    raise InputError(
                        f"{path} was made with other settings ({found}); move it and the run's folder of that "
                        "name away, or give another folder with --results."
                    )
    return results
