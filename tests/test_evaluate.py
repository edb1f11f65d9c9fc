"""`mm3d evaluate` from files to files: the rules of docs/evaluation.md on a cohort small enough to count."""

import csv
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import breast as breast_pixels
from dicom_files import tomosynthesis
from dicom_files import write as write_dicom
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm3d import predictions as records
from mm3d.cli import main
from mm3d.cohorts import tables
from mm3d.errors import InputError
from mm3d.evaluate.run import evaluate, names_of
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.predictions import BreastPrediction, Predictions, Proposal, ViewPrediction

QUICK = EvaluateSettings(replicates=50)
ONE_HOT = {"N": "1,0,0,0", "A": "0,1,0,0", "B": "0,0,1,0", "C": "0,0,0,1"}
HEADER = "PatientID,StudyUID,View,X,Width,Y,Height,Z,Depth,Score"

# patient, view, label, box (slice, x, y, class) or none; boxes are 100 x 100 in volumes of 40 slices.
# 10 volumes. Malignant findings: P1 lcc, P1 lmlo (one lesion), P4 rcc. P3 is malignant, and nobody marked where.
COHORT: list[tuple[str, str, str, tuple[int, int, int, str] | None]] = [
    ("P1", "lcc", "C", (20, 0, 0, "cancer")),
    ("P1", "lmlo", "C", (20, 0, 0, "cancer")),
    ("P1", "rcc", "N", None),
    ("P2", "lcc", "B", (10, 0, 0, "benign")),
    ("P2", "lmlo", "N", None),
    ("P3", "rcc", "C", None),
    ("P3", "rmlo", "C", None),
    ("P4", "rcc", "C", (30, 500, 500, "cancer")),
    ("P4", "lcc", "N", None),
    ("P5", "lcc", "A", None),
]
SPLIT = {"P5": "test"}
DENSITY = {"P1": "a", "P2": "b", "P3": "b", "P4": "b", "P5": "a"}

# patient, view, x (a box of 100 x 100 at x, x), slice, score
ROWS: list[tuple[str, str, int, int, float]] = [
    ("P1", "lcc", 0, 20, 0.9),  # hit
    ("P1", "lcc", 10, 21, 0.8),  # the same finding again: no false positive
    ("P1", "lmlo", 0, 35, 0.7),  # hit in 2D, but 15 slices away: the tolerance is 10
    ("P1", "lmlo", 700, 20, 0.2),  # false
    ("P2", "lcc", 0, 10, 0.85),  # on a benign finding: false
    ("P3", "rcc", 0, 10, 0.99),  # cannot be judged
    ("P4", "rcc", 500, 30, 0.3),  # hit
    ("P5", "lcc", 0, 10, 0.4),  # false
]


