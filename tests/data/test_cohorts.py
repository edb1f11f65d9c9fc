"""What holds for several readers: a wrong folder is refused by name, and no table leads out of the right one."""

from pathlib import Path
from typing import Any

import pytest
from support.bcs_dbt_download import tables_of
from support.csv_files import write_csv
from support.downloads import touch

from mm3d.data.datasets import bcs_dbt, cbis_ddsm, cmmd, embed, inbreast, rsna, tables, vindr
from mm3d.shared.errors import InputError


@pytest.mark.parametrize("path", ["../secret.dcm", "/etc/passwd", "a/../../secret.dcm", r"..\secret.dcm", r"C:\x.dcm"])
@pytest.mark.parametrize("reader", [bcs_dbt.read, tables.read])
def test_a_path_that_leaves_the_folder_is_never_opened(tmp_path: Path, path: str, reader: Any) -> None:
    touch(tmp_path / "secret.dcm")
    folder = tmp_path / "cohort"
    rows = [f"P1,S1,lcc,{path},{path}", "P1,S1,rcc,a/b/c/1-1.dcm,a/b/c/1-1.dcm", f"P1,S1,lmlo,{path},a/b/d/1-1.dcm"]
    for name in ("a/b/c/1-1.dcm", "a/b/d/1-1.dcm"):
        touch(folder / name)
    tables_of(folder, rows)
    write_csv(folder / "boxes.csv", tables.BOXES)
    for kind in ("file-paths", "labels"):
        (folder / f"{kind}.csv").write_bytes((folder / f"BCS-DBT-{kind}-train-v2.csv").read_bytes())
    cohort = reader(folder)
    assert [view.name for view in cohort.views()] == ["P1 S1 rcc"]
    assert [problem.reason for problem in cohort.problems] == [f"Its path {path!r} leaves the folder."] * 2


@pytest.mark.parametrize("reader", [vindr, rsna, cmmd, embed, inbreast, cbis_ddsm])
def test_a_folder_without_the_dataset_is_refused_with_its_name(tmp_path: Path, reader: object) -> None:
    with pytest.raises(InputError, match=rf"^{tmp_path} has no .*; give the folder of the download\."):
        reader.read(tmp_path)  # type: ignore[attr-defined]
