"""CBIS-DDSM: boxes come from masks that the download mixes up with crops; a wrong one is a wrong truth."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.csv_files import rows_of, write_table
from support.dicom_files import dataset, write
from support.downloads import breast_of, reason_of, view_of

from mm3d.data.datasets import cbis_ddsm
from mm3d.data.dicom.kinds import MAMMOGRAPHY
from mm3d.data.records import Annotation, Cohort


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
        ds = dataset(pixels.astype(np.uint16), MAMMOGRAPHY[0], SeriesInstanceUID=series)
        ds.BitsAllocated, ds.BitsStored, ds.HighBit = 8, 8, 7
        ds.PixelData = pixels.tobytes() + b"\0" * (pixels.size % 2)
        write(ds, self.folder / "CBIS-DDSM" / name)

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
    assert view.annotations == (
        Annotation((3, 4, 10, 12), True, kind="mass"),
        Annotation((20, 30, 30, 40), False, kind="mass"),
    )
    assert breast_of(cohort, "P_00001", "L").label == "malignant"
    assert breast_of(cohort, "P_00001", "L").attributes == {"birads": "4", "density": "3"}


def test_cbis_makes_one_view_of_an_image_in_the_mass_and_calcification_tables(tmp_path: Path) -> None:
    download = CbisDownload(tmp_path)
    download.add("P_00002", "RIGHT", "MLO", "BENIGN", mask=mask_of(3, 4, 10, 12))
    download.add("P_00002", "RIGHT", "MLO", "MALIGNANT", kind="calc", mask=mask_of(1, 2, 5, 6))
    (view,) = breast_of(download.read(), "P_00002", "R").views
    assert [(finding.kind, finding.malignant) for finding in view.annotations or ()] == [
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
        assert view_of(cohort, f"{name}_LEFT_CC").annotations is None
        assert "not annotated" in reason_of(cohort, f"{name}_LEFT_CC")
        assert breast_of(cohort, name, "L").label == "malignant"
    assert "0 masks of the size of the image" in reason_of(cohort, "P_00005_LEFT_CC")
    assert "is missing" in reason_of(cohort, "P_00008_LEFT_CC")
    assert reason_of(cohort, "P_00009_LEFT_CC").endswith("000000.dcm is missing.")
    assert view_of(cohort, "P_00010_LEFT_CC").annotations == (Annotation((3, 4, 10, 12), True, kind="mass"),)


def test_the_real_cbis_ddsm_tables(real_data: Path) -> None:
    raw: list[tuple[str, dict[str, str]]] = []
    for path in sorted((real_data / "ffdm").glob("CBIS-DDSM_*.csv")):
        raw += [("train" if "train" in path.name else "test", row) for row in rows_of(path)]
    rows = cbis_ddsm.read_tables(real_data / "ffdm")
    assert len(rows) == len(raw) == 3568
    assert Counter((row["split"], cbis_ddsm.MALIGNANT[row["pathology"]]) for row in rows) == Counter(
        (split, row["pathology"] == "MALIGNANT") for split, row in raw
    )
    assert {row["image file path"] for row in rows} == {row["image file path"].strip() for _, row in raw}
    assert all(path.endswith(".dcm") for row in rows for name, path in row.items() if name.endswith("file path"))
    assert {row["density"] for row in rows} <= set("01234")
    patients = {split: {row["patient_id"] for own, row in raw if own == split} for split in ("train", "test")}
    assert len(patients["train"] | patients["test"]) == len({row["patient_id"] for row in rows}) == 1566
    assert cbis_ddsm.in_both_splits(rows) == patients["train"] & patients["test"]
    assert len(cbis_ddsm.in_both_splits(rows)) == 31
    assert (len({row["image file path"] for row in rows}), len({row["view"] for row in rows})) == (3103, 3032)