def write_cohort(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    paths = ["PatientID,StudyUID,View,descriptive_path,classic_path,Split"]
    labels = ["PatientID,StudyUID,View,Normal,Actionable,Benign,Cancer,density"]
    boxes = [",".join(tables.BOXES)]
    for patient, view, label, box in COHORT:
        paths.append(f"{patient},S{patient},{view},gone.dcm,gone.dcm,{SPLIT.get(patient, 'train')}")
        labels.append(f"{patient},S{patient},{view},{ONE_HOT[label]},{DENSITY[patient]}")
        if box:
            z, x, y, kind = box
            boxes.append(f"{patient},S{patient},{view},0,{z},{x},{y},100,100,{kind},0,40")
    for name, lines in (("file-paths", paths), ("labels", labels), ("boxes", boxes)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_rows(path: Path, rows: list[tuple[str, str, int, int, float]] = ROWS, header: str = HEADER) -> Path:
    lines = [f"{patient},S{patient},{view},{x},100,{x},100,{z},0,{score!r}" for patient, view, x, z, score in rows]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    return write_cohort(tmp_path / "cohort")


def figures(cohort: Path, *files: Path, **changes: Any) -> dict[str, Any]:
    given_settings = EvaluateSettings(**({"replicates": 50} | changes))
    return evaluate(list(files), cohort, given_settings)[0]


def system(cohort: Path, file: Path, **changes: Any) -> dict[str, Any]:
    return figures(cohort, file, **changes)["systems"][0]


def recall(found: dict[str, Any], rule: str = "2D", level: str = "finding") -> list[float]:
    return [row["recall"] for row in found["recall"][rule][level]]


# The rules


def test_recall_on_a_cohort_that_can_be_counted(cohort: Path, tmp_path: Path) -> None:
    """8 volumes are judged. False positives: 0.85 (benign), 0.4, 0.2; findings are found at 0.9, 0.7 and 0.3."""
    found = system(cohort, write_rows(tmp_path / "p.csv"), rates=(0.0, 0.125, 0.25, 0.375))
    assert found["counts"] == {
        "patients": 5,
        "breasts": 7,
        "malignant_breasts": 3,
        "volumes": 10,
        "volumes_in_froc": 8,
        "findings": 4,
        "malignant_findings": 3,
        "proposals": 8,
    }
    assert recall(found) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert recall(found, level="lesion") == [0.5, 0.5, 1, 1]  # P1's two views show one lesion
    assert recall(found, level="breast") == [0.5, 0.5, 1, 1]
    # In 3D the proposal at 0.7 is a false positive, so there are 0.85, 0.7, 0.4, 0.2.
    assert recall(found, "3D") == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert recall(found, "3D", "lesion") == [0.5, 0.5, 0.5, 1]
    assert any("2 volumes are not annotated" in note for note in found["notes"])


def test_benign_volumes_can_be_left_out(cohort: Path, tmp_path: Path) -> None:
    """7 volumes and the false positives 0.4, 0.2 are left."""
    found = system(cohort, write_rows(tmp_path / "p.csv"), rates=(0.0, 0.15), leave_out_benign=True)
    assert found["counts"]["volumes_in_froc"] == 7
    assert recall(found) == pytest.approx([2 / 3, 1])
    assert any("1 benign volumes are left out" in note for note in found["notes"])


def test_the_tolerance_and_the_overlap_can_be_chosen(cohort: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "p.csv")
    wide = system(cohort, file, rates=(0.125,), slice_tolerance=15.0)
    assert recall(wide, "3D") == pytest.approx([2 / 3])
    assert wide["depth"]["visible"] == 1.0
    # The box at 10, 10 overlaps by 0.68. Alone, it hits at 0.5 and not at 0.7.
    file = write_rows(tmp_path / "one.csv", ROWS[1:2])
    assert recall(system(cohort, file, iou=0.5), "2D") == pytest.approx([1 / 3, 1 / 3])
    assert recall(system(cohort, file, iou=0.7), "2D") == [0, 0]


def test_areas_on_a_cohort_that_can_be_counted(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "p.csv"))
    # Breasts: malignant P1 L 0.9, P3 R 0.99, P4 R 0.3; others P2 L 0.85, P5 L 0.4, P1 R and P4 L nothing.
    assert found["auc"]["breast"] | {"standard_error": 0, "interval": 0} == {
        "auc": pytest.approx((4 + 4 + 2) / 12),
        "standard_error": 0,
        "interval": 0,
        "malignant": 3,
        "others": 4,
    }
    # Images: malignant 0.9, 0.7, 0.3 and, not annotated in a malignant breast, 0.99 and nothing.
    # Others: 0.85, 0.4, and three without anything.
    assert found["auc"]["image"]["auc"] == pytest.approx((5 + 4 + 3 + 5 + 1.5) / 25)
    # Cases: P1 0.9, P3 0.99, P4 0.3 against P2 0.85, P5 0.4.
    assert found["auc"]["case"]["auc"] == pytest.approx((2 + 2 + 0) / 6)


def test_slice_errors_by_hand(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "p.csv"))["depth"]
    assert (found["findings"], found["median_slices"], found["mean_slices"]) == (3, 0, 5)
    assert found["visible"] == pytest.approx(2 / 3)
    assert found["findings_mm"] == 0  # tables do not know millimetres


