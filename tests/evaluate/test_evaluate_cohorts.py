"""What predictions are judged by: each modality, split and kind of cohort, and the challenge's own tables."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.counted_cohort import figures, recall, system, write_rows
from support.csv_files import write_csv
from support.dicom_files import breast, tomosynthesis, write

from mm3d.cli import main
from mm3d.data.datasets import tables
from mm3d.output.predictions import COLUMNS
from mm3d.shared.errors import InputError


def test_each_modality_is_judged_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    kinds = ("DBT", "FFDM")
    write_csv(folder / "file-paths.csv", (*tables.FILE_PATHS, "Modality"), *(f"P1,S1,lcc,a,a,{kind}" for kind in kinds))
    write_csv(folder / "labels.csv", (*tables.LABELS, "Modality"), *(f"P1,S1,lcc,0,0,0,1,{kind}" for kind in kinds))
    boxes = ["P1,S1,lcc,0,20,0,0,100,100,cancer,0,40,DBT", "P1,S1,lcc,0,0,50,50,100,100,cancer,0,1,FFDM"]
    write_csv(folder / "boxes.csv", (*tables.BOXES, "Modality"), *boxes)
    flat = write_csv(tmp_path / "flat.csv", (*COLUMNS, "Modality"), "P1,S1,lcc,50,100,50,100,,0,0.5,FFDM")
    found = system(folder, flat)
    assert found["modality"] == "FFDM"
    assert list(found["recall"]) == ["2D"]
    assert recall(found) == [1, 1]
    assert (found["depth"], found["dbtex"]) == (None, None)
    deep = write_csv(tmp_path / "deep.csv", COLUMNS, "P1,S1,lcc,0,100,0,100,20,0,0.5")
    pair = figures(folder, deep, flat)
    assert [one["modality"] for one in pair["systems"]] == ["DBT", "FFDM"]
    assert {row["level"] for row in pair["comparisons"] if row["metric"] == "auc"} == {"breast", "case"}
    both = tmp_path / "both.csv"
    both.write_text(f"{flat.read_text()}P1,S1,lcc,0,100,0,100,20,0,0.5,DBT\n")
    with pytest.raises(InputError, match="both has predictions for DBT and for FFDM; choose one with --modality"):
        system(folder, both)
    assert system(folder, both, modality="DBT")["counts"]["proposals"] == 1


def test_a_split_can_be_chosen_and_predictions_for_others_are_left_out(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "p.csv"), split="test")
    assert (found["counts"]["volumes"], found["counts"]["proposals"]) == (1, 1)
    assert any("another split" in note for note in found["notes"])
    with pytest.raises(InputError, match="--split tset is no split of cohort; known: test, train"):
        system(cohort, write_rows(tmp_path / "p.csv"), split="tset")


def test_a_prepared_folder_knows_millimetres_and_vendors(tmp_path: Path) -> None:
    folder = tmp_path / "download"
    for name in ("lcc", "rcc"):
        ds = tomosynthesis(np.stack([breast(side=name[0].upper())] * 12), side=name[0].upper())
        write(ds, folder / f"{name}.dcm")
    paths = ("P1,S1,lcc,lcc.dcm,lcc.dcm", "P1,S1,rcc,rcc.dcm,rcc.dcm")
    write_csv(folder / "file-paths.csv", tables.FILE_PATHS, *paths)
    write_csv(folder / "labels.csv", tables.LABELS, "P1,S1,lcc,0,0,0,1", "P1,S1,rcc,1,0,0,0")
    write_csv(folder / "boxes.csv", tables.BOXES, "P1,S1,lcc,0,6,20,100,50,50,cancer,0,12")
    assert main(["prepare", "tables", str(folder), "-o", str(tmp_path / "prepared"), "--width", "40"]) == 0
    file = write_csv(tmp_path / "p.csv", COLUMNS, "P1,S1,lcc,20,50,100,50,8,0,0.5")
    found = system(tmp_path / "prepared", file, by=("vendor", "size"))
    assert (found["depth"]["median_slices"], found["depth"]["median_mm"]) == (2, 2)
    assert [row["value"] for row in found["subgroups"]["vendor"]] == ["TESTS"]
    sizes = {row["value"]: row["recall"]["2D"][0]["count"] for row in found["subgroups"]["size"]}
    assert sizes == {"below 10 mm": 1, "10 to 20 mm": 0, "20 mm and more": 0}  # 50 pixels of 0.1 mm
    assert found["dbtex"] == system(folder, file)["dbtex"]


def test_the_tables_of_a_download_are_enough(cohort: Path, tmp_path: Path) -> None:
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
