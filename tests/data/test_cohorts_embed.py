"""EMBED: findings and images are in two tables, and a wrong join or a turned box would be trained on."""

from pathlib import Path

from support.csv_files import write_table
from support.downloads import breast_of, reason_of, touch, view_of

from mm3d.data.datasets import embed
from mm3d.data.records import Annotation


def embed_download(folder: Path) -> Path:
    prefix = "/mnt/NAS2/mammo/anon_dicom/cohort_1"

    def finding(exam: int, side: str, asses: str, severity: str = "", bside: str = "") -> dict[str, object]:
        row: dict[str, object] = {"empi_anon": exam * 10, "acc_anon": exam, "side": side, "asses": asses, "numfind": 1}
        return row | {"path_severity": severity, "bside": bside, "tissueden": 2.0}

    def image(
        exam: int, name: str, side: str, view: str = "CC", rois: str = "()", **changes: object
    ) -> dict[str, object]:
        path = f"{prefix}/{exam * 10}/study{exam}/{name}.dcm"
        row: dict[str, object] = {"empi_anon": exam * 10, "acc_anon": exam, "anon_dicom_path": path}
        kind = {"FinalImageType": "2D", "ImageLateralityFinal": side, "ViewPosition": view, "spot_mag": ""}
        return row | kind | {"num_roi": rois.count("(") - 1, "ROI_coords": rois, "Manufacturer": "HOLOGIC"} | changes

    clinical = [
        finding(1, "L", "S", "1.0"),
        finding(1, "L", "B"),
        finding(1, "R", "N"),
        finding(2, "B", "N"),
        finding(3, "", "S", "4.0"),
        finding(4, "B", "M", "0", bside="R"),
        finding(5, "L", "P"),
        finding(6, "L", "K"),
        finding(7, "L", "M"),
    ]
    images = [
        image(1, "a", "L", rois="((100, 20, 300, 60),)"),
        image(1, "b", "L", "MLO"),
        image(1, "c", "R"),
        image(1, "d", "L", spot_mag="1.0"),
        image(1, "e", "L", FinalImageType="cview"),
        image(1, "f", "L", "ML"),
        image(2, "g", "L"),
        image(2, "h", "R", rois="((1, 2, 3, 4), (5, 6, 7, 8))", spot_mag=0),
        image(3, "i", "L", rois="[10, 20, 30, 40]", num_roi="1.0"),
        image(3, "j", "R"),
        image(4, "k", "R"),
        image(4, "l", "L"),
        image(5, "m", "L", rois="((1, 2, 3, 4),)", num_roi=2),
        image(5, "n", "R"),
        image(5, "o", "L", "MLO", rois="((5, 2, 5, 4),)"),
        image(6, "p", "L"),
        image(7, "q", "L"),
        image(1, "gone", "L"),
    ]
    write_table(folder / "tables" / "EMBED_OpenData_clinical.csv", clinical)
    write_table(folder / "tables" / "EMBED_OpenData_metadata.csv", images)
    for row in images:
        path = Path(str(row["anon_dicom_path"]))
        if path.stem != "gone":
            touch(folder / "images" / "cohort_1" / path.relative_to(prefix))
    touch(folder / "images" / "cohort_1" / "20" / "study2" / "a.dcm")  # the same file name elsewhere
    return folder


def test_embed_joins_findings_to_images_by_exam_and_side(tmp_path: Path) -> None:
    cohort = embed.read(embed_download(tmp_path))
    assert {f"{breast.exam} {breast.laterality}": breast.label for breast in cohort.breasts} == {
        "1 L": "malignant",
        "1 R": "negative",
        "2 L": "negative",  # side B is both
        "2 R": "negative",
        "3 L": "benign",  # no side is both, too
        "3 R": "benign",
        "4 R": "malignant",  # the biopsy was of one side, and the other is BI-RADS 5 without one
        "5 L": "benign",
    }
    left = breast_of(cohort, "10", "L")
    assert left.attributes == {"birads": "2/4", "density": "2.0", "vendor": "HOLOGIC"}
    assert view_of(cohort, "1_a").files == (tmp_path / "images" / "cohort_1" / "10" / "study1" / "a.dcm",)


def test_embed_boxes_are_turned_to_x_before_y(tmp_path: Path) -> None:
    cohort = embed.read(embed_download(tmp_path))
    assert view_of(cohort, "1_a").annotations == (Annotation((20, 100, 60, 300), True),)
    assert view_of(cohort, "2_h").annotations == (Annotation((2, 1, 4, 3), False), Annotation((6, 5, 8, 7), False))
    assert view_of(cohort, "3_i").annotations == (Annotation((20, 10, 40, 30), False),)
    assert view_of(cohort, "1_b").annotations is None  # a cancer nobody marked here
    assert view_of(cohort, "3_j").annotations is None
    assert view_of(cohort, "2_g").annotations == ()


def test_embed_says_what_is_left_out_and_what_its_labels_are_worth(tmp_path: Path) -> None:
    cohort = embed.read(embed_download(tmp_path))
    assert {note for note in cohort.notes if note.startswith("Images left out")} == {
        "Images left out (not 2D): 1.",
        "Images left out (spot or magnification): 1.",
        "Images left out (neither CC nor MLO, or no side): 1.",
        "Images left out (no assessment of the breast, or BI-RADS 0, 4, 5 or 6 without pathology): 4.",
    }
    assert any("On a malignant breast it is malignant" in note for note in cohort.notes)
    assert view_of(cohort, "5_m").annotations is None
    assert "num_roi is 2, but there are 1 boxes" in reason_of(cohort, "5_m")
    assert "no area" in reason_of(cohort, "5_o")
    assert "missing" in reason_of(cohort, "1_gone")