def test_given_scores_of_views_and_breasts_are_used(cohort: Path, tmp_path: Path) -> None:
    def view(name: str, score: float) -> ViewPrediction:
        return ViewPrediction(name, (Proposal((0, 0, 9, 9), 0.5, 1),), score=score)

    found = []
    for high in (0.9, 0.1):
        breasts = tuple(
            BreastPrediction(
                patient, f"S{patient}", "L", (view("lcc", 1 - high),), score=high if patient == "P1" else 0.5
            )
            for patient in ("P1", "P2", "P4", "P5")
        )
        records.write_json(Predictions(breasts), tmp_path / "p.json")
        found.append(system(cohort, tmp_path / "p.json")["auc"]["breast"]["auc"])
    assert found[0] > found[1]
    mixed = (
        BreastPrediction("P1", "SP1", "L", (view("lcc", 0.5),), score=0.5),
        BreastPrediction("P2", "SP2", "L", (view("lcc", 0.5),)),
    )
    records.write_json(Predictions(mixed), tmp_path / "p.json")
    with pytest.raises(InputError, match="p: some breasts have a score of their own and some have not"):
        system(cohort, tmp_path / "p.json")


def test_subgroups_have_their_own_volumes_and_false_positives(cohort: Path, tmp_path: Path) -> None:
    found = system(
        cohort, write_rows(tmp_path / "p.csv"), by=("density", "kind", "size", "position", "split"), rates=(0.25,)
    )
    by = {column: {row["value"]: row["recall"]["2D"][0] for row in rows} for column, rows in found["subgroups"].items()}
    # Density a: P1 and P5, 4 volumes, false 0.4 and 0.2, findings 0.9 and 0.7. b: 4 volumes, false 0.85, finding 0.3.
    assert {value: (row["count"], row["volumes"], row["recall"]) for value, row in by["density"].items()} == {
        "a": (2, 4, 1.0),
        "b": (1, 4, 1.0),
    }
    assert {value: row["count"] for value, row in by["split"].items()} == {"train": 3, "test": 0}
    assert {value: row["count"] for value, row in by["position"].items()} == {"CC": 2, "MLO": 1}
    assert {value: (row["count"], row["volumes"]) for value, row in by["kind"].items()} == {"unknown": (3, 8)}
    assert sum(row["count"] for row in by["size"].values()) == 3
    with pytest.raises(InputError, match="--by densty: the cohort has no such column; did you mean 'density'"):
        system(cohort, write_rows(tmp_path / "p.csv"), by=("densty",))


def test_numbers_of_which_there_are_many_are_divided_into_thirds(cohort: Path, tmp_path: Path) -> None:
    path = cohort / "labels.csv"
    header, *rows = path.read_text().splitlines()
    several = [f"{row},{number * 1.5}" for number, row in enumerate(rows)]  # a breast takes its last view's
    path.write_text("\n".join([f"{header},thickness", *several]) + "\n")
    found = system(cohort, write_rows(tmp_path / "p.csv"), by=("thickness", "density"))["subgroups"]
    assert [row["value"] for row in found["thickness"]] == ["below 6", "6 to 10.5", "10.5 and more"]
    assert sum(row["auc"]["malignant"] + row["auc"]["others"] for row in found["thickness"]) == 7
    assert {row["value"] for row in found["density"]} == {"a", "b"}


def test_no_error_is_claimed_for_the_findings_of_one_patient(cohort: Path, tmp_path: Path) -> None:
    rows = system(cohort, write_rows(tmp_path / "p.csv"), by=("density",))["subgroups"]["density"]
    assert [row["value"] for row in rows] == ["a", "b"]  # the findings of a are both of P1
    assert np.isnan(rows[0]["recall"]["2D"][0]["standard_error"])


