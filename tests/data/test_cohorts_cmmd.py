"""CMMD: sides and views are in the headers alone, and a label on the wrong breast is noticed by nobody."""

from pathlib import Path

import numpy as np
import pytest
from pydicom.sequence import Sequence
from support.csv_files import rows_of, write_table
from support.dicom_files import dataset, item, write
from support.downloads import breast_of, reason_of, touch

from mm3d.data.datasets import cmmd
from mm3d.data.dicom.kinds import MAMMOGRAPHY
from mm3d.shared.errors import InputError


def cmmd_download(folder: Path, table: str = "CMMD_clinicaldata_revision.csv") -> Path:
    def row(patient: str, side: str, label: str, subtype: str = "") -> dict[str, object]:
        start: dict[str, object] = {"ID1": patient, "LeftRight": side, "Age": 50, "number": 2, "abnormality": "mass"}
        return start | {"classification": label, "subtype": subtype}

    def image(
        patient: str, number: int, side: str, code: str, keyword: str = "ImageLaterality", view: str = ""
    ) -> None:
        path = folder / "CMMD" / patient / "07-18-2010-NA-NA-79377" / "1.000000-NA-70244" / f"1-{number}.dcm"
        view_code = Sequence([item(CodeValue=code)] if code else [])
        elements = {"ViewCodeSequence": view_code, "ViewPosition": view, keyword: side, "Manufacturer": "GE"}
        write(dataset(np.zeros((2, 2), np.uint16), MAMMOGRAPHY[0], **elements), path)

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
    assert all(view.annotations is None for view in cohort.views())
    assert breast_of(cohort, "D2-0002", "L").attributes == {
        "abnormality": "mass",
        "subtype": "Luminal A",
        "vendor": "GE",
    }
    assert "Images left out (of breasts that are not in the table): 2." in cohort.notes
    assert "damaged.dcm is empty" in reason_of(cohort, "D1-0001")
    assert "1-5.dcm does not say the side" in reason_of(cohort, "D2-0002")
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
    rows = rows_of(real_data / "ffdm" / "CMMD_annotations.csv")
    assert len(breasts) == len(rows) == 1872
    assert not problems
    assert {key: row["classification"] for key, row in breasts.items()} == {
        (row["ID1"], row["LeftRight"]): row["classification"] for row in rows
    }
