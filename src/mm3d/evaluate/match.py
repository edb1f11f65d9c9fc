"""Match predictions with the truth: which findings hit which annotations, and which volumes and breasts count.

metrics.json and the lists call an annotation a "finding" and a finding of the detector a "proposal", as papers do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from mm3d.data.records import Annotation, Key, Modality
from mm3d.evaluate.metrics.froc import FrocScores
from mm3d.evaluate.metrics.hits import (
    Annotations,
    BoolArray,
    Findings,
    FloatArray,
    Hits,
    IntArray,
    best_scores,
    highest_by,
    hits_in_2d,
    hits_in_3d,
    visible_ranges,
)
from mm3d.evaluate.truth import Truth, TruthBreast, TruthView
from mm3d.output.predictions import Predictions
from mm3d.shared.errors import InputError

LEVELS = ("finding", "lesion", "breast")  # what recall counts
LABELS = {"malignant": 1.0, "benign": 0.0, "negative": 0.0, None: 0.5}  # 0.5: not known


@dataclass(frozen=True)
class EvaluateSettings:
    """The settings of an evaluation. The defaults are those of the paper, where it names them."""

    rates: tuple[float, ...] = (0.25, 0.5)  # X of R@X: false positives per volume
    iou: float = 0.25  # the smallest IoU of a hit
    slice_tolerance: float | None = None  # slices; None: a quarter of the volume's slices, as in DBTex
    leave_out_benign: bool = False  # leave out benign volumes, as in the paper's appendix on BCS-DBT
    by: tuple[str, ...] = ()  # columns for subgroups
    specificities: tuple[float, ...] = (0.8, 0.9)  # of breasts, for operating points
    replicates: int = 1000  # of the bootstrap
    seed: int = 0
    split: str | None = None  # None: all
    modality: Modality | None = None  # None: that of the predictions
    skip_unknown: bool = False  # leave out predictions for volumes that the cohort does not have

    def __post_init__(self) -> None:
        for rate in self.rates:
            if not 0 <= rate < float("inf"):
                raise InputError(f"--at {rate} is not a number of false positives per volume; give 0 or more.")
        if not 0 < self.iou <= 1:
            raise InputError(f"--iou {self.iou} is not an intersection over union; give more than 0 and at most 1.")
        if self.slice_tolerance is not None and not 0 <= self.slice_tolerance < float("inf"):
            raise InputError(f"--slice-tolerance {self.slice_tolerance} is not a number of slices; give 0 or more.")
        for specificity in self.specificities:
            if not 0 <= specificity <= 1:
                raise InputError(f"--specificity {specificity} is not a share; give a number from 0 to 1.")
        if self.replicates < 2:
            raise InputError(f"--replicates {self.replicates} is too few for a standard error; give 2 or more.")


@dataclass(frozen=True)
class Rule:
    """The hits by the 2D or the 3D rule."""

    hits: Hits
    judged: BoolArray  # (A,) malignant annotations that the rule can judge
    false: BoolArray  # (F,) findings that hit no malignant annotation


@dataclass(frozen=True)
class UnitScores:
    """Scores and labels of n units: images, breasts or cases (exams). Units without a label are left out."""

    names: tuple[tuple[str, ...], ...]  # what identifies each unit, the same in every system
    number: IntArray  # (n,) of the view or the breast
    scores: FloatArray  # (n,)
    positive: BoolArray  # (n,) whether it is malignant
    patient: IntArray  # (n,)

    def __getitem__(self, kept: BoolArray) -> "UnitScores":
        names = tuple(name for name, keep in zip(self.names, kept, strict=True) if keep)
        return UnitScores(names, self.number[kept], self.scores[kept], self.positive[kept], self.patient[kept])

    def as_froc(self) -> FrocScores:
        """Take each unit that is not malignant as a volume with one false positive."""
        hit, other = self.positive, ~self.positive
        return FrocScores(
            self.scores[hit], self.scores[other], self.patient[hit], self.patient[other], self.patient[other]
        )


@dataclass(frozen=True)
class MatchedPredictions:
    """The predictions of one system beside the truth: V volumes, B breasts, F findings, A annotations."""

    name: str
    modality: Modality
    settings: EvaluateSettings
    breasts: tuple[TruthBreast, ...]  # B
    patient_of: IntArray  # (B,) number of the patient in the cohort
    views: tuple[TruthView, ...]  # V, of the modality that is measured
    breast_of: IntArray  # (V,)
    findings: Findings
    annotations: Annotations
    records: tuple[Annotation, ...]  # A, the records of `annotations`
    malignant: BoolArray  # (A,)
    view_scores: FloatArray  # (V,) -inf: nothing was predicted
    breast_scores: FloatArray  # (B,)
    unused: tuple[str, ...]  # notes on predictions that are not used

    def of_views(self, field: str) -> FloatArray:
        """A number of the views (V,), such as `slice_spacing`; NaN where it is not known."""
        return _numbers(getattr(view, field) for view in self.views)

    def count(self, annotations: BoolArray) -> IntArray:
        """How many of these annotations (A,) each volume has (V,)."""
        return np.bincount(self.annotations.volume[annotations], minlength=len(self.views))

    @cached_property
    def breast_labels(self) -> FloatArray:
        """(B,) 1 malignant, 0 not, 0.5 not known."""
        return np.array([LABELS[breast.label] for breast in self.breasts])

    @cached_property
    def annotated(self) -> BoolArray:
        """(V,) whether a view is annotated, with or without annotations."""
        return np.array([view.annotations is not None for view in self.views])

    @cached_property
    def unmarked(self) -> BoolArray:
        """(V,) views that may show cancers that nobody marked: a finding there is neither right nor wrong.

        They are not annotated, and their breasts are malignant or have no label.
        """
        return ~self.annotated & (self.breast_labels[self.breast_of] > 0)

    @cached_property
    def benign(self) -> BoolArray:
        """(V,) views with benign annotations only, and views without annotation of benign breasts."""
        benign_breast = np.array([breast.label == "benign" for breast in self.breasts])[self.breast_of]
        benign_only = (self.count(~self.malignant) > 0) & (self.count(self.malignant) == 0)
        return np.where(self.annotated, benign_only, benign_breast)

    @cached_property
    def counted(self) -> BoolArray:
        """(V,) volumes that count in FROC and R@X."""
        return ~self.unmarked & ~self.benign if self.settings.leave_out_benign else ~self.unmarked

    @cached_property
    def visible(self) -> tuple[FloatArray, FloatArray]:
        """(A,) the first and the last slice on which each annotation counts as visible."""
        tolerance = self.settings.slice_tolerance
        quarters = self.of_views("slice_count")[self.annotations.volume] / 4
        return visible_ranges(self.annotations, quarters if tolerance is None else np.full_like(quarters, tolerance))

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """The hits by the 2D rule, and by the 3D rule where slices are annotated and predicted."""
        flat = hits_in_2d(self.findings, self.annotations, self.settings.iou)
        rules = {"2D": Rule(flat, self.malignant, self._hit_none(flat, self.malignant))}
        judged = self.malignant & ~np.isnan(self.visible[0])
        if self.modality == "DBT" and judged.any() and not np.isnan(self.findings.slices).all():
            deep = hits_in_3d(flat, self.findings, self.visible)
            # A finding on an annotation that the rule cannot judge is neither right nor wrong.
            false = self._hit_none(deep, judged) & self._hit_none(flat, self.malignant & ~judged)
            rules["3D"] = Rule(deep, judged, false)
        return rules

    def _hit_none(self, hits: Hits, annotations: BoolArray) -> BoolArray:
        """The findings that hit none of these annotations (A,), (F,)."""
        missed = np.ones(len(self.findings.scores), dtype=bool)
        missed[hits.finding[annotations[hits.annotation]]] = False
        return missed

    @cached_property
    def ambiguous(self) -> BoolArray:
        """(B,) breasts with a view that has several malignant annotations."""
        return np.isin(np.arange(len(self.breasts)), self.breast_of[self.count(self.malignant) > 1])

    @cached_property
    def froc(self) -> dict[tuple[str, str], FrocScores]:
        """The scores for FROC and R@X, by rule and level."""
        return {(rule, level): froc_scores(self, rule, level) for rule in self.rules for level in LEVELS}

    @cached_property
    def units(self) -> dict[str, UnitScores]:
        """The scores for ROC and AUC, by level: image, breast and case.

        An image is malignant if a malignant annotation is drawn in it or, where it is not annotated, if its breast is.
        A case is an exam. It has the highest score of its breasts, and is malignant if one of them is.
        """
        labels, patient = self.breast_labels, self.patient_of
        images = np.where(self.annotated, self.count(self.malignant) > 0, labels[self.breast_of])
        exams: dict[tuple[str, ...], int] = {}
        case_of = np.array([exams.setdefault(breast.key[:2], len(exams)) for breast in self.breasts])
        case_scores, cases = (highest_by(case_of, values, len(exams)) for values in (self.breast_scores, labels))
        _, first = np.unique(case_of, return_index=True)
        return {
            "image": _known_units((view.key for view in self.views), self.view_scores, images, patient[self.breast_of]),
            "breast": _known_units((breast.key for breast in self.breasts), self.breast_scores, labels, patient),
            "case": _known_units(exams, case_scores, cases, patient[first]),
        }

    @property
    def unlabelled(self) -> bool:
        """Whether nothing is known of the volumes but that they are there."""
        return bool(self.unmarked.all() and (self.breast_labels == LABELS[None]).all())

    @property
    def notes(self) -> list[str]:
        """What a user must know about the metrics."""
        left_out = self.benign & ~self.unmarked if self.settings.leave_out_benign else np.zeros(0)
        unknown = self.malignant & np.isnan(self.visible[0]) & ("3D" in self.rules)
        counted = (
            (
                np.isneginf(self.view_scores) & (not self.unlabelled),
                f"of {len(self.views):,} volumes have no prediction. They count as volumes without findings and rank "
                "last. If the detector was never run on them, the metrics flatter it: give the cohort that it was run "
                "on.",
            ),
            (
                self.unmarked & (not self.unlabelled),
                "volumes are not annotated, and their breasts are malignant or have no label; recall and false "
                "positives leave them out.",
            ),
            (left_out, "benign volumes are left out of recall and false positives."),
            (
                unknown,
                "malignant annotations have no slice, or the number of slices of their volume is not known (then give "
                "--slice-tolerance); 3D leaves them out.",
            ),
            (
                self.ambiguous,
                "breasts have several malignant annotations in one view, and nothing says which are the same in the "
                "other view; each counts as a lesion.",
            ),
            (
                (self.breast_labels == LABELS[None]) & (not self.unlabelled),
                "breasts have no label; the AUC leaves them out.",
            ),
        )
        notes = [*self.unused, *(f"{int(which.sum()):,} {note}" for which, note in counted if which.any())]
        if self.unlabelled:
            notes.append(
                "There is no label and no box for any of these volumes. So recall, false positives, AUC, slice errors "
                "and the DBTex score cannot be measured: only volumes, findings and scores are counted. To measure "
                "them, give a cohort with labels and boxes."
            )
        if self.modality == "DBT" and self.malignant.any() and "3D" not in self.rules:
            notes.append("There is no 3D rule: slices are not annotated or not predicted.")
        return notes


def match_predictions(
    name: str, predictions: Predictions, truth: Truth, settings: EvaluateSettings
) -> MatchedPredictions:
    """Match the predictions of a system, called `name` in messages and tables, with the cohort that settings choose."""
    modality = _choose_modality(name, predictions, truth, settings.modality)
    chosen = truth.in_split(settings.split)
    patients = {patient: number for number, patient in enumerate(chosen.patients)}
    breasts: list[TruthBreast] = []
    views: list[TruthView] = []
    counts: list[int] = []
    by_key = attrgetter("key")
    for breast in sorted(chosen.breasts, key=by_key):
        kept = [view for view in breast.views if view.key.modality == modality]
        if kept:
            breasts.append(breast)
            views += sorted(kept, key=by_key)
            counts.append(len(kept))
    breast_of = np.repeat(np.arange(len(breasts)), counts)
    if not breasts:
        raise InputError(f"{truth.name} has no view of {modality}; choose another with --modality.")
    table = predictions.table
    number_of, unused = _match_views(predictions, truth, views, settings.skip_unknown)
    if table.keys and not (number_of >= 0).any():
        predicted = {key[:2] for key in table.keys}
        others = sorted({breast.split for breast in truth.breasts if breast.key[:2] in predicted} - {settings.split})
        if unlabelled := truth.unlabelled.intersection(others):
            split = min(unlabelled)
            raise InputError(f"{name}: its volumes are in split {split}, which has no labels; give --split {split}.")
        raise InputError(
            f"{name} has no prediction for a volume of {truth.name} that is {modality}"
            f"{f' and in split {settings.split}' if settings.split else ''}; give the cohort that it was run on."
        )
    volume = number_of[table.view]
    order = np.argsort(volume, kind="stable")[(volume < 0).sum() :]  # volume by volume, without those that are not used
    findings = Findings(
        volume[order], table.boxes[order], table.slices[order], table.depths[order], table.scores[order]
    )
    drawn = [(number, record) for number, view in enumerate(views) for record in view.annotations or ()]
    own_scores = np.full(len(views), -np.inf)
    own_scores[number_of[number_of >= 0]] = table.view_scores[number_of >= 0]
    highest = highest_by(findings.volume, findings.scores, len(views))
    view_scores = _choose_scores(name, "views", own_scores, highest)
    own_scores = np.full(len(breasts), -np.inf)
    if table.breast_scores:
        own_scores = _numbers(table.breast_scores.get(breast.key, -np.inf) for breast in breasts)
    highest = highest_by(breast_of, view_scores, len(breasts))
    breast_scores = _choose_scores(name, "breasts", own_scores, highest)
    return MatchedPredictions(
        name=name,
        modality=modality,
        settings=settings,
        breasts=tuple(breasts),
        patient_of=np.array([patients[breast.patient] for breast in breasts]),
        views=tuple(views),
        breast_of=breast_of,
        findings=findings,
        annotations=Annotations(
            volume=np.array([number for number, _ in drawn], dtype=np.int64),
            boxes=np.array([record.box for _, record in drawn], dtype=float).reshape(-1, 4),
            slices=_numbers(record.slice for _, record in drawn),
            first=_numbers(record.first_slice for _, record in drawn),
            last=_numbers(record.last_slice for _, record in drawn),
        ),
        records=tuple(record for _, record in drawn),
        malignant=np.array([record.malignant for _, record in drawn], dtype=bool),
        view_scores=view_scores,
        breast_scores=breast_scores,
        unused=tuple(unused),
    )


def _choose_modality(name: str, predictions: Predictions, truth: Truth, wanted: Modality | None) -> Modality:
    """The wanted modality, otherwise that of the predictions; without predictions, DBT if the cohort has it."""
    if wanted:
        return wanted
    modalities = {key.modality for key in predictions.table.keys}
    if len(modalities) > 1:
        raise InputError(f"{name} has predictions for DBT and for FFDM; choose one with --modality.")
    return "FFDM" if (modalities or truth.modalities) == {"FFDM"} else "DBT"


def _match_views(
    predictions: Predictions, truth: Truth, views: Sequence[TruthView], skip_unknown: bool
) -> tuple[IntArray, list[str]]:
    """The number of the volume of each predicted view (P,), -1 where it is not used, and notes on those."""
    number_of = {view.key: number for number, view in enumerate(views)}
    named = list(map(number_of.get, predictions.table.keys))
    if None not in named:
        return np.array(named, dtype=np.int64), []
    exams: dict[tuple[str, ...], list[Key]] = {}
    for breast in truth.breasts:
        exams.setdefault(breast.key[:2], []).extend(view.key for view in breast.views)
    numbers: list[int] = []
    taken: set[int] = set()
    unknown, elsewhere = 0, 0
    for key, number in zip(predictions.table.keys, named, strict=True):
        if number is None:
            # Where an exam has only one lcc, some tables call it lcc2 and others lcc.
            there = exams.get(key[:2], [])
            same = [key] if key in there else [other for other in there if other.stem == key.stem]
            if len(same) == 1:
                number = number_of.get(same[0], -1)
                elsewhere += number < 0
            elif skip_unknown:
                number = -1
                unknown += 1
            else:
                raise _unknown_volume(key, predictions.place(key), truth)
        if number in taken:
            raise InputError(f"{predictions.place(key)}: {key.name} and a repeat of it are one volume; keep one.")
        if number >= 0:
            taken.add(number)
        numbers.append(number)
    notes = []
    if unknown:
        notes.append(f"{unknown:,} predicted volumes are not in the cohort; they are left out.")
    if elsewhere:
        notes.append(f"{elsewhere:,} predicted volumes are of another split or modality; they are left out.")
    return np.array(numbers, dtype=np.int64), notes


def _unknown_volume(key: Key, place: str, truth: Truth) -> InputError:
    owners = sorted({breast.patient for breast in truth.breasts if breast.key[1] == key.study})
    if owners and key.patient not in owners and key.patient in truth.patients:
        return InputError(
            f"{place}: study {key.study} is of patient {owners[0]} in {truth.name}, not of {key.patient}; "
            "correct the identifiers of the row."
        )
    return InputError(
        f"{place}: the volume {key.name} is not in {truth.name}; give the cohort that has it with --truth, or leave "
        "such volumes out with --skip-unknown."
    )


def _numbers(values: Iterable[float | None]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _choose_scores(system: str, kind: str, own: FloatArray, highest: FloatArray) -> FloatArray:
    """The units' own scores or, if the file has none, the highest of their parts; -inf: nothing was predicted."""
    given = ~np.isnan(own[~np.isneginf(own)])
    if given.any() and not given.all():
        raise InputError(f"{system}: some {kind} have a score of their own and some have not; give all or none.")
    return own if given.any() else highest


