"""Readers of mammogram datasets: a wrong side, label or box here would train a detector on it without any message."""

import csv
import plistlib
from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from mm3d.cohorts import cbis_ddsm, cmmd, embed, inbreast, rsna, vindr
from mm3d.errors import InputError
from mm3d.records import Breast, Cohort, Finding, View


def write_table(path: Path, rows: list[dict[str, object]], delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def write_dicom(path: Path, pixels: NDArray[np.uint8], **elements: object) -> Path:
    dataset = pydicom.Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.2"
    dataset.SOPInstanceUID = generate_uid()
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation, dataset.SamplesPerPixel = 7, 0, 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.PixelData = pixels.tobytes() + b"\0" * (pixels.size % 2)
    for keyword, value in elements.items():
        setattr(dataset, keyword, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def breast_of(cohort: Cohort, patient: str, laterality: str, exam: str | None = None) -> Breast:
    (found,) = (
        breast
        for breast in cohort.breasts
        if (breast.patient, breast.laterality) == (patient, laterality) and exam in (None, breast.exam)
    )
    return found


def view_of(cohort: Cohort, name: str) -> View:
    (found,) = (view for view in cohort.views() if view.name == name)
    return found


def reason_of(cohort: Cohort, subject: str) -> str:
    (reason,) = (problem.reason for problem in cohort.problems if problem.subject == subject)
    return reason


# VinDr-Mammo


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
    assert view_of(cohort, "suspicious").findings == (
        Finding((10.5, 20, 300, 400), True, kind="Mass, Skin Thickening"),
        Finding((1, 2, 3, 4), False, kind="Mass"),
        Finding((2700, 0, 2800, 90), True, kind="Nipple Retraction"),  # the breast's BI-RADS; cut at the border
    )
    assert view_of(cohort, "clean").findings == ()
    assert view_of(cohort, "clean").files[0].suffix == ".dcm"
    assert breast_of(cohort, "s1", "R").label == "benign"
    assert breast_of(cohort, "s2", "L").label == "negative"
    assert breast_of(cohort, "s2", "L").split == "test"
    assert any("BI-RADS 4 or 5" in note for note in cohort.notes)


def test_vindr_leaves_out_what_contradicts_itself_and_goes_on(tmp_path: Path) -> None:
    cohort = vindr.read(vindr_download(tmp_path))
    assert view_of(cohort, "torn").findings is None
    assert "no area" in reason_of(cohort, "torn")
    assert view_of(cohort, "denied").findings is None
    assert "'No Finding' next to other rows" in reason_of(cohort, "denied")
    assert "missing" in reason_of(cohort, "absent")
    assert "ML" in reason_of(cohort, "tilted")
    assert "has a malignant finding" in reason_of(cohort, "s6 s6 L")
    assert len(cohort.problems) == 5


def test_categories_are_read_without_running_them(tmp_path: Path) -> None:
    folder = vindr_download(tmp_path)
    table = folder / "vindr-mammo" / "finding_annotations.csv"
    harmful = f"open('{tmp_path / 'ran'}', 'w')"
    table.write_text(table.read_text().replace("['Focal Asymmetry']", f'"{harmful}"'))
    assert view_of(vindr.read(folder), "benign").findings is None
    assert not (tmp_path / "ran").exists()


# RSNA


def test_rsna_tells_cancer_from_biopsy_and_leaves_other_views_out(tmp_path: Path) -> None:
    def image(patient: int, name: int, side: str, view: str, cancer: int, biopsy: int) -> dict[str, object]:
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
    assert view_of(cohort, "7_1").findings is None
    assert view_of(cohort, "7_3").findings is None  # whatever was biopsied is there, and not marked
    assert view_of(cohort, "8_4").findings == ()
    assert view_of(cohort, "10_11").findings is None  # its breast has cancer, whatever its own row says
    assert "Images left out (view AT): 1." in cohort.notes
    assert "Images left out (view ML): 2." in cohort.notes
    assert "missing" in reason_of(cohort, "8_8")
    assert "twice" in reason_of(cohort, "8_4")
    assert "cancer without a biopsy" in reason_of(cohort, "9_9")


# CMMD


def cmmd_download(folder: Path, table: str = "CMMD_clinicaldata_revision.csv") -> Path:
    def row(patient: str, side: str, label: str, subtype: str = "") -> dict[str, object]:
        start: dict[str, object] = {"ID1": patient, "LeftRight": side, "Age": 50, "number": 2, "abnormality": "mass"}
        return start | {"classification": label, "subtype": subtype}

    def image(
        patient: str, number: int, side: str, code: str, keyword: str = "ImageLaterality", view: str = ""
    ) -> None:
        item = pydicom.Dataset()
        item.CodeValue = code
        path = folder / "CMMD" / patient / "07-18-2010-NA-NA-79377" / "1.000000-NA-70244" / f"1-{number}.dcm"
        sequence = pydicom.Sequence([item] if code else [])
        elements = {"ViewCodeSequence": sequence, "ViewPosition": view, keyword: side, "Manufacturer": "GE"}
        write_dicom(path, np.zeros((2, 2), np.uint8), **elements)

    rows = [
        row("D1-0001", "R", "Benign"),
        row("D2-0002", "L", "Malignant", "Luminal A"),
        row("D2-0003", "L", "Malignant"),
        row("D2-0004", "L", "Malignant"),
        row("D2-0004", "L", "Benign"),
    ]
    write_table(folder / "CMMD" / table, rows)
    image("D1-0001", 1, "R", "399162004")
    image("D1-0001", 2, "R", "399368009")
    image("D2-0002", 1, "L", "R-10242", keyword="Laterality")
    image("D2-0002", 2, "L", "", view="MLO")
    image("D2-0002", 3, "R", "399162004")
    image("D2-0002", 4, "R", "399368009")
    image("D2-0002", 5, "L", "399260004")  # medio-lateral
    image("D2-0002", 6, "L", "R-10226")
    touch(folder / "CMMD" / "D1-0001" / "damaged.dcm")
    return folder


def test_cmmd_takes_views_from_headers_and_annotates_nothing(tmp_path: Path) -> None:
    cohort = cmmd.read(cmmd_download(tmp_path))
    assert {breast.name: breast.label for breast in cohort.breasts} == {
        "D1-0001 1 R": "benign",
        "D2-0002 1 L": "malignant",
    }
    views = breast_of(cohort, "D2-0002", "L").views
    assert [view.name for view in views] == ["D2-0002_L_CC", "D2-0002_L_MLO", "D2-0002_L_MLO_2"]
    assert [view.files[0].name for view in views] == ["1-1.dcm", "1-2.dcm", "1-6.dcm"]
    assert all(view.findings is None for view in cohort.views())
    assert breast_of(cohort, "D2-0002", "L").attributes == {
        "abnormality": "mass",
        "subtype": "Luminal A",
        "vendor": "GE",
    }
    assert "Images left out (of breasts that are not in the table): 2." in cohort.notes
    assert "damaged.dcm is empty" in reason_of(cohort, "D1-0001")
    assert "1-5.dcm does not tell" in reason_of(cohort, "D2-0002")
    assert "no usable image" in reason_of(cohort, "D2-0003 L")
    assert "One row says benign" in reason_of(cohort, "D2-0004 L")


def test_cmmd_finds_its_table_by_the_columns_and_explains_a_spreadsheet(tmp_path: Path) -> None:
    write_table(tmp_path / "CMMD-a-list-of-series.csv", [{"Series UID": "1.2.3"}])
    assert cmmd.read(cmmd_download(tmp_path, "CMMD_annotations.csv")).breasts
    bare = tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(InputError, match=r"no CMMD_clinicaldata_revision\.csv"):
        cmmd.read(bare)
    touch(bare / "CMMD_clinicaldata_revision.xlsx")
    with pytest.raises(InputError, match="save it as CSV"):
        cmmd.read(bare)


def test_the_real_cmmd_table(real_data: Path) -> None:
    breasts, problems = cmmd.read_table(real_data / "ffdm")
    with (real_data / "ffdm" / "CMMD_annotations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(breasts) == len(rows) == 1872
    assert not problems
    assert {key: row["classification"] for key, row in breasts.items()} == {
        (row["ID1"], row["LeftRight"]): row["classification"] for row in rows
    }


# EMBED


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
    assert view_of(cohort, "1_a").findings == (Finding((20, 100, 60, 300), True),)
    assert view_of(cohort, "2_h").findings == (Finding((2, 1, 4, 3), False), Finding((6, 5, 8, 7), False))
    assert view_of(cohort, "3_i").findings == (Finding((20, 10, 40, 30), False),)
    assert view_of(cohort, "1_b").findings is None  # a cancer nobody marked here
    assert view_of(cohort, "3_j").findings is None
    assert view_of(cohort, "2_g").findings == ()


def test_embed_says_what_is_left_out_and_what_its_labels_are_worth(tmp_path: Path) -> None:
    cohort = embed.read(embed_download(tmp_path))
    assert {note for note in cohort.notes if note.startswith("Images left out")} == {
        "Images left out (not 2D): 1.",
        "Images left out (spot or magnification): 1.",
        "Images left out (neither CC nor MLO, or no side): 1.",
        "Images left out (no assessment of the breast, or BI-RADS 0, 4, 5 or 6 without pathology): 4.",
    }
    assert any("malignant on a malignant breast" in note for note in cohort.notes)
    assert view_of(cohort, "5_m").findings is None
    assert "num_roi is 2, but there are 1 boxes" in reason_of(cohort, "5_m")
    assert "no area" in reason_of(cohort, "5_o")
    assert "missing" in reason_of(cohort, "1_gone")


# INbreast


def inbreast_download(folder: Path) -> Path:
    def row(number: int, side: str, view: str, birads: str, date: int = 200801) -> dict[str, object]:
        start: dict[str, object] = {"Patient ID": "removed", "Patient age": "removed", "Laterality": side, "View": view}
        return start | {"Acquisition date": date, "File Name": number, "ACR": 2, "Bi-Rads": birads}

    def outlines(number: int, *rois: tuple[str, list[tuple[float, float]]]) -> None:
        entries = [
            {"Name": name, "NumberOfPoints": len(points), "Point_px": [f"({x:f}, {y:f})" for x, y in points]}
            for name, points in rois
        ]
        with (folder / "AllXML" / f"{number}.xml").open("wb") as file:
            plistlib.dump({"Images": [{"ImageIndex": 0, "NumberOfROIs": len(rois), "ROIs": entries}]}, file)

    rows = [
        row(101, "L", "MLO", "4a"),
        row(102, "L", "CC", "6"),
        row(103, "R", "CC", "1"),
        row(104, "R", "CC", "2"),
        row(105, "L", "CC", "3", date=200902),
        row(106, "R", "MLO", "5"),
        row(107, "R", "MLO", "2"),
        row(108, "L", "FB", "2"),
        row(109, "L", "CC", "2"),
    ]
    write_table(folder / "INbreast.csv", rows, delimiter=";")
    for name in (
        "101_aaaa_MG_L_ML_ANON", "102_aaaa_MG_L_CC_ANON", "103_aaaa_MG_R_CC_ANON", "104_bbbb_MG_R_CC_ANON",
        "105_aaaa_MG_L_CC_ANON", "106_cccc_MG_R_ML_ANON", "107_dddd_MG_L_ML_ANON", "108_dddd_MG_L_FB_ANON",
    ):  # fmt: skip
        touch(folder / "AllDICOMs" / f"{name}.dcm")
    (folder / "AllXML").mkdir()
    triangle = [(10.5, 20.0), (30.0, 5.25), (12.0, 40.0)]
    outlines(
        101, ("Mass", triangle), ("Calcification", [(1.0, 1.0)]), ("Pectoral Muscle", triangle), ("Unnamed", triangle)
    )
    outlines(102, ("Espiculated Region", triangle))
    outlines(104, ("Cluster", triangle))
    outlines(106, ("Calcification", [(1.0, 1.0)]), ("Calcification", [(5.0, 1.0), (5.0, 2.0), (5.0, 3.0)]))
    (folder / "AllXML" / "105.xml").write_text("<plist><dict>")
    return folder


def test_inbreast_boxes_are_the_bounds_of_the_outlines(tmp_path: Path) -> None:
    cohort = inbreast.read(inbreast_download(tmp_path))
    bounds = (10.5, 5.25, 30.0, 40.0)
    assert view_of(cohort, "101").findings == (
        Finding(bounds, True, kind="Mass"),
        Finding(bounds, False, kind="Unnamed"),
    )
    assert view_of(cohort, "101").position == "MLO"
    assert view_of(cohort, "102").findings == (Finding(bounds, True, kind="Espiculated Region"),)
    assert view_of(cohort, "103").findings == ()  # no XML file
    assert view_of(cohort, "104").findings == (Finding(bounds, False, kind="Cluster"),)
    assert view_of(cohort, "106").findings is None  # marked by points alone: there is a cancer, but no box


def test_inbreast_patients_are_told_apart_though_their_numbers_are_removed(tmp_path: Path) -> None:
    cohort = inbreast.read(inbreast_download(tmp_path))
    assert {breast.name: breast.label for breast in cohort.breasts} == {
        "aaaa 200801 L": "malignant",
        "aaaa 200801 R": "negative",
        "aaaa 200902 L": "benign",
        "bbbb 200801 R": "benign",
        "cccc 200801 R": "malignant",
    }
    assert breast_of(cohort, "bbbb", "R").attributes == {"birads": "2", "density": "2"}
    assert any("BI-RADS 4 to 6" in note for note in cohort.notes)


def test_inbreast_names_what_it_cannot_use(tmp_path: Path) -> None:
    folder = inbreast_download(tmp_path)
    cohort = inbreast.read(folder)
    assert view_of(cohort, "105").findings is None
    assert "105.xml cannot be read" in reason_of(cohort, "105")
    assert "The table says R MLO, but its file is 107_dddd_MG_L_ML_ANON.dcm" in reason_of(cohort, "107")
    assert "FB" in reason_of(cohort, "108")
    assert "missing" in reason_of(cohort, "109")
    for path in (folder / "AllXML").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="AllXML"):
        inbreast.read(folder)


# CBIS-DDSM


def mask_of(x1: int, y1: int, x2: int, y2: int, shape: tuple[int, int] = (40, 30)) -> NDArray[np.uint8]:
    mask = np.zeros(shape, np.uint8)
    mask[y1:y2, x1:x2] = 255
    mask[y1, x1 + 1 :] = 0  # no rectangle: only its bounds are
    return mask


IMAGE = np.arange(40 * 30, dtype=np.uint32).reshape(40, 30).astype(np.uint8)
CROP = IMAGE[:7, :5].copy()


class CbisDownload:
    """A miniature of the download; `add` writes a table row and, as they are or as renamed by the downloader, files."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder, self.prefix = folder, prefix
        self.rows: dict[tuple[str, str], list[dict[str, object]]] = {
            (kind, split): [] for kind in ("mass", "calc") for split in ("train", "test")
        }

    def add(
        self, patient: str, side: str, view: str, pathology: str, *, kind: str = "mass", split: str = "train",
        mask: NDArray[np.uint8] | None = None, crop: NDArray[np.uint8] = CROP, image: NDArray[np.uint8] | None = IMAGE,
        swapped: bool = False, renamed: bool = False, number: int = 1,
    ) -> None:  # fmt: skip
        top = f"{kind.title()}-{'Training' if split == 'train' else 'Test'}_{patient}_{side}_{view}"
        full, roi = f"{top}/1.2.{number}/1.3.{number}", f"{top}_{number}/1.4.{number}/1.5.{number}"
        if image is not None:
            name = f"{top}/07-20-2016-DDSM-96009/1.0-full mammogram images-63992/1-1.dcm"
            self._write(name if renamed else f"{full}/000000.dcm", image, f"1.3.{number}")
        if mask is not None:
            names = [f"{top}_{number}/07-20-2016-DDSM-1/1.0-ROI mask images-2/1-{n}.dcm" for n in (1, 2)]
            exact = [f"{roi}/00000{n}.dcm" for n in (0, 1)]
            for name, pixels in zip(names if renamed else exact, (crop, mask), strict=True):
                self._write(name, pixels, f"1.5.{number}")
        paths = [f"{roi}/00000{n}.dcm" for n in ((1, 0) if swapped else (0, 1))]
        density = "breast_density" if kind == "mass" else "breast density"
        self.rows[kind, split].append(
            {
                "patient_id": patient,
                density: 3,
                "left or right breast": side,
                "image view": view,
                "abnormality id": number,
                "abnormality type": "mass" if kind == "mass" else "calcification",
                "assessment": 2 + number,
                "pathology": pathology,
                "image file path": f"{full}/000000.dcm",
                "cropped image file path": paths[0] + ("\n" if kind == "calc" else ""),
                "ROI mask file path": paths[1] + ("\n" if kind == "mass" else ""),
            }
        )

    def _write(self, name: str, pixels: NDArray[np.uint8], series: str) -> None:
        write_dicom(self.folder / "CBIS-DDSM" / name, pixels, SeriesInstanceUID=series)

    def read(self) -> Cohort:
        for (kind, split), rows in self.rows.items():
            if not rows:
                self.add("P_99999", "LEFT", "CC", "BENIGN", kind=kind, split=split, image=None)
            write_table(self.folder / f"{self.prefix}{kind}_case_description_{split}_set.csv", rows)
        return cbis_ddsm.read(self.folder)


@pytest.mark.parametrize("prefix", ["", "CBIS-DDSM_"])
@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_cbis_boxes_come_from_the_mask_wherever_it_is(
    tmp_path: Path, prefix: str, renamed: bool, swapped: bool
) -> None:
    download = CbisDownload(tmp_path, prefix)
    row = ("P_00001", "LEFT", "CC")
    download.add(*row, "MALIGNANT", mask=mask_of(3, 4, 10, 12), swapped=swapped, renamed=renamed)
    download.add(
        *row,
        "BENIGN_WITHOUT_CALLBACK",
        mask=mask_of(20, 30, 30, 40),
        swapped=swapped,
        renamed=renamed,
        image=None,
        number=2,
    )
    download.rows["mass", "train"][1]["image file path"] = download.rows["mass", "train"][0]["image file path"]
    cohort = download.read()
    (view,) = breast_of(cohort, "P_00001", "L").views
    assert view.name == "P_00001_LEFT_CC"
    assert view.findings == (
        Finding((3, 4, 10, 12), True, kind="mass"),
        Finding((20, 30, 30, 40), False, kind="mass"),
    )
    assert breast_of(cohort, "P_00001", "L").label == "malignant"
    assert breast_of(cohort, "P_00001", "L").attributes == {"birads": "4", "density": "3"}


def test_cbis_makes_one_view_of_an_image_in_the_mass_and_calcification_tables(tmp_path: Path) -> None:
    download = CbisDownload(tmp_path)
    download.add("P_00002", "RIGHT", "MLO", "BENIGN", mask=mask_of(3, 4, 10, 12))
    download.add("P_00002", "RIGHT", "MLO", "MALIGNANT", kind="calc", mask=mask_of(1, 2, 5, 6))
    (view,) = breast_of(download.read(), "P_00002", "R").views
    assert [(finding.kind, finding.malignant) for finding in view.findings or ()] == [
        ("mass", False),
        ("calcification", True),
    ]


def test_cbis_patients_in_both_splits_are_test(tmp_path: Path) -> None:
    download = CbisDownload(tmp_path)
    download.add("P_00003", "LEFT", "CC", "BENIGN", mask=mask_of(3, 4, 10, 12))
    download.add("P_00003", "RIGHT", "CC", "MALIGNANT", kind="calc", split="test", mask=mask_of(3, 4, 10, 12))
    download.add("P_00004", "LEFT", "CC", "BENIGN", mask=mask_of(3, 4, 10, 12))
    cohort = download.read()
    assert {breast.name: breast.split for breast in cohort.breasts} == {
        "P_00003 1 L": "test",
        "P_00003 1 R": "test",
        "P_00004 1 L": "train",
    }
    assert any("2 patients are in a training and in a test table" in note for note in cohort.notes)  # and P_99999


def test_cbis_never_takes_a_box_from_a_mask_that_does_not_fit(tmp_path: Path) -> None:
    download = CbisDownload(tmp_path)
    fits = mask_of(3, 4, 10, 12)
    download.add("P_00005", "LEFT", "CC", "MALIGNANT", mask=mask_of(3, 4, 10, 12, shape=(80, 60)))
    download.add("P_00006", "LEFT", "CC", "MALIGNANT", mask=np.zeros((40, 30), np.uint8))
    download.add("P_00007", "LEFT", "CC", "MALIGNANT", mask=IMAGE)
    download.add("P_00008", "LEFT", "CC", "MALIGNANT")
    download.add("P_00009", "LEFT", "CC", "MALIGNANT", mask=fits, image=None)
    download.add("P_00010", "LEFT", "CC", "MALIGNANT", mask=fits, crop=IMAGE)  # told apart by their values
    download.add("P_00011", "LEFT", "CC", "MALIGNANT", mask=fits, crop=mask_of(1, 1, 9, 9))  # which of them?
    cohort = download.read()
    for name in ("P_00005", "P_00006", "P_00007", "P_00008", "P_00011"):
        assert view_of(cohort, f"{name}_LEFT_CC").findings is None
        assert "not annotated" in reason_of(cohort, f"{name}_LEFT_CC")
        assert breast_of(cohort, name, "L").label == "malignant"
    assert "0 masks of the size of the image" in reason_of(cohort, "P_00005_LEFT_CC")
    assert "is missing" in reason_of(cohort, "P_00008_LEFT_CC")
    assert reason_of(cohort, "P_00009_LEFT_CC").endswith("000000.dcm is missing.")
    assert view_of(cohort, "P_00010_LEFT_CC").findings == (Finding((3, 4, 10, 12), True, kind="mass"),)


def test_the_real_cbis_ddsm_tables(real_data: Path) -> None:
    raw: list[tuple[str, dict[str, str]]] = []
    for path in sorted((real_data / "ffdm").glob("CBIS-DDSM_*.csv")):
        with path.open(newline="") as file:
            raw += [("train" if "train" in path.name else "test", row) for row in csv.DictReader(file)]
    rows = cbis_ddsm.read_tables(real_data / "ffdm")
    assert len(rows) == len(raw) == 3568
    assert Counter((row.split, row.malignant) for row in rows) == Counter(
        (split, row["pathology"] == "MALIGNANT") for split, row in raw
    )
    assert {row.image for row in rows} == {row["image file path"].strip() for _, row in raw}
    assert all(path.endswith(".dcm") for row in rows for path in (row.image, *row.rois))
    assert {row.density for row in rows} <= set("01234")
    patients = {split: {row["patient_id"] for own, row in raw if own == split} for split in ("train", "test")}
    assert len(patients["train"] | patients["test"]) == len({row.patient for row in rows}) == 1566
    assert cbis_ddsm.in_both_splits(rows) == patients["train"] & patients["test"]
    assert len(cbis_ddsm.in_both_splits(rows)) == 31
    assert (len({row.image for row in rows}), len({row.view for row in rows})) == (3103, 3032)


@pytest.mark.parametrize("reader", [vindr, rsna, cmmd, embed, inbreast, cbis_ddsm])
def test_a_folder_without_the_dataset_is_refused_with_its_name(tmp_path: Path, reader: object) -> None:
    with pytest.raises(InputError, match="give the folder of the download"):
        reader.read(tmp_path)  # type: ignore[attr-defined]
