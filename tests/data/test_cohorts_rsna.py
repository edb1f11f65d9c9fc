"""RSNA's mammograms: a label that is taken for another, or a view that is none, is trained on without a message."""

from pathlib import Path

from support.csv_files import write_table
from support.downloads import breast_of, reason_of, touch, view_of

from mm3d.data.datasets import rsna


def test_rsna_tells_cancer_from_biopsy_and_leaves_other_views_out(tmp_path: Path) -> None:
    def image(patient: int, name: int, side: str, view: str, cancer: int, biopsy: int | str) -> dict[str, object]:
        row = {"site_id": 2, "patient_id": patient, "image_id": name, "laterality": side, "view": view, "age": 61}
        labels = {"cancer": cancer, "biopsy": biopsy, "invasive": 0, "BIRADS": "", "implant": 0, "density": "B"}
        return row | labels | {"machine_id": 49, "difficult_negative_case": False}

    rows = [
        image(7, 1, "L", "CC", 1, 1),
        image(7, 2, "L", "MLO", 1, 1),
        image(7, 3, "R", "CC", 0, 1),
        image(8, 4, "L", "CC", 0, 0),
        image(8, 5, "L", "AT", 0, 0),
        image(8, 6, "L", "ML", 0, 0),
        image(8, 7, "L", "ML", 0, 0),
        image(8, 8, "R", "CC", 0, 0),
        image(8, 4, "L", "CC", 0, 0),
        image(9, 9, "L", "CC", 1, 0),
        image(10, 10, "L", "CC", 1, 1),
        image(10, 11, "L", "MLO", 0, 0),
        image(11, 12, "L", "CC", 0, "unknown"),
        image(11, 13, "B", "CC", 0, 0),
    ]
    write_table(tmp_path / "rsna" / "train.csv", rows)
    for row in rows:
        if row["image_id"] != 8:
            touch(tmp_path / "rsna" / "train_images" / str(row["patient_id"]) / f"{row['image_id']}.dcm")
    cohort = rsna.read(tmp_path)
    assert {breast.name: breast.label for breast in cohort.breasts} == {
        "7 1 L": "malignant",
        "7 1 R": "benign",
        "8 1 L": "negative",
        "10 1 L": "malignant",
    }
    assert [view.name for view in breast_of(cohort, "7", "L").views] == ["7_1", "7_2"]
    assert breast_of(cohort, "7", "L").attributes["machine_id"] == "49"
    assert breast_of(cohort, "7", "L").split == ""
    assert view_of(cohort, "7_1").annotations is None
    assert view_of(cohort, "7_3").annotations is None  # whatever was biopsied is there, and not marked
    assert view_of(cohort, "8_4").annotations == ()
    assert view_of(cohort, "10_11").annotations is None  # its breast has cancer, whatever its own row says
    assert "Images left out (view AT): 1." in cohort.notes
    assert "Images left out (view ML): 2." in cohort.notes
    assert "missing" in reason_of(cohort, "8_8")
    assert "twice" in reason_of(cohort, "8_4")
    assert "cancer without a biopsy" in reason_of(cohort, "9_9")
    assert reason_of(cohort, "11_12") == "Its biopsy 'unknown' is none of 0, 1."
    assert reason_of(cohort, "11_13") == "Its laterality 'B' is none of L, R, LEFT, RIGHT."