def test_predictions_that_meet_nothing_of_the_cohort_are_refused(cohort: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "p.csv", [row for row in ROWS if row[0] != "P5"])
    with pytest.raises(InputError, match="p has no prediction for a volume of cohort that is DBT and in split test"):
        system(cohort, train, split="test")


def test_a_dbtex_score_on_small_images_is_called_what_it_is(cohort: Path, tmp_path: Path) -> None:
    assert not any("says little" in note for note in system(cohort, write_rows(tmp_path / "p.csv"))["notes"])
    path = cohort / "boxes.csv"
    path.write_text(path.read_text().replace(",100,100,", ",20,20,"))
    assert any("says little" in note for note in system(cohort, write_rows(tmp_path / "p.csv"))["notes"])


def test_a_split_can_be_chosen_and_predictions_for_others_are_left_out(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "p.csv"), split="test")
    assert (found["counts"]["volumes"], found["counts"]["proposals"]) == (1, 1)
    assert any("another split" in note for note in found["notes"])
    with pytest.raises(InputError, match="--split tset is no split of cohort; known: test, train"):
        system(cohort, write_rows(tmp_path / "p.csv"), split="tset")


def test_no_predictions_and_no_findings(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "empty.csv", []))
    assert recall(found) == [0, 0]
    assert found["auc"]["breast"]["auc"] == 0.5
    assert found["calibration"] == {"breast": None, "image": None}
    assert found["dbtex"]["mean_sensitivity_positive"] == 0
    assert any("10 of 10 volumes have no prediction" in note for note in found["notes"])
    (cohort / "boxes.csv").write_text(",".join(tables.BOXES) + "\n")
    found = system(cohort, write_rows(tmp_path / "p.csv"))
    assert np.isnan(recall(found)).all()
    assert found["dbtex"] is None


def test_operating_points_keep_to_what_is_wanted(cohort: Path, tmp_path: Path) -> None:
    points = system(cohort, write_rows(tmp_path / "p.csv"), rates=(0.125,), specificities=(0.75,))["operating_points"]
    flat = next(point for point in points if point.get("rule") == "2D")
    assert (flat["threshold"], flat["recall"], flat["fp_per_volume"]) == pytest.approx((0.7, 2 / 3, 0.125))
    breasts = points[-1]
    assert (breasts["threshold"], breasts["sensitivity"], breasts["specificity"]) == pytest.approx((0.85, 2 / 3, 0.75))


# Invariances


def ranked_figures(found: dict[str, Any]) -> dict[str, Any]:
    """All that only depends on the order of the scores."""
    recalls = {
        (rule, level): [(row["recall"], row["standard_error"], row["interval"]) for row in rows]
        for rule, levels in found["recall"].items()
        for level, rows in levels.items()
    }
    return {"recall": recalls, "auc": found["auc"], "depth": found["depth"]}


@st.composite
def any_rows(draw: st.DrawFn) -> list[tuple[str, str, int, int, float]]:
    places = [(patient, view) for patient, view, _, _ in COHORT]
    rows = []
    for _ in range(draw(st.integers(0, 25))):
        patient, view = draw(st.sampled_from(places))
        x, z = draw(st.sampled_from([0, 40, 480, 500])), draw(st.sampled_from([10, 20, 30]))
        rows.append((patient, view, x, z, draw(st.integers(0, 6)) / 8))
    return rows


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=any_rows(), seed=st.integers(0, 1000))
def test_neither_the_order_of_rows_nor_the_scale_of_scores_matters(cohort: Path, rows: Any, seed: int) -> None:
    first = system(cohort, write_rows(cohort / "p.csv", rows))
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    assert json.dumps(system(cohort, write_rows(cohort / "p.csv", shuffled))) == json.dumps(first)
    grown = [(patient, view, x, z, 100 * score**3 - 7) for patient, view, x, z, score in rows]
    other = system(cohort, write_rows(cohort / "p.csv", grown))
    assert str(ranked_figures(other)) == str(ranked_figures(first))


