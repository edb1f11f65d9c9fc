"""What is kept of a run: its figures, and the scores from which figures, bootstraps and paired tests can be computed.

    results/<study>/
        test-cohort.json             who was tested: breasts, annotations, volumes; the same for all runs
        <run>-seed<k>.json           one run

Scores are whole numbers, in millionths. False positives are kept up to KEPT_RATE per volume: R@X for a smaller X needs
no others, nor do its bootstrap replicates unless the patients are few. The 3D rule has the false positives of the 2D
rule and those that hit an annotation on the wrong slice.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mm3d.data.records import Annotation
from mm3d.evaluate.match import EvaluateSettings, MatchedPredictions, match_predictions
from mm3d.evaluate.metrics.froc import FrocScores, allowed, threshold_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray, best_scores
from mm3d.evaluate.subgroups import UNKNOWN
from mm3d.evaluate.truth import Truth, TruthView, read_truth
from mm3d.experiments.cohorts import part_of
from mm3d.experiments.spec import RunSpec, StudySpec
from mm3d.output.predictions import Predictions
from mm3d.shared.config import from_dict, parse_json, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import check_settings, replacing

VERSION = 1
COHORT = "test-cohort.json"
UNIT = 1e-6  # of stored scores
NOT_FOUND = -1
OPERATING_RATE = 0.25  # false positives per image
KEPT_RATE = 0.8  # false positives per volume


@dataclass(frozen=True)
class JudgedAnnotations:
    """The annotated cancers and the volumes of one modality that are judged."""

    findings: tuple[int, ...]  # number of the breast of each annotation
    kinds: tuple[str, ...]  # of the annotations
    deep: tuple[bool, ...]  # whether the 3D rule can judge the annotation
    volumes: tuple[int, ...]  # number of the breast of each volume


@dataclass(frozen=True)
class JudgedCohort:
    """Who was tested. A breast's number is its place in these lists."""

    names: tuple[str, ...]
    patients: tuple[int, ...]  # number of each breast's patient
    labels: tuple[str, ...]  # malignant, benign, negative
    density: tuple[str, ...]
    annotations: dict[str, JudgedAnnotations]  # by modality; the file calls them marks
    vendor: tuple[str, ...] = ()  # older results have none

    @property
    def malignant(self) -> BoolArray:
        return np.array(self.labels) == "malignant"


@dataclass(frozen=True)
class Scores:
    """The scores of a run on the test cohort, in millionths."""

    breasts: tuple[int, ...]  # (B,) of every breast
    found: dict[str, tuple[int, ...]]  # by rule: the score at which each annotation is found, or NOT_FOUND
    false: tuple[int, ...]  # of the false positives by the 2D rule, breast by breast
    false_counts: tuple[int, ...]  # (B,) how many of them each breast has
    wrong_slice: tuple[int, ...] = ()  # what only the 3D rule counts as false
    wrong_slice_breasts: tuple[int, ...] = ()  # the breasts of these


@dataclass(frozen=True)
class Result:
    """A finished run."""

    study: str
    run: str
    seed: int
    modality: str
    recipe: dict[str, Any]
    """All settings that it depends on."""
    configuration: dict[str, Any] | None
    """The whole training configuration. None: nothing was trained."""
    figures: dict[str, float | None]
    """R@0.25, R@0.5 in 2D and 3D, auc, auc_max (of the highest proposal), and their standard errors as name_se."""
    seconds: dict[str, float]
    """train and predict."""
    memory_mb: float
    """Peak memory of the process (or of the GPU) in training; in prediction if nothing was trained."""
    parameters: int
    weights: str
    """Where they are in the study's folder."""
    commit: str
    mm3d: str
    scores: Scores
    curve: tuple[dict[str, float | None], ...] = ()
    """A learning curve: the figures of the validation cohort, and the step, after some of the steps."""
    version: int = VERSION


def path_of(folder: Path, job: str) -> Path:
    return folder / f"{job}.json"


def read_tested(study: StudySpec, run: RunSpec) -> tuple[Truth, EvaluateSettings]:
    """The truth of a run's test cohort, in the study's folder, and the rules that it is judged by."""
    folder, split = part_of(study, run.test)
    settings = EvaluateSettings(modality=run.modality, leave_out_benign=study.leave_out_benign)
    return read_truth(folder).in_split(split), settings


