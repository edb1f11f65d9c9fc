"""JSON and TOML of strangers: configurations, predictions, cohorts, records. None ends in a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.blobs import settings, write_blobs
from support.csv_files import write_csv

from mm3d.cli import main
from mm3d.data.prepare.prepared import read_breasts, read_notes
from mm3d.output import predictions
from mm3d.output.record import read_record
from mm3d.shared.config import DEEPEST, is_deep
from mm3d.shared.errors import InputError
from mm3d.shared.files import check_folder
from mm3d.train.config import read_config
from mm3d.train.log import LOG, read_log

DEEP = "[" * 100_000 + "]" * 100_000
NO_TABLES = {
    "deep": DEEP,
    "cut": '{"version": 1',
    "list": "[1]",
    "word": '"x"',
    "null": "null",
    "bytes": "\udcff\udcfe",
}


def write(path: Path, content: str) -> Path:
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return path


def nest(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"x": value}
    return value


def test_what_mm3d_writes_is_never_too_deep() -> None:
    assert not is_deep(nest(DEEPEST - 2))
    assert is_deep(nest(DEEPEST))
    assert is_deep([[[nest(DEEPEST)]], 1])


@pytest.mark.parametrize("name", NO_TABLES)
def test_no_file_of_json_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    """48 weights files, 50 configurations and 45 files of predictions were tried, and every tenth ended in one."""
    path = write(tmp_path / "cohort.json", NO_TABLES[name])
    for read in (predictions.read_json, read_config):
        with pytest.raises(InputError, match=r"cohort\.json"):
            read(path)
    for read_folder in (read_breasts, read_notes):
        with pytest.raises(InputError, match=r"cohort\.json.* is damaged"):
            read_folder(tmp_path)
    with pytest.raises(InputError, match="is damaged"):
        check_folder(tmp_path, "cohort.json", {"a": 1})
    assert read_record(write(tmp_path / "run.json", NO_TABLES[name]).parent) is None
    write(tmp_path / LOG, NO_TABLES[name].replace("\udcff\udcfe", "x") + '\n{"step": 1}\n')
    assert read_log(tmp_path) == [{"step": 1}]


def change_cohort(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    path = folder / "cohort.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return folder


def first_view(content: dict[str, Any]) -> dict[str, Any]:
    return content["breasts"][0]["views"][0]


COHORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no breasts": lambda content: content.pop("breasts"),
    "breasts are a word": lambda content: content.update(breasts="all"),
    "breasts are numbers": lambda content: content.update(breasts=[1, 2]),
    "views are a table": lambda content: content["breasts"][0].update(views={"a": 1}),
    "views are missing": lambda content: content["breasts"][0].pop("views"),
    "no key": lambda content: first_view(content).pop("key"),
    "a key is a number": lambda content: first_view(content).update(key=5),
    "a key leads elsewhere": lambda content: first_view(content).update(key="../../etc/passwd"),
    "a key is empty": lambda content: first_view(content).update(key=""),
    "a box of three": lambda content: first_view(content).update(annotations=[{"box": [1, 2, 3], "malignant": True}]),
    "a box of words": lambda content: first_view(content).update(annotations=[{"box": "abcd", "malignant": True}]),
    "another side": lambda content: first_view(content).update(laterality="X"),
    "no files": lambda content: first_view(content).update(files=[]),
}


@pytest.mark.parametrize("name", COHORTS)
def test_a_broken_cohort_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    folder = change_cohort(write_blobs(tmp_path / "blobs", breasts=2), COHORTS[name])
    with pytest.raises(InputError, match=r"cohort\.json"):
        read_breasts(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"crop": [0, 0, 0, 0]},
        {"crop": [1, 2, 3]},
        {"height": 0},
        {"slices": 10**9},
        {"stored_slices": -1},
    ],
)
def test_a_view_with_an_impossible_geometry_is_refused_in_a_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    for path in (folder / "views").glob("*.json"):
        content = json.loads(path.read_text())
        content["geometry"].update(change)
        path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"views/.*\.json"):
        read_breasts(folder)


def test_pixels_of_another_size_than_their_table_says_are_refused(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    for path in (folder / "views").glob("*.json"):
        content = json.loads(path.read_text())
        content["geometry"]["height"] += 1
        path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="is missing or damaged"):
        read_breasts(folder)[0].views[0].image()


@pytest.mark.parametrize(
    "content",
    [
        f"a = {DEEP}",
        "a" + ".a" * 5000 + " = 1",
        "[model]\nheads = 1000000",
        "[model]\nheads = 1e400",
        "[model]\nbackbone = [1]",
        "[model]\nbackbone = {widths = 3}",
        "[model]\npreset = []",
        "[model]\npreset = {a = 1}",
        "model = 3",
        "start = 5\nmodel = {preset = 'tiny'}",
        "[data]\ntrain = 'prepared'",
    ],
)
def test_a_broken_configuration_is_refused_in_a_sentence(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "c.toml", content)
    assert main(["train", str(path), "-o", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("mm3d: ")
    assert "unexpectedly" not in said
    assert len(said) < 1000


def test_a_setting_of_the_command_line_may_not_be_deep_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    path = write(tmp_path / "c.json", json.dumps(settings(folder)))
    assert main(["train", str(path), "-o", str(tmp_path / "run"), "--loop.steps", "[" * 50_000]) == 1
    assert "'steps'" in capsys.readouterr().err


VIEW = {"view": "lcc", "findings": [{"box": [0, 0, 1, 1], "score": 0.5}]}
BREAST = {"patient": "P", "exam": "E", "laterality": "L", "views": [VIEW]}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"version": [1]},
        {"version": 1, "breasts": 5},
        {"version": 1, "breasts": [BREAST], "model": {"name": nest(90)}},
        {"version": 1, "breasts": [BREAST | {"views": [VIEW | {"view": 5}]}]},
        {"version": 1, "breasts": [BREAST | {"views": [VIEW | {"view": ""}]}]},
        {"version": 1, "breasts": [BREAST | {"views": [VIEW | {"modality": ["DBT"]}]}]},
        {"version": 1, "breasts": [BREAST | {"views": [VIEW | {"findings": [{"box": [], "score": 1}]}]}]},
        {
            "version": 1,
            "breasts": [BREAST | {"views": [VIEW | {"findings": [{"box": [0, 0, 1, 1], "score": 10**400}]}]}],
        },
        {"version": 1, "breasts": [BREAST | {"laterality": "B"}]},
        {"version": 1, "breasts": [BREAST, BREAST]},
    ],
)
def test_broken_predictions_are_refused_in_a_sentence(tmp_path: Path, content: dict[str, Any]) -> None:
    path = write(tmp_path / "p.json", json.dumps(content))
    with pytest.raises(InputError, match=r"p\.json") as error:
        predictions.read(path)
    assert len(str(error.value)) < 600


def test_boxes_of_a_table_of_images_that_are_no_list_are_a_problem(tmp_path: Path) -> None:
    from mm3d.data.datasets import images

    rows = [
        f'P{n},lcc,{n}.png,"{boxes}"'
        for n, boxes in enumerate(("[" * 50_000, "7", "[[1]]", "[1, 2, 3, 4]", "{", '{""a"": 1}'))
    ]
    table = write_csv(tmp_path / "table.csv", ("patient", "view", "file", "boxes"), *rows)
    for number in range(len(rows)):
        (tmp_path / f"{number}.png").touch()
    problems = images.read(tmp_path, table=table).problems
    assert len(problems) == len(rows)