def test_the_order_of_the_cohorts_rows_does_not_matter(cohort: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "p.csv")
    first = system(cohort, file, by=("density",))
    for name in ("labels", "boxes", "file-paths"):
        header, *lines = (cohort / f"{name}.csv").read_text().splitlines()
        (cohort / f"{name}.csv").write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert json.dumps(system(cohort, file, by=("density",))) == json.dumps(first)


# Several systems


def test_systems_are_compared_on_the_same_patients(cohort: Path, tmp_path: Path) -> None:
    same = write_rows(tmp_path / "same.csv")
    scaled = write_rows(tmp_path / "scaled.csv", [(*row[:4], row[4] / 2) for row in ROWS])
    worse = write_rows(tmp_path / "worse.csv", [ROWS[4], ROWS[7]])  # only the false ones
    found = figures(cohort, same, scaled, worse)
    assert [one["name"] for one in found["systems"]] == ["same", "scaled", "worse"]
    pairs = {(row["a"], row["b"]) for row in found["comparisons"]}
    assert pairs == {("same", "scaled"), ("same", "worse"), ("scaled", "worse")}
    for row in found["comparisons"]:
        if (row["a"], row["b"]) == ("same", "scaled"):
            assert (row["difference"], row["p"]) == (0, 1)
        elif row["metric"] == "auc" and row["level"] == "breast":
            assert row["difference"] > 0
            assert 0 < row["p"] < 1


def test_a_better_system_is_told_from_a_worse_one(tmp_path: Path) -> None:
    """40 patients with a cancer each; one system finds 3 of 4, the other 1 of 4."""
    folder = tmp_path / "many"
    folder.mkdir()
    ids = [f"Q{i:02}" for i in range(40)]
    (folder / "file-paths.csv").write_text(
        "\n".join([",".join(tables.FILE_PATHS), *(f"{i},S{i},lcc,a,a" for i in ids)]) + "\n"
    )
    (folder / "labels.csv").write_text(
        "\n".join([",".join(tables.LABELS), *(f"{i},S{i},lcc,0,0,0,1" for i in ids)]) + "\n"
    )
    boxes = [f"{i},S{i},lcc,0,20,0,0,100,100,cancer,0,40" for i in ids]
    (folder / "boxes.csv").write_text("\n".join([",".join(tables.BOXES), *boxes]) + "\n")
    good = write_rows(tmp_path / "good.csv", [(i, "lcc", 0, 20, 0.9) for n, i in enumerate(ids) if n % 4])
    poor = write_rows(tmp_path / "poor.csv", [(i, "lcc", 0, 20, 0.9) for n, i in enumerate(ids) if not n % 4])
    found = figures(folder, good, poor, replicates=400)
    assert [recall(one) for one in found["systems"]] == [[0.75, 0.75], [0.25, 0.25]]
    row = found["comparisons"][0]
    assert row["difference"] == 0.5
    assert row["interval"][0] > 0
    assert row["p"] < 0.02
    error = found["systems"][0]["recall"]["2D"]["finding"][0]["standard_error"]
    assert error == pytest.approx((0.75 * 0.25 / 40) ** 0.5, rel=0.15)


def test_names_tell_files_apart() -> None:
    assert names_of([Path("a/p.csv"), Path("b/p.csv")]) == ["a/p", "b/p"]
    assert names_of([Path("a/p.csv"), Path("b/q.csv")]) == ["p", "q"]
    assert len(set(names_of([Path("a/p.csv"), Path("a/p.json")]))) == 2
    with pytest.raises(InputError, match="given twice"):
        names_of([Path("a/p.csv"), Path("a/../a/p.csv")])


# Modalities, and the kinds of cohort