def judged_cohort(truth: Truth, settings: EvaluateSettings) -> JudgedCohort:
    """Who is in a test cohort, in all modalities that it has. It is the same for every run."""
    modalities = sorted(truth.modalities)
    matched = [_match_nothing(truth, replace(settings, modality=modality)) for modality in modalities]
    breasts = matched[0].breasts
    if any(len(one.breasts) != len(truth.breasts) for one in matched):
        missing = " or ".join(modalities)
        raise InputError(f"{truth.name} has breasts without {missing}; a study tests all runs on the same breasts.")
    if any(breast.label is None for breast in breasts):
        raise InputError(f"{truth.name} has breasts without a label; a study needs one for every breast.")
    return JudgedCohort(
        names=tuple(" ".join(breast.key) for breast in breasts),
        patients=tuple(matched[0].patient_of.tolist()),
        labels=tuple(breast.label or UNKNOWN for breast in breasts),
        density=tuple(breast.attributes.get("density", UNKNOWN) for breast in breasts),
        vendor=tuple(breast.attributes.get("vendor", UNKNOWN) for breast in breasts),
        annotations={one.modality: _judged_annotations(one) for one in matched},
    )


def list_annotations(truth: Truth, settings: EvaluateSettings) -> list[tuple[TruthView, Annotation]]:
    """The annotations that recall is of, in the order of all results, with their views."""
    matched = _match_nothing(truth, settings)
    volumes = matched.annotations.volume
    return [(matched.views[volumes[number]], matched.records[number]) for number in np.flatnonzero(_is_judged(matched))]


def _match_nothing(truth: Truth, settings: EvaluateSettings) -> MatchedPredictions:
    return match_predictions("nothing", Predictions(()), truth, settings)


def _judged_annotations(matched: MatchedPredictions) -> JudgedAnnotations:
    chosen = _is_judged(matched)
    return JudgedAnnotations(
        findings=tuple(matched.breast_of[matched.annotations.volume][chosen].tolist()),
        kinds=tuple(matched.records[number].kind or UNKNOWN for number in np.flatnonzero(chosen)),
        deep=tuple((~np.isnan(matched.visible[0]))[chosen].tolist()),
        volumes=tuple(matched.breast_of[matched.counted].tolist()),
    )


def _is_judged(matched: MatchedPredictions) -> BoolArray:
    """Whether recall is of each annotation (A,)."""
    return matched.malignant & matched.counted[matched.annotations.volume]


def compact(matched: MatchedPredictions) -> Scores:
    """The scores of a run."""
    chosen, scores = _is_judged(matched), matched.findings.scores
    in_volumes = matched.counted[matched.findings.volume]
    false = {name: rule.false & in_volumes for name, rule in matched.rules.items()}
    breast, volumes = matched.breast_of[matched.findings.volume], int(matched.counted.sum())
    flat = _highest(false["2D"], scores, volumes)
    flat = flat[np.argsort(breast[flat], kind="stable")]
    deep = _highest(false.get("3D", false["2D"]), scores, volumes)
    extra = deep[~false["2D"][deep]]
    hit = {name: best_scores(rule.hits, scores, len(matched.records))[chosen] for name, rule in matched.rules.items()}
    return Scores(
        breasts=_to_units(matched.breast_scores),
        found={name: _to_units(own) for name, own in hit.items()},
        false=_to_units(scores[flat]),
        false_counts=tuple(np.bincount(breast[flat], minlength=len(matched.breasts)).tolist()),
        wrong_slice=_to_units(scores[extra]),
        wrong_slice_breasts=tuple(breast[extra].tolist()),
    )


def _highest(false: BoolArray, scores: FloatArray, volumes: int) -> IntArray:
    """The numbers of the false positives down to KEPT_RATE per volume, with all that score as much as the last."""
    which = np.flatnonzero(false)
    n = int(allowed(volumes, KEPT_RATE))
    return which if n >= len(which) else which[scores[which] >= -np.sort(-scores[which])[n]]


