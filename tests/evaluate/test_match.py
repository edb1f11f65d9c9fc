"""What cannot be judged must be left out, not counted as a success or a failure."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mm3d.data.records import Annotation, Key, Label, Laterality
from mm3d.evaluate.match import EvaluateSettings, MatchedPredictions, froc_scores, match_predictions
from mm3d.evaluate.measure import measure, measure_subgroups
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.truth import Truth, TruthBreast, TruthView
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction

BOX = (0.0, 0.0, 100.0, 100.0)
AWAY = (500.0, 500.0, 600.0, 600.0)
DRAWS = bootstrap.draw(9, 20, 0)


def cancer(slice_: int | None = 20, box: Any = BOX, kind: str = "") -> Annotation:
    return Annotation(box, malignant=True, slice=slice_, kind=kind)


def breast(
    patient: str,
    label: Label | None,
    *annotations: tuple[Annotation, ...] | None,
    side: Laterality = "L",
    slices: int | None = 40,
) -> TruthBreast:
    """With a view for each: CC first, then MLO."""
    views = []
    for drawn, position in zip(annotations, ("cc", "mlo"), strict=False):
        key = Key(patient, "S", f"{side.lower()}{position}")
        views.append(TruthView(key, drawn, slices))
    return TruthBreast((patient, "S", side), label, "", {}, tuple(views))


def predicted(patient: str, view: str, *proposals: tuple[Any, float | None, float]) -> BreastPrediction:
    """Proposals: box, slice, score."""
    found = tuple(Finding(box, score, slice=z) for box, z, score in proposals)
    return BreastPrediction(patient, "S", "L" if view[0] == "l" else "R", (ViewPrediction(view, found),))


def match(breasts: list[TruthBreast], predictions: list[BreastPrediction], **changes: Any) -> MatchedPredictions:
    truth = Truth("t", tuple(breasts))
    return match_predictions("p", Predictions(tuple(predictions)), truth, EvaluateSettings(**changes))


def test_a_volume_without_annotation_counts_only_where_there_can_be_no_cancer() -> None:
    breasts = [
        breast("P1", "malignant", None),
        breast("P2", None, None),
        breast("P3", "benign", None),
        breast("P4", "negative", None),
        breast("P5", "malignant", ()),
    ]
    given = [predicted(f"P{i}", "lcc", (BOX, 3, i / 10)) for i in range(1, 6)]
    matched = match(breasts, given)
    assert matched.counted.tolist() == [False, False, True, True, True]
    assert froc_scores(matched, "2D").false.tolist() == [0.3, 0.4, 0.5]
    assert match(breasts, given, leave_out_benign=True).counted.tolist() == [False, False, False, True, True]


def test_a_malignant_volume_with_a_benign_finding_is_not_benign() -> None:
    benign = Annotation(AWAY, malignant=False, slice=3)
    truth = [breast("P1", "malignant", (cancer(), benign))]
    matched = match(truth, [predicted("P1", "lcc", (AWAY, 3, 0.5))], leave_out_benign=True)
    assert matched.counted.tolist() == [True]
    assert froc_scores(matched, "2D").false.tolist() == [0.5]


def test_a_finding_without_slice_is_left_out_of_3d_and_so_is_what_hits_it() -> None:
    truth = [breast("P1", "malignant", (cancer(20), cancer(None, AWAY)))]
    given = [predicted("P1", "lcc", (BOX, 20, 0.9), (AWAY, 5, 0.8), (BOX, 35, 0.7))]
    matched = match(truth, given)
    flat, deep = (froc_scores(matched, rule) for rule in ("2D", "3D"))
    assert (sorted(flat.hit.tolist()), flat.false.tolist()) == ([0.8, 0.9], [])
    assert (deep.hit.tolist(), deep.false.tolist()) == ([0.9], [0.7])
    assert any("1 malignant annotations have no slice" in note for note in matched.notes)


def test_without_the_number_of_slices_a_tolerance_must_be_given() -> None:
    truth = [breast("P1", "malignant", (cancer(20),), slices=None)]
    given = [predicted("P1", "lcc", (BOX, 22, 0.9))]
    assert list(match(truth, given).rules) == ["2D"]
    assert froc_scores(match(truth, given, slice_tolerance=2), "3D").hit.tolist() == [0.9]
    ranged = Annotation(BOX, malignant=True, first_slice=21, last_slice=25)  # a range needs neither
    matched = match([breast("P1", "malignant", (ranged,), slices=None)], given)
    assert froc_scores(matched, "3D").hit.tolist() == [0.9]


def test_a_detector_that_predicts_no_slices_has_no_3d() -> None:
    matched = match([breast("P1", "malignant", (cancer(),))], [predicted("P1", "lcc", (BOX, None, 0.9))])
    found = measure(matched, DRAWS).result
    assert list(found["recall"]) == ["2D"]
    assert found["dbtex"] is None
    assert any("no 3D rule" in note for note in found["notes"])
    assert any("DBTex score" in note and "every finding" in note for note in found["notes"])


def test_findings_of_two_views_are_one_lesion_unless_nobody_can_say() -> None:
    truth = [
        breast("P1", "malignant", (cancer(),), (cancer(),)),  # one lesion
        breast("P2", "malignant", (cancer(), cancer(20, AWAY)), (cancer(),)),  # three
    ]
    given = [predicted("P1", "lmlo", (BOX, 20, 0.9)), predicted("P2", "lcc", (AWAY, 20, 0.8))]
    matched = match(truth, given)
    found = {level: froc_scores(matched, "2D", level).hit for level in ("finding", "lesion", "breast")}
    assert [len(found[level]) for level in ("finding", "lesion", "breast")] == [5, 4, 2]
    assert sorted(found["lesion"].tolist()) == [-np.inf, -np.inf, 0.8, 0.9]
    assert sorted(found["breast"].tolist()) == [0.8, 0.9]
    assert any(note.startswith("1 breasts have several") for note in matched.notes)


def test_units_without_a_label_are_left_out_of_the_area() -> None:
    breasts = [
        breast("P1", "malignant", (cancer(),), None),
        breast("P1", None, None, side="R"),
        breast("P2", "negative", ()),
        breast("P2", None, (), side="R"),
        breast("P3", "benign", None),
    ]
    matched = match(breasts, [])
    units = matched.units["breast"]
    assert dict(zip(units.names, units.positive.tolist(), strict=True)) == {
        ("P1", "S", "L"): True,
        ("P2", "S", "L"): False,
        ("P3", "S", "L"): False,
    }
    cases = matched.units["case"]
    assert dict(zip(cases.names, cases.positive.tolist(), strict=True)) == {("P1", "S"): True, ("P3", "S"): False}
    images = matched.units["image"]
    labels = {(name[0], name[2]): bool(positive) for name, positive in zip(images.names, images.positive, strict=True)}
    # Not annotated, a view is what its breast is; annotated, what is marked, whatever the breast.
    assert labels == {
        ("P1", "lcc"): True,
        ("P1", "lmlo"): True,
        ("P2", "lcc"): False,
        ("P2", "rcc"): False,
        ("P3", "lcc"): False,
    }
    notes = measure(matched, DRAWS).result["notes"]
    assert any("2 breasts have no label" in note for note in notes)


def test_a_kind_of_finding_is_measured_against_all_that_is_not_malignant() -> None:
    truth = [
        breast("P1", "malignant", (cancer(kind="mass"),)),
        breast("P2", "malignant", (cancer(kind="calcification"),)),
        breast("P3", "negative", ()),
        breast("P4", "benign", ()),
    ]
    given = [
        predicted("P1", "lcc", (BOX, 20, 0.9)),
        predicted("P2", "lcc", (BOX, 20, 0.2)),
        predicted("P3", "lcc", (BOX, 20, 0.5)),
        predicted("P4", "lcc", (BOX, 20, 0.4)),
    ]
    rows = {row["value"]: row for row in measure_subgroups(match(truth, given, rates=(0.25,)), "kind", DRAWS)}
    found = {
        kind: (row["recall"]["2D"][0]["recall"], row["auc"]["auc"], row["auc"]["of"]) for kind, row in rows.items()
    }
    assert found == {"mass": (1.0, 1.0, "breasts"), "calcification": (0.0, 0.0, "breasts")}
    assert rows["mass"]["recall"]["2D"][0]["volumes"] == 4
    assert rows["mass"]["auc"]["others"] == 2


@pytest.mark.parametrize("given", [True, False])
def test_a_breasts_score_is_its_own_or_the_highest_of_its_views(given: bool) -> None:
    views = (ViewPrediction("lcc", (Finding(BOX, 0.7, 1),)), ViewPrediction("lmlo", (Finding(BOX, 0.3, 1),)))
    prediction = BreastPrediction("P1", "S", "L", views, score=0.1 if given else None)
    matched = match([breast("P1", "negative", (), ())], [prediction])
    assert matched.breast_scores.tolist() == [0.1 if given else 0.7]
    assert matched.view_scores.tolist() == [0.7, 0.3]
    own = replace(prediction, views=tuple(replace(view, score=0.05) for view in views))
    assert match([breast("P1", "negative", (), ())], [own]).view_scores.tolist() == [0.05, 0.05]