def test_each_modality_is_judged_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    keys = [("DBT", "0,0,0,1"), ("FFDM", "0,0,0,1")]
    (folder / "file-paths.csv").write_text(
        "\n".join([",".join(tables.FILE_PATHS) + ",Modality", *(f"P1,S1,lcc,a,a,{m}" for m, _ in keys)]) + "\n"
    )
    (folder / "labels.csv").write_text(
        "\n".join([",".join(tables.LABELS) + ",Modality", *(f"P1,S1,lcc,{one},{m}" for m, one in keys)]) + "\n"
    )
    boxes = ["P1,S1,lcc,0,20,0,0,100,100,cancer,0,40,DBT", "P1,S1,lcc,0,0,50,50,100,100,cancer,0,1,FFDM"]
    (folder / "boxes.csv").write_text("\n".join([",".join(tables.BOXES) + ",Modality", *boxes]) + "\n")
    flat = tmp_path / "flat.csv"
    flat.write_text(f"{HEADER},Modality\nP1,S1,lcc,50,100,50,100,,0,0.5,FFDM\n")
    found = system(folder, flat)
    assert found["modality"] == "FFDM"
    assert list(found["recall"]) == ["2D"]
    assert recall(found) == [1, 1]
    assert (found["depth"], found["dbtex"]) == (None, None)
    deep = tmp_path / "deep.csv"
    deep.write_text(f"{HEADER}\nP1,S1,lcc,0,100,0,100,20,0,0.5\n")
    pair = figures(folder, deep, flat)
    assert [one["modality"] for one in pair["systems"]] == ["DBT", "FFDM"]
    assert {row["level"] for row in pair["comparisons"] if row["metric"] == "auc"} == {"breast", "case"}
    both = tmp_path / "both.csv"
    both.write_text(f"{flat.read_text()}P1,S1,lcc,0,100,0,100,20,0,0.5,DBT\n")
    with pytest.raises(InputError, match="both has predictions for DBT and for FFDM; choose one with --modality"):
        system(folder, both)
    assert system(folder, both, modality="DBT")["counts"]["proposals"] == 1


def test_a_prepared_folder_knows_millimetres_and_vendors(tmp_path: Path) -> None:
    folder = tmp_path / "download"
    for name in ("lcc", "rcc"):
        ds = tomosynthesis(np.stack([breast_pixels(side=name[0].upper())] * 12), side=name[0].upper())
        write_dicom(ds, folder / f"{name}.dcm")
    (folder / "file-paths.csv").write_text(
        f"{','.join(tables.FILE_PATHS)}\nP1,S1,lcc,lcc.dcm,lcc.dcm\nP1,S1,rcc,rcc.dcm,rcc.dcm\n"
    )
    (folder / "labels.csv").write_text(f"{','.join(tables.LABELS)}\nP1,S1,lcc,0,0,0,1\nP1,S1,rcc,1,0,0,0\n")
    (folder / "boxes.csv").write_text(f"{','.join(tables.BOXES)}\nP1,S1,lcc,0,6,20,100,50,50,cancer,0,12\n")
    assert main(["prepare", "tables", str(folder), "-o", str(tmp_path / "prepared"), "--width", "40"]) == 0
    file = tmp_path / "p.csv"
    file.write_text(f"{HEADER}\nP1,S1,lcc,20,50,100,50,8,0,0.5\n")
    found = system(tmp_path / "prepared", file, by=("vendor", "size"))
    assert (found["depth"]["median_slices"], found["depth"]["median_mm"]) == (2, 2)
    assert [row["value"] for row in found["subgroups"]["vendor"]] == ["TESTS"]
    sizes = {row["value"]: row["recall"]["2D"][0]["count"] for row in found["subgroups"]["size"]}
    assert sizes == {"below 10 mm": 1, "10 to 20 mm": 0, "20 mm and more": 0}  # 50 pixels of 0.1 mm
    assert found["dbtex"] == system(folder, file)["dbtex"]