def _to_units(scores: FloatArray) -> tuple[int, ...]:
    known = np.isfinite(scores)
    if known.any() and not (0 <= scores[known].min() and scores[known].max() <= 1):
        raise InputError("a study keeps scores in millionths, but these are not probabilities; use our own model.")
    return tuple(np.where(known, np.rint(np.where(known, scores, 0) / UNIT), NOT_FOUND).astype(np.int64).tolist())


def froc_scores(
    cohort: JudgedCohort, result: Result, rule: str, kind: str = "", breasts: BoolArray | None = None
) -> FrocScores:
    """What R@X is computed from, as `match.froc_scores` gives it, by a rule that the run has.

    `kind` chooses what is to be found. `breasts` (B,) chooses breasts: what is to be found and the false positives.
    """
    scores, judged, patients = result.scores, cohort.annotations[result.modality], np.array(cohort.patients)
    of, volumes = np.array(judged.findings, dtype=np.int64), np.array(judged.volumes, dtype=np.int64)
    kept = np.ones(len(patients), dtype=bool) if breasts is None else breasts
    chosen = kept[of] & np.array([kind in ("", own) for own in judged.kinds], dtype=bool)
    false = np.array(scores.false, dtype=float)
    owner = np.repeat(np.arange(len(patients)), scores.false_counts)
    if rule == "3D":
        chosen &= np.array(judged.deep, dtype=bool)
        false = np.append(false, np.array(scores.wrong_slice, dtype=float))
        owner = np.append(owner, np.array(scores.wrong_slice_breasts, dtype=np.int64))
    found = np.array(scores.found[rule], dtype=float)
    return FrocScores(
        hit=np.where(found == NOT_FOUND, -np.inf, found)[chosen],
        false=false[kept[owner]],
        hit_patient=patients[of[chosen]],
        false_patient=patients[owner[kept[owner]]],
        volume_patient=patients[volumes[kept[volumes]]],
    )


def threshold_of(result: Result, cohort: JudgedCohort) -> float:
    """The score at OPERATING_RATE false positives per image."""
    return UNIT * threshold_at(froc_scores(cohort, result, "2D"), OPERATING_RATE)


def write_result(result: Result, folder: Path) -> Path:
    """Write a line for each setting and one for each list of scores, so that a difference of two files can be read."""
    content = to_dict(result)
    scores = content.pop("scores")
    path = path_of(folder, f"{result.run}-seed{result.seed}")
    with replacing(path) as partial:
        plain = json.dumps(content, indent=1)[:-2]
        partial.write_text(f'{plain},\n "scores": {{\n{_lines(scores, "  ")}\n }}\n}}\n', encoding="utf-8")
    return path


def write_cohort(cohort: JudgedCohort, folder: Path) -> None:
    """Write who was tested, or check that it is who was tested before."""
    path = folder / COHORT
    if not path.is_file():
        content = to_dict(cohort)
        content["marks"] = content.pop("annotations")
        with replacing(path) as partial:
            partial.write_text(f"{{\n{_lines(content)}\n}}\n", encoding="utf-8")
    elif read_cohort(folder) != cohort:
        raise InputError(
            f"{path} is of another test cohort; give another folder with --results, or remove its results."
        )


def _lines(table: dict[str, Any], indent: str = "") -> str:
    return ",\n".join(f"{indent}{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in table.items())


def read_cohort(folder: Path) -> JudgedCohort:
    content = _read_json(folder / COHORT)
    content["annotations"] = content.pop("marks", None)
    return from_dict(JudgedCohort, content, str(folder / COHORT))


def read_result(path: Path) -> Result:
    content = _read_json(path)
    if content.get("version") != VERSION:
        raise InputError(f"{path} is of another version of mm3d; move it away and run the study again.")
    return from_dict(Result, content, str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a table")
        return content
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist; run the study first.") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); get it from the repository again, or remove it.") from error


def read_results(study: StudySpec, folder: Path) -> dict[str, Result]:
    """The finished runs of a study, by the names of their jobs. A result of other settings is refused."""
    results = {}
    for name, job in study.jobs.items():
        path = path_of(folder, name)
        if path.is_file():
            results[name] = read_result(path)
            remedy = "move it and the run's folder of that name away, or give another folder with --results"
            check_settings(path, results[name].recipe, study.recipe(job), remedy=remedy)
    return results
