"""Figures of subgroups: a group that borrows from another hides the women whom a detector fails."""

from pathlib import Path

import numpy as np
import pytest
from support.counted_cohort import system, write_rows
from support.csv_files import write_csv

from mm3d.shared.errors import InputError


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
    write_csv(path, (header, "thickness"), *several)
    found = system(cohort, write_rows(tmp_path / "p.csv"), by=("thickness", "density"))["subgroups"]
    assert [row["value"] for row in found["thickness"]] == ["below 6", "6 to 10.5", "10.5 and more"]
    assert sum(row["auc"]["malignant"] + row["auc"]["others"] for row in found["thickness"]) == 7
    assert {row["value"] for row in found["density"]} == {"a", "b"}


def test_no_error_is_claimed_for_the_findings_of_one_patient(cohort: Path, tmp_path: Path) -> None:
    rows = system(cohort, write_rows(tmp_path / "p.csv"), by=("density",))["subgroups"]["density"]
    assert [row["value"] for row in rows] == ["a", "b"]  # the findings of a are both of P1
    assert np.isnan(rows[0]["recall"]["2D"][0]["standard_error"])
