"""VinDr-Mammo: a wrong side, label or box would train a detector on it without any message."""

from pathlib import Path

from support.csv_files import write_table
from support.downloads import breast_of, reason_of, touch, view_of

from mm3d.data.datasets import vindr
from mm3d.data.records import Annotation


def vindr_download(folder: Path) -> Path:
    def image(name: str, birads: int, study: str = "s1", **changes: object) -> dict[str, object]:
        row = {"study_id": study, "series_id": "x", "image_id": name, "laterality": "L", "view_position": "CC"}
        sizes = {"height": 3518, "width": 2800, "breast_birads": f"BI-RADS {birads}", "breast_density": "DENSITY C"}
        return row | sizes | {"split": "training"} | changes

    def mark(name: str, categories: str, birads: str = "", box: tuple[object, ...] = ("",) * 4) -> dict[str, object]:
        corners = dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        return {"image_id": name, "finding_categories": categories, "finding_birads": birads} | corners

    images = [
        image("suspicious", 4),
        image("clean", 4, view_position="MLO"),
        image("benign", 3, laterality="R"),
        image("negative", 1, "s2", split="test"),
        image("torn", 2, "s2", laterality="R", split="test"),
        image("absent", 2, "s3"),
        image("tilted", 2, "s4", view_position="ML"),
        image("denied", 3, "s5"),
        image("outvoted", 2, "s6"),
    ]
    marks = [
        mark("suspicious", "['Mass', 'Skin Thickening']", "BI-RADS 5", (10.5, 20, 300, 400)),
        mark("suspicious", "['Mass']", "BI-RADS 3", (1, 2, 3, 4)),
        mark("suspicious", "['Nipple Retraction']", "", (2700, -0.25, 2800.75, 90)),
        mark("clean", "['No Finding']"),
        mark("benign", "['Focal Asymmetry']", "BI-RADS 3", (5, 6, 7, 8)),
        mark("negative", "['No Finding']"),
        mark("torn", "['Mass']", "BI-RADS 2", (9, 9, 9, 20)),
        mark("denied", "['Mass']", "BI-RADS 3", (1, 1, 2, 2)),
        mark("denied", "['No Finding']"),
        mark("outvoted", "['Mass']", "BI-RADS 5", (1, 1, 2, 2)),
    ]
    write_table(folder / "vindr-mammo" / "breast-level_annotations.csv", images)
    write_table(folder / "vindr-mammo" / "finding_annotations.csv", marks)
    for row in images:
        if row["image_id"] != "absent":
            suffix = "dcm" if row["image_id"] == "clean" else "dicom"
            touch(folder / "vindr-mammo" / "images" / str(row["study_id"]) / f"{row['image_id']}.{suffix}")
    return folder


def test_vindr_calls_birads_4_and_5_malignant_and_says_so(tmp_path: Path) -> None:
    cohort = vindr.read(vindr_download(tmp_path))
    left = breast_of(cohort, "s1", "L")
    assert (left.label, left.split, left.attributes) == ("malignant", "train", {"birads": "4", "density": "C"})
    assert view_of(cohort, "suspicious").annotations == (
        Annotation((10.5, 20, 300, 400), True, kind="Mass, Skin Thickening"),
        Annotation((1, 2, 3, 4), False, kind="Mass"),
        Annotation((2700, 0, 2800, 90), True, kind="Nipple Retraction"),  # the breast's BI-RADS; cut at the border
    )
    assert view_of(cohort, "clean").annotations == ()
    assert view_of(cohort, "clean").files[0].suffix == ".dcm"
    assert breast_of(cohort, "s1", "R").label == "benign"
    assert breast_of(cohort, "s2", "L").label == "negative"
    assert breast_of(cohort, "s2", "L").split == "test"
    assert any("BI-RADS 4 or 5" in note for note in cohort.notes)


def test_vindr_leaves_out_what_contradicts_itself_and_goes_on(tmp_path: Path) -> None:
    cohort = vindr.read(vindr_download(tmp_path))
    assert view_of(cohort, "torn").annotations is None
    assert "no area" in reason_of(cohort, "torn")
    assert view_of(cohort, "denied").annotations is None
    assert "'No Finding' next to other rows" in reason_of(cohort, "denied")
    assert "missing" in reason_of(cohort, "absent")
    assert "ML" in reason_of(cohort, "tilted")
    assert "has a malignant annotation" in reason_of(cohort, "s6 s6 L")
    assert len(cohort.problems) == 5


def test_vindr_boxes_of_an_unknown_birads_are_left_out(tmp_path: Path) -> None:
    folder = vindr_download(tmp_path)
    table = folder / "vindr-mammo" / "finding_annotations.csv"
    assert "BI-RADS 2" in table.read_text()
    table.write_text(table.read_text().replace("BI-RADS 2", "BI-RADS 7"))
    reason = next(problem.reason for problem in vindr.read(folder).problems if "BI-RADS 7" in problem.reason)
    assert reason.startswith("Its annotations are left out, it counts as not annotated: Its finding_birads 'BI-RADS 7'")
    assert reason.endswith("BI-RADS 5.")


def test_categories_are_read_without_running_them(tmp_path: Path) -> None:
    folder = vindr_download(tmp_path)
    table = folder / "vindr-mammo" / "finding_annotations.csv"
    harmful = f"open('{tmp_path / 'ran'}', 'w')"
    table.write_text(table.read_text().replace("['Focal Asymmetry']", f'"{harmful}"'))
    assert view_of(vindr.read(folder), "benign").annotations is None
    assert not (tmp_path / "ran").exists()
