"""Predictions laid beside the truth, as arrays."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from mm3d.data.datasets.keys import Key
from mm3d.data.records import Annotation, Modality
from mm3d.evaluate.metrics.hits import BoolArray, Findings, FloatArray, IntArray, Proposals
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.truth import Truth, TruthBreast, TruthView
from mm3d.output.predictions import BreastPrediction, Predictions, ViewPrediction
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class Joined:
    """One system's predictions and the truth of one modality. V volumes, B breasts, P proposals, F findings."""

    name: str
    modality: Modality
    breasts: tuple[TruthBreast, ...]  # B, with their views of this modality only
    patient_of: IntArray  # (B,) number of each breast's patient in the cohort
    views: tuple[TruthView, ...]  # V
    breast_of: IntArray  # (V,)
    proposals: Proposals
    findings: Findings
    marks: tuple[Annotation, ...]  # F, the records of `findings`
    malignant: BoolArray  # (F,)
    view_scores: FloatArray  # (V,), -inf: nothing was predicted
    breast_scores: FloatArray  # (B,)
    notes: tuple[str, ...]

    @property
    def finding_patient(self) -> IntArray:
        return self.patient_of[self.breast_of[self.findings.volume]]


def patients_of(truth: Truth) -> list[str]:
    """The cohort's patients, in an order that does not depend on that of the rows."""
    return sorted({breast.patient for breast in truth.breasts})


def in_split(truth: Truth, split: str | None) -> Truth:
    """The part of a cohort that is asked for."""
    if split is None:
        return truth
    breasts = tuple(breast for breast in truth.breasts if breast.split == split)
    if not breasts:
        known = ", ".join(name for name in truth.splits() if name)
        there = f"known: {known}" if known else "it has none"
        raise InputError(f"--split {split} is no split of {truth.name}; {there}.")
    return replace(truth, breasts=breasts)


def modality_of(name: str, predictions: Predictions, truth: Truth, wanted: Modality | None) -> Modality:
    """The wanted one, otherwise that of the predictions; without any, DBT if the cohort has it."""
    found = {key.modality for key, _ in predictions.views()}
    if wanted:
        return wanted
    if len(found) > 1:
        raise InputError(f"{name} has predictions for DBT and for FFDM; choose one with --modality.")
    there = found or {view.modality for breast in truth.breasts for view in breast.views}
    return "FFDM" if there == {"FFDM"} else "DBT"


def join(name: str, predictions: Predictions, truth: Truth, settings: EvaluateSettings) -> Joined:
    """The predictions of one file beside the split and modality of the truth that is asked for."""
    modality = modality_of(name, predictions, truth, settings.modality)
    judged = in_split(truth, settings.split)
    numbers = {patient: number for number, patient in enumerate(patients_of(judged))}
    breasts = []
    for breast in sorted(judged.breasts, key=lambda breast: (breast.patient, breast.exam, breast.laterality)):
        views = tuple(sorted((view for view in breast.views if view.modality == modality), key=lambda view: view.key))
        if views:
            breasts.append(replace(breast, views=views))
    if not breasts:
        raise InputError(f"{truth.name} has no view of {modality}; choose another with --modality.")
    views = tuple(view for breast in breasts for view in breast.views)
    predicted, notes = _predicted(predictions, truth, views, settings.skip_unknown)
    if any(predictions.views()) and not any(predicted):
        raise InputError(
            f"{name} has no prediction for a volume of {truth.name} that is {modality}"
            f"{f' and in split {settings.split}' if settings.split else ''}; give the cohort that it was run on."
        )
    proposals = _proposals(predicted)
    view_scores = _view_scores(name, predicted, proposals)
    breast_of = np.repeat(np.arange(len(breasts)), [len(breast.views) for breast in breasts])
    marks = [(number, mark) for number, view in enumerate(views) for mark in view.findings or ()]
    silent = int(np.isneginf(view_scores).sum())
    if silent:
        notes.append(
            f"{silent:,} of {len(views):,} volumes have no prediction: nothing was found there, and they rank last. If "
            "the detector was never run on them, the figures flatter it; give the cohort that it was run on."
        )
    return Joined(
        name=name,
        modality=modality,
        breasts=tuple(breasts),
        patient_of=np.array([numbers[breast.patient] for breast in breasts]),
        views=views,
        breast_of=breast_of,
        proposals=proposals,
        findings=_findings(marks),
        marks=tuple(mark for _, mark in marks),
        malignant=np.array([mark.malignant for _, mark in marks], dtype=bool),
        view_scores=view_scores,
        breast_scores=_breast_scores(name, predictions.breasts, breasts, breast_of, view_scores),
        notes=tuple(notes),
    )


