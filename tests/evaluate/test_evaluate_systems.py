"""Several systems at once: a difference that is chance, or one that is overlooked, chooses the wrong detector."""

from pathlib import Path

import pytest
from support.counted_cohort import ROWS, figures, recall, write_rows
from support.csv_files import write_csv

from mm3d.data.datasets import tables
from mm3d.evaluate.run import name_systems
from mm3d.shared.errors import InputError


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
    ids = [f"Q{i:02}" for i in range(40)]
    write_csv(folder / "file-paths.csv", tables.FILE_PATHS, *(f"{i},S{i},lcc,a,a" for i in ids))
    write_csv(folder / "labels.csv", tables.LABELS, *(f"{i},S{i},lcc,0,0,0,1" for i in ids))
    boxes = (f"{i},S{i},lcc,0,20,0,0,100,100,cancer,0,40" for i in ids)
    write_csv(folder / "boxes.csv", tables.BOXES, *boxes)
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
    assert name_systems([Path("a/p.csv"), Path("b/p.csv")]) == ["a/p", "b/p"]
    assert name_systems([Path("a/p.csv"), Path("b/q.csv")]) == ["p", "q"]
    assert len(set(name_systems([Path("a/p.csv"), Path("a/p.json")]))) == 2
    with pytest.raises(InputError, match="given twice"):
        name_systems([Path("a/p.csv"), Path("a/../a/p.csv")])