def test_the_tables_of_a_download_are_enough(tmp_path: Path) -> None:
    cohort = write_cohort(tmp_path / "ours")
    folder = tmp_path / "bcs"
    folder.mkdir()
    for name in ("labels", "boxes"):
        (folder / f"BCS-DBT-{name}-train-v2.csv").write_bytes((cohort / f"{name}.csv").read_bytes())
    file = write_rows(tmp_path / "p.csv")
    assert recall(system(folder, file)) == recall(system(cohort, file))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="empty is no cohort"):
        system(empty, file)
    with pytest.raises(InputError, match="gone is not a folder"):
        system(tmp_path / "gone", file)


# Bad input


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("P9,SP9,lcc", "the volume P9 SP9 lcc is not in cohort"),
        ("P1,SP1,rmlo", "the volume P1 SP1 rmlo is not in cohort"),
        ("P2,SP1,lcc", "study SP1 is of patient P1 in cohort, not of P2"),
    ],
)
def test_a_volume_that_the_cohort_lacks_is_named_by_row(cohort: Path, tmp_path: Path, row: str, reason: str) -> None:
    file = write_rows(tmp_path / "p.csv")
    with file.open("a") as lines:
        lines.write(f"{row},0,9,0,9,1,0,0.5\n")
    with pytest.raises(InputError) as caught:
        system(cohort, file)
    assert f"{file}, row 10: {reason}" in str(caught.value)
    skipped = system(cohort, file, skip_unknown=True)
    assert any("1 predicted volumes are not in the cohort" in note for note in skipped["notes"])
    assert skipped["recall"] == system(cohort, write_rows(tmp_path / "q.csv"))["recall"]