def highest_proposals(joined: Joined) -> FloatArray:
    """The highest proposal of each breast (B,), whatever the breast's own score; -inf: there is none."""
    scores = np.full(len(joined.breasts), -np.inf)
    np.maximum.at(scores, joined.breast_of[joined.proposals.volume], joined.proposals.scores)
    return scores


def _predicted(
    predictions: Predictions, truth: Truth, views: tuple[TruthView, ...], skip_unknown: bool
) -> tuple[list[ViewPrediction | None], list[str]]:
    """The prediction for each of the views, and notes on what is not used."""
    exams: dict[tuple[str, ...], list[Key]] = {}
    for breast in truth.breasts:
        exams.setdefault((breast.patient, breast.exam), []).extend(view.key for view in breast.views)
    known = {key for keys in exams.values() for key in keys}
    number_of = {view.key: number for number, view in enumerate(views)}
    result: list[ViewPrediction | None] = [None] * len(views)
    unknown, elsewhere = 0, 0
    for key, view in predictions.views():
        # Where there is one lcc only, some tables call it lcc2 and others lcc.
        same = [key] if key in known else [other for other in exams.get(key[:2], ()) if other.stem == key.stem]
        if len(same) != 1:
            if not skip_unknown:
                raise _unknown(key, predictions.places.get(key, ""), truth)
            unknown += 1
        elif same[0] not in number_of:
            elsewhere += 1
        elif result[number_of[same[0]]] is not None:
            raise InputError(
                f"{predictions.places.get(key, '')}: {key.name} and a repeat of it are one volume; keep one."
            )
        else:
            result[number_of[same[0]]] = view
    notes = []
    if unknown:
        notes.append(f"{unknown:,} predicted volumes are not in the cohort; they are left out.")
    if elsewhere:
        notes.append(f"{elsewhere:,} predicted volumes are of another split or modality; they are left out.")
    return result, notes


def _unknown(key: Key, place: str, truth: Truth) -> InputError:
    owners = sorted({breast.patient for breast in truth.breasts if breast.exam == key.study})
    here = any(breast.patient == key.patient for breast in truth.breasts)
    if here and owners and key.patient not in owners:
        return InputError(
            f"{place}: study {key.study} is of patient {owners[0]} in {truth.name}, not of {key.patient}; "
            "see that the identifiers are of one row."
        )
    return InputError(
        f"{place}: the volume {key.name} is not in {truth.name}; give the cohort that has it with --truth, or leave "
        "such volumes out with --skip-unknown."
    )


def _proposals(predicted: list[ViewPrediction | None]) -> Proposals:
    found = [(number, proposal) for number, view in enumerate(predicted) if view for proposal in view.findings]
    return Proposals(
        volume=np.array([number for number, _ in found], dtype=np.int64),
        boxes=np.array([proposal.box for _, proposal in found]).reshape(-1, 4),
        slices=_numbers(proposal.slice for _, proposal in found),
        depths=_numbers(proposal.depth for _, proposal in found),
        scores=_numbers(proposal.score for _, proposal in found),
    )


def _findings(marks: list[tuple[int, Annotation]]) -> Findings:
    return Findings(
        volume=np.array([number for number, _ in marks], dtype=np.int64),
        boxes=np.array([mark.box for _, mark in marks], dtype=float).reshape(-1, 4),
        slices=_numbers(mark.slice for _, mark in marks),
        first=_numbers(mark.first_slice for _, mark in marks),
        last=_numbers(mark.last_slice for _, mark in marks),
    )


def _numbers(values: Iterable[float | None]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _view_scores(name: str, predicted: list[ViewPrediction | None], proposals: Proposals) -> FloatArray:
    """Each view's own score; where the file has none, the highest of its proposals."""
    given = [view.score for view in predicted if view]
    scores = np.full(len(predicted), -np.inf)
    if any(score is not None for score in given):
        if any(score is None for score in given):
            raise InputError(f"{name}: some views have a score of their own and some have not; give all or none.")
        for number, view in enumerate(predicted):
            if view and view.score is not None:
                scores[number] = view.score
    else:
        np.maximum.at(scores, proposals.volume, proposals.scores)
    return scores


def _breast_scores(
    name: str,
    predicted: tuple[BreastPrediction, ...],
    breasts: list[TruthBreast],
    breast_of: IntArray,
    view_scores: FloatArray,
) -> FloatArray:
    """Each breast's own score; where the file has none, the highest of its views."""
    scores = np.full(len(breasts), -np.inf)
    given = {(breast.patient, breast.exam, breast.laterality): breast.score for breast in predicted}
    if any(score is not None for score in given.values()):
        if any(score is None for score in given.values()):
            raise InputError(f"{name}: some breasts have a score of their own and some have not; give all or none.")
        for number, breast in enumerate(breasts):
            score = given.get((breast.patient, breast.exam, breast.laterality))
            scores[number] = -np.inf if score is None else score
    else:
        np.maximum.at(scores, breast_of, view_scores)
    return scores
