"""Which volumes, findings and proposals count for what: the rules between the records and the metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mm3d.evaluate.joined import Joined
from mm3d.evaluate.metrics.froc import Detections
from mm3d.evaluate.metrics.hits import (
    BoolArray,
    FloatArray,
    Hits,
    IntArray,
    best_scores,
    hits_in_2d,
    hits_in_3d,
    visible_ranges,
)
from mm3d.evaluate.settings import EvaluateSettings

Level = Literal["finding", "lesion", "breast"]
LEVELS: tuple[Level, ...] = ("finding", "lesion", "breast")


@dataclass(frozen=True)
class Rule:
    """A rule of what is a hit, applied."""

    hits: Hits
    judged: BoolArray  # (F,) malignant findings that the rule can judge
    unsure: BoolArray  # (P,) proposals on a malignant finding that it cannot judge: neither right nor wrong


@dataclass(frozen=True)
class Judged:
    """One system, judged by both rules."""

    joined: Joined
    volumes: BoolArray  # (V,) those that count in FROC and R@X
    visible: tuple[FloatArray, FloatArray]  # (F,) first and last slice on which a finding counts as visible
    rules: dict[str, Rule]  # 2D, and 3D where slices are annotated and predicted
    lesions: IntArray  # (F,) number of the lesion that a malignant finding is part of
    notes: tuple[str, ...]


def judge(joined: Joined, settings: EvaluateSettings) -> Judged:
    """Find out what hits what. Volumes that cannot be judged are left out, and said."""
    counts, notes = _volumes_that_count(joined, settings.leave_out_benign)
    flat = hits_in_2d(joined.proposals, joined.findings, settings.iou)
    visible = visible_ranges(joined.findings, _tolerance(joined, settings.slice_tolerance))
    rules = {"2D": Rule(flat, joined.malignant, np.zeros(len(joined.proposals.scores), dtype=bool))}
    deep = ~np.isnan(visible[0]) & joined.malignant
    if joined.modality == "DBT" and deep.any() and not np.isnan(joined.proposals.slices).all():
        unknown = joined.malignant & ~deep
        unsure = np.zeros(len(joined.proposals.scores), dtype=bool)
        unsure[flat.proposal[unknown[flat.finding]]] = True
        rules["3D"] = Rule(hits_in_3d(flat, joined.proposals, visible), deep, unsure)
        if unknown.any():
            notes.append(
                f"{int(unknown.sum()):,} malignant findings have no slice, or the number of slices of their volume is "
                "not known (then give --slice-tolerance); 3D leaves them out."
            )
    elif joined.modality == "DBT" and joined.malignant.any():
        notes.append("There is no 3D rule: slices are not annotated or not predicted.")
    lesions, alone = _lesions(joined)
    if alone:
        notes.append(
            f"{alone:,} breasts have several malignant findings in one view, and nothing says which are the same in "
            "the other view: each counts as a lesion."
        )
    return Judged(joined, counts, visible, rules, lesions, tuple(notes))


def _volumes_that_count(joined: Joined, leave_out_benign: bool) -> tuple[BoolArray, list[str]]:
    """A view that is not annotated, of a breast that is malignant or without label, may show cancers that nobody
    marked: a proposal there is neither right nor wrong."""
    counts = np.ones(len(joined.views), dtype=bool)
    benign = np.zeros(len(joined.views), dtype=bool)
    for number, view in enumerate(joined.views):
        label = joined.breasts[joined.breast_of[number]].label
        if view.findings is None:
            counts[number] = label in ("benign", "negative")
            benign[number] = label == "benign"
        else:
            benign[number] = bool(view.findings) and not any(finding.malignant for finding in view.findings)
    notes = []
    if not counts.all():
        notes.append(
            f"{int((~counts).sum()):,} volumes are not annotated, and their breasts are malignant or without label: "
            "recall and false positives leave them out."
        )
    if leave_out_benign:
        notes.append(f"{int((counts & benign).sum()):,} benign volumes are left out of recall and false positives.")
        counts &= ~benign
    return counts, notes


def _tolerance(joined: Joined, given: float | None) -> FloatArray:
    """Slices either side of a finding's (F,): as given, otherwise a quarter of the volume's, as in DBTex."""
    if given is not None:
        return np.full(len(joined.marks), given)
    slices = np.array([np.nan if view.slices is None else view.slices for view in joined.views], dtype=float)
    return slices[joined.findings.volume] / 4


def _lesions(joined: Joined) -> tuple[IntArray, int]:
    """A number for each malignant finding's lesion (F,), -1 for benign ones, and how many breasts are ambiguous.

    The records do not say which finding in the CC view is which in the MLO view. Where no view of a breast has more
    than one malignant finding, they are one lesion; otherwise each finding is its own.
    """
    lesions = np.where(joined.malignant, np.arange(len(joined.marks)), -1)
    volume = joined.findings.volume
    several = np.bincount(volume[joined.malignant], minlength=len(joined.views)) > 1
    ambiguous = np.zeros(len(joined.breasts), dtype=bool)
    ambiguous[joined.breast_of[several]] = True
    breast = joined.breast_of[volume]
    single = joined.malignant & ~ambiguous[breast]
    lesions[single] = len(joined.marks) + breast[single]
    return lesions, int(ambiguous.sum())


def detections(
    judged: Judged,
    rule: Rule,
    level: Level = "finding",
    volumes: BoolArray | None = None,
    findings: BoolArray | None = None,
) -> Detections:
    """What R@X needs, for all that counts or a part of it: `volumes` (V,) also restricts the false positives,
    `findings` (F,) only what is to be found."""
    joined = judged.joined
    within = judged.volumes if volumes is None else judged.volumes & volumes
    chosen = rule.judged & within[joined.findings.volume]
    if findings is not None:
        chosen = chosen & findings
    found = best_scores(rule.hits, joined.proposals.scores, len(joined.marks))[chosen]
    owner = joined.finding_patient[chosen]
    if level != "finding":
        group = judged.lesions if level == "lesion" else joined.breast_of[joined.findings.volume]
        _, first, number = np.unique(group[chosen], return_index=True, return_inverse=True)
        best = np.full(len(first), -np.inf)
        np.maximum.at(best, number, found)
        found, owner = best, owner[first]
    false = false_positives(rule) & within[joined.proposals.volume]
    patient = joined.patient_of[joined.breast_of]
    return Detections(
        found=found,
        false=joined.proposals.scores[false],
        found_owner=owner,
        false_owner=patient[joined.proposals.volume[false]],
        volume_owner=patient[within],
    )


def false_positives(rule: Rule) -> BoolArray:
    """The proposals that hit no malignant finding by a rule (P,), in volumes that count and in others."""
    right = rule.unsure.copy()
    right[rule.hits.proposal[rule.judged[rule.hits.finding]]] = True
    return ~right


@dataclass(frozen=True)
class Scored:
    """Units (images, breasts or cases) with a score and a label; those whose label nobody knows are left out."""

    names: tuple[tuple[str, ...], ...]  # what identifies each, the same in every system
    scores: FloatArray
    positive: BoolArray
    owner: IntArray  # number of the patient

    def __getitem__(self, kept: BoolArray) -> "Scored":
        names = tuple(name for name, keep in zip(self.names, kept, strict=True) if keep)
        return Scored(names, self.scores[kept], self.positive[kept], self.owner[kept])

    def detections(self) -> Detections:
        """As if each unit that is not malignant were a volume, and its score a false positive."""
        other = ~self.positive
        return Detections(
            self.scores[self.positive],
            self.scores[other],
            self.owner[self.positive],
            self.owner[other],
            self.owner[other],
        )


def scored_images(joined: Joined, kept: BoolArray | None = None) -> Scored:
    """A view is malignant if a malignant finding is marked in it, or, not annotated, if its breast is. `kept` (V,)."""

    def malignant(number: int) -> bool | None:
        findings = joined.views[number].findings
        if findings is not None:
            return any(finding.malignant for finding in findings)
        label = joined.breasts[joined.breast_of[number]].label
        return None if label is None else label == "malignant"

    owners = joined.patient_of[joined.breast_of]
    return _scored(len(joined.views), lambda i: tuple(joined.views[i].key), joined.view_scores, malignant, owners, kept)


def scored_breasts(joined: Joined, kept: BoolArray | None = None) -> Scored:
    """A breast is malignant or not as its label says. `kept` (B,)."""

    def malignant(number: int) -> bool | None:
        label = joined.breasts[number].label
        return None if label is None else label == "malignant"

    def name(number: int) -> tuple[str, ...]:
        breast = joined.breasts[number]
        return breast.patient, breast.exam, breast.laterality

    return _scored(len(joined.breasts), name, joined.breast_scores, malignant, joined.patient_of, kept)


def scored_cases(joined: Joined) -> Scored:
    """A case is an exam: it has the highest score of its breasts, and is malignant if one of them is. If none is, but
    one has no label, nobody knows."""
    breasts = [(breast.patient, breast.exam) for breast in joined.breasts]
    names = sorted(set(breasts))
    members: dict[tuple[str, str], list[int]] = {name: [] for name in names}
    for number, case in enumerate(breasts):
        members[case].append(number)

    def malignant(number: int) -> bool | None:
        labels = {joined.breasts[member].label for member in members[names[number]]}
        return True if "malignant" in labels else None if None in labels else False

    scores = np.array([joined.breast_scores[members[name]].max() for name in names])
    owners = np.array([joined.patient_of[members[name][0]] for name in names])
    return _scored(len(names), lambda i: names[i], scores, malignant, owners, None)


def _scored(
    count: int,
    name: Callable[[int], tuple[str, ...]],
    scores: FloatArray,
    malignant: Callable[[int], bool | None],
    owners: IntArray,
    kept: BoolArray | None,
) -> Scored:
    known = [i for i in range(count) if malignant(i) is not None and (kept is None or kept[i])]
    positive = np.array([bool(malignant(i)) for i in known], dtype=bool)
    return Scored(tuple(name(i) for i in known), scores[known], positive, owners[known])
