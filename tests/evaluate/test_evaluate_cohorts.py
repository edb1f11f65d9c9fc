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


# Volumes without labels


def write_unlabelled(folder: Path) -> tuple[Path, Path]:
    """The challenge's first phase: the test volumes are named, and nothing is said of them. And a team's findings, in a
    file with an index column."""
    write_csv(folder / "BCS-DBT-labels-train.csv", tables.LABELS, "P1,S1,lcc,0,0,0,1")
    write_csv(folder / "BCS-DBT-boxes-train.csv", tables.BOXES, "P1,S1,lcc,0,20,0,0,100,100,cancer,0,40")
    names = ("P2,S2,lcc", "P2,S2,lmlo", "P2,S2,rcc1", "P3,S3,lcc")
    write_csv(folder / "BCS-DBT-file-paths-test.csv", tables.FILE_PATHS, *(f"{name},a/b/c/1.dcm,a" for name in names))
    rows = [f"P2,S2,{view},0,100,0,100,10,3,{score}" for view, score in (("lcc", 0.9), ("lcc", 0.5), ("rcc1", 0.7))]
    file = write_csv(folder / "team.csv", ("", *COLUMNS), *(f"{index},{row}" for index, row in enumerate(rows)))
    return folder, file


def test_a_split_without_labels_says_what_can_be_counted_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = write_unlabelled(tmp_path / "phase-1")
    found = system(folder, file, split="test")
    assert (found["counts"]["volumes"], found["counts"]["proposals"]) == (4, 3)
    spread = found["spread"]
    assert (spread["volumes_without"], spread["per_volume"], spread["per_volume_most"]) == (2, 0.75, 2)
    assert (spread["scores"]["0"], spread["scores"]["0.5"], spread["scores"]["1"]) == (0.5, 0.7, 0.9)
    assert [note for note in found["notes"] if "no label and no box" in note and "cannot be measured" in note]
    assert len(found["notes"]) == 1
    out = tmp_path / "out"
    out.mkdir()
    (out / "froc.png").write_bytes(b"of an earlier run")
    assert main(["evaluate", str(file), "--truth", str(folder), "--split", "test", "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "R@0.25" not in printed  # nothing that looks like a figure
    assert "2 of 4" in printed
    assert not list(out.glob("*.png"))
    assert len((out / "per-volume.csv").read_text().splitlines()) == 5


def test_a_split_without_labels_is_measured_only_if_it_is_asked_for(tmp_path: Path) -> None:
    folder, file = write_unlabelled(tmp_path)
    with pytest.raises(InputError, match="team: its volumes are in split test, which has no labels; give --split test"):
        system(folder, file)
    own = write_csv(tmp_path / "own.csv", COLUMNS, "P1,S1,lcc,0,100,0,100,20,0,0.5")
    assert system(folder, own)["counts"]["volumes"] == 1  # as without the table of the test split
    assert recall(system(folder, own)) == [1, 1]
    strange = write_csv(tmp_path / "strange.csv", COLUMNS, "P9,S9,lcc,0,100,0,100,20,0,0.5")
    with pytest.raises(InputError, match="the volume P9 S9 lcc is not in BCS-DBT"):
        system(folder, strange, split="test")
    (folder / "BCS-DBT-labels-train.csv").unlink()
    (folder / "BCS-DBT-boxes-train.csv").unlink()
    assert system(folder, file)["counts"]["volumes"] == 4  # there is nothing else


def test_a_real_submission_to_the_challenge(real_data: Path) -> None:
    """UCLA's, for the 601 test volumes of the first phase."""
    file = real_data / "dbtex-eval" / "ucla-mii-test-phase1.csv"
    found = system(real_data / "bcs-dbt", file, split="test")
    assert (found["counts"]["patients"], found["counts"]["volumes"], found["counts"]["proposals"]) == (175, 601, 1360)
    assert found["spread"]["volumes_without"] == 601 - 529
    assert any("no label and no box" in note for note in found["notes"])


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