def test_a_repeat_is_its_own_volume_or_the_only_one_there_is(cohort: Path, tmp_path: Path) -> None:
    alone = write_rows(tmp_path / "p.csv", [("P1", "lcc2", 0, 20, 0.9)])
    assert recall(system(cohort, alone)) == pytest.approx([1 / 3, 1 / 3])
    two = write_rows(tmp_path / "p.csv", [("P1", "lcc", 0, 20, 0.9), ("P1", "lcc2", 0, 20, 0.9)])
    with pytest.raises(InputError, match=r"row 3: P1 SP1 lcc2 and a repeat of it are one volume"):
        system(cohort, two)


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": (-1.0,)},
        {"rates": (float("nan"),)},
        {"iou": 0.0},
        {"iou": 25.0},
        {"slice_tolerance": -1.0},
        {"specificities": (90.0,)},
        {"replicates": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--"):
        EvaluateSettings(**changes)


# The command


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_figures_lists_and_pictures(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = write_rows(tmp_path / "mine.csv")
    other = write_rows(tmp_path / "theirs.csv", ROWS[:3])
    out = tmp_path / "deep" / "evaluation"
    arguments = ["--truth", str(cohort), "-o", str(out), "--replicates", "50", "--by", "density", "--at", "0.125"]
    assert main(["evaluate", str(file), str(other), *arguments]) == 0
    names = {"froc", "roc", "reliability"}
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == {"metrics.json", "per-finding.csv", "per-volume.csv", *pictures}
    for name in names:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    assert "mine" in (out / "froc.svg").read_text()
    found = json.loads((out / "metrics.json").read_text())
    assert found["settings"]["rates"] == [0.125]
    assert found["systems"][0]["recall"]["2D"]["finding"][0]["recall"] == pytest.approx(2 / 3)
    printed = capsys.readouterr().out
    for words in ("R@0.125 of findings, 3D", "AUC of breasts", "0.667", "Differences", "By density", "note: "):
        assert words in printed
    # Scores that are no probabilities have no reliability, and must not keep that of others.
    logits = write_rows(tmp_path / "logits.csv", [(*row[:4], 9 * row[4] - 5) for row in ROWS])
    assert main(["evaluate", str(logits), *arguments]) == 0
    assert not list(out.glob("reliability*"))
    assert main(["evaluate", str(file), str(other), *arguments]) == 0
    # The same again gives the same, to the byte.
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert main(["evaluate", str(file), str(other), *arguments]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_the_lists_say_what_was_found_and_missed(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "evaluation"
    rows = [*ROWS, ("P4", "rcc", 510, 28, 0.6), ("P4", "rcc", 0, 28, 0.7)]
    file = write_rows(tmp_path / "p.csv", rows)
    assert main(["evaluate", str(file), "--truth", str(cohort), "-o", str(out), "--replicates", "20"]) == 0
    found = {(row["PatientID"], row["View"]): row for row in rows_of(out / "per-finding.csv")}
    assert len(found) == 4
    columns = ("malignant", "hit_2d", "hit_3d", "score", "rank", "proposal_slice", "slice_error")
    assert {key: tuple(row[column] for column in columns) for key, row in found.items()} == {
        ("P1", "lcc"): ("1", "1", "1", "0.9", "1", "20", "0"),
        ("P1", "lmlo"): ("1", "1", "0", "0.7", "1", "35", "15"),
        ("P2", "lcc"): ("0", "1", "1", "0.85", "1", "10", "0"),
        ("P4", "rcc"): ("1", "1", "1", "0.6", "2", "28", "2"),
    }
    volumes = {(row["PatientID"], row["View"]): row for row in rows_of(out / "per-volume.csv")}
    assert len(volumes) == 10
    assert (volumes["P3", "rcc"]["annotated"], volumes["P3", "rcc"]["in_froc"]) == ("0", "0")
    assert volumes["P1", "rcc"]["image_score"] == ""
    p4 = volumes["P4", "rcc"]
    assert (p4["malignant_findings_hit_3d"], p4["proposals"], p4["highest_false_positive_2d"]) == ("1", "3", "0.7")


def test_nothing_of_torch_is_needed(cohort: Path, tmp_path: Path) -> None:
    """A hospital that measures somebody else's detector waits for no model to be imported."""
    file = write_rows(tmp_path / "p.csv")
    program = (
        "import sys; from mm3d.cli import main\n"
        f"assert main(['evaluate', {str(file)!r}, '--truth', {str(cohort)!r}, '-o', {str(tmp_path / 'out')!r}]) == 0\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bad_input_is_one_sentence_and_exit_code_1(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_rows(tmp_path / "p.csv", [("P1", "lcc", 0, 20, float("nan"))])
    assert main(["evaluate", str(file), "--truth", str(cohort), "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error == f"mm3d: {file}, row 2: Score 'nan' is not a number; mend or remove the row.\n"
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").touch()
    assert main(["evaluate", str(file), "--truth", str(cohort), "-o", str(tmp_path / "out")]) == 1
    assert "is a file; give a folder with -o" in capsys.readouterr().err


# The challenge's own figures


def test_the_official_result_on_the_real_tables(real_data: Path, tmp_path: Path) -> None:
    """The official function was run with the labels of version 1 and the boxes of version 2."""
    for name in ("labels-train.csv", "boxes-train-v2.csv", "file-paths-train.csv"):
        (tmp_path / f"BCS-DBT {name}").symlink_to(real_data / "bcs-dbt" / f"BCS-DBT {name}")
    found = system(tmp_path, real_data / "dbtex-eval" / "predictions.csv")
    official = json.loads((real_data / "dbtex-eval" / "official-result.json").read_text())
    assert found["dbtex"] == pytest.approx(official, abs=1e-9)
    assert found["counts"]["volumes"] == 2596
    assert found["counts"]["findings"] == 224
    assert found["counts"]["malignant_findings"] == 87


def test_the_real_tables_as_they_lie_there(real_data: Path) -> None:
    found = system(real_data / "bcs-dbt", real_data / "dbtex-eval" / "predictions.csv", leave_out_benign=True)
    assert found["counts"]["volumes"] == 19_148
    assert found["counts"]["volumes_in_froc"] == 19_148 - 124
    official = json.loads((real_data / "dbtex-eval" / "official-result.json").read_text())
    same = {name: value for name, value in official.items() if name != "sensitivity_at_2_fps_all"}
    assert {name: found["dbtex"][name] for name in same} == pytest.approx(same, abs=1e-9)