def froc_scores(
    matched: MatchedPredictions,
    rule: str,
    level: str = "finding",
    volumes: BoolArray | None = None,
    annotations: BoolArray | None = None,
) -> FrocScores:
    """The scores for R@X and FROC by a rule, for one of LEVELS.

    `volumes` (V,) restricts annotations and false positives; `annotations` (A,) only restricts what is to be found.
    """
    applied = matched.rules[rule]
    within = matched.counted if volumes is None else matched.counted & volumes
    chosen = applied.judged & within[matched.annotations.volume]
    if annotations is not None:
        chosen = chosen & annotations
    patient = matched.patient_of[matched.breast_of]
    hit = best_scores(applied.hits, matched.findings.scores, len(matched.records))[chosen]
    hit_patient = patient[matched.annotations.volume[chosen]]
    if level != "finding":
        # The records do not say which annotation in the CC view is which in the MLO view. Where no view of a breast has
        # several malignant annotations, they are one lesion; otherwise each annotation is a lesion of its own.
        breast = matched.breast_of[matched.annotations.volume]
        separate = matched.ambiguous[breast] & (level == "lesion")
        group = np.where(separate, np.arange(len(breast)), len(breast) + breast)
        _, first, number = np.unique(group[chosen], return_index=True, return_inverse=True)
        hit, hit_patient = highest_by(number, hit, len(first)), hit_patient[first]
    false = applied.false & within[matched.findings.volume]
    return FrocScores(
        hit=hit,
        false=matched.findings.scores[false],
        hit_patient=hit_patient,
        false_patient=patient[matched.findings.volume[false]],
        volume_patient=patient[within],
    )


def _known_units(
    names: Iterable[tuple[str, ...]], scores: FloatArray, labels: FloatArray, patient: IntArray
) -> UnitScores:
    units = UnitScores(tuple(names), np.arange(len(scores)), scores, labels == 1, patient)
    return units[labels != LABELS[None]]


def highest_findings(matched: MatchedPredictions) -> FloatArray:
    """The highest finding of each breast (B,), whatever the breast's own score is; -inf without any."""
    breast = matched.breast_of[matched.findings.volume]
    return highest_by(breast, matched.findings.scores, len(matched.breasts))
