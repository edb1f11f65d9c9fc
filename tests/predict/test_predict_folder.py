"""The folder OUT: nothing of the user's is lost, results are replaced by complete ones only, and runs may share it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.exams import FILES, damage, files, predict, record, write_exam, write_weights

from mm3d.cli import main
from mm3d.data.datasets.folder import exam_code
from mm3d.output.predictions import read
from mm3d.output.report.serve import Server
from mm3d.predict.exam import find_exams, read_archive
from mm3d.predict.folder import is_finished, place_results
from mm3d.predict.run import Options, make_setup
from mm3d.predict.settings import PredictSettings

LISTS = {"predictions.json", "predictions.csv", "run.json"}
REFUSED = "that is not a result of 'mm3d predict'; give another folder with -o."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_users_own_files_are_refused_and_stay(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    one, two = write_exam(tmp_path / "one", "FFDM L CC")[0], write_exam(tmp_path / "two", "FFDM L CC")[0]
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    assert predict(one, "-o", out, "--weights", model) == 1
    assert f"{out} has a {name} {REFUSED}" in capsys.readouterr().err
    assert contents(out) == {name: b"mine"}
    # Of several exams, OUT itself gets the lists only.
    assert predict(one, two, "-o", out, "--weights", model) == int(name in LISTS)
    assert (out / name).read_text() == "mine"
    assert name in LISTS or LISTS < files(out)


def test_files_in_the_folder_of_an_exam_are_refused_before_anything_is_written(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = write_exam(tmp_path / "one", "FFDM L CC", study="1.2.3")[0], write_exam(tmp_path / "two", "FFDM L CC")[0]
    folder = tmp_path / "out" / exam_code("1.2.3")
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("mine")
    assert predict(one, two, "-o", tmp_path / "out", "--weights", model) == 1
    assert f"{folder} has a report.html {REFUSED}" in capsys.readouterr().err
    assert contents(tmp_path / "out") == {f"{folder.name}/report.html": b"mine"}


def test_predictions_of_a_prepared_folder_replace_only_such(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_exam(tmp_path / "exam", "FFDM L CC", "DBT L MLO")
    prepared, out = tmp_path / "prepared", tmp_path / "out"
    sizes = ("--width", "48", "--length", "96", "--slices", "4", "--jobs", "1")
    assert main(["prepare", "folder", str(tmp_path / "exam"), "-o", str(prepared), *sizes]) == 0
    out.mkdir()
    for name, content in (("predictions.csv", "mine"), ("predictions.json", '{"version": 1, "breasts": []}')):
        (out / name).write_text(content)
        assert predict(prepared, "-o", out, "--weights", model) == 1
        assert f"{out} has a predictions.json {REFUSED}" in capsys.readouterr().err or name == "predictions.csv"
        assert contents(out) == {name: content.encode()}
        (out / name).unlink()
    assert predict(prepared, "-o", out, "--weights", model) == 0
    assert predict(prepared, "-o", out, "--weights", model, "--nms", "0.5") == 0  # its own are replaced
    assert files(out) == {"predictions.json", "predictions.csv"}
    dicom = tmp_path / "dicom"
    assert predict(tmp_path / "exam", "-o", dicom, "--weights", model) == 0
    before = contents(dicom)
    assert predict(prepared, "-o", dicom, "--weights", model) == 1
    assert f"{dicom} holds the results of DICOM exams" in capsys.readouterr().err
    assert contents(dicom) == before
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 1
    assert f"{out} has a predictions.json {REFUSED}" in capsys.readouterr().err


@pytest.mark.parametrize("single", [True, False])
def test_good_results_stay_until_there_are_new_ones(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], single: bool
) -> None:
    """The images of an exam are replaced by damaged ones: what was found before must not be gone."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    (path,) = write_exam(archive / "one", "FFDM L CC", study="1.2.3")
    if not single:
        write_exam(archive / "two", "FFDM L CC")
    code = exam_code("1.2.3")
    folder = out if single else out / code
    assert predict(archive, "-o", out, "--weights", model) == 0
    before = contents(folder)
    whole = path.read_bytes()
    damage(path)
    capsys.readouterr()
    assert predict(archive, "-o", out, "--weights", model) == 1
    assert f"problem: exam {code}: The results of its earlier prediction are kept." in capsys.readouterr().out
    after = contents(folder)
    assert {name for name in FILES if before[name] != after[name]} == {"run.json"}
    told = record(folder)
    assert "holds a frame that is not JPEG 2000" in told.pop("failure")
    assert told == json.loads(before["run.json"])
    with Server(out) as server:
        assert server.failed == [code]
    path.write_bytes(whole)
    assert predict(archive, "-o", out, "--weights", model) == 0
    assert "failure" not in record(folder)
    assert contents(folder)["run.json"] != before["run.json"]
    if not single:
        assert record(out)["failures"] == {}
        assert len(record(out)["exams"]) == 2


def test_only_results_of_this_method_are_in_the_lists(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A score of other weights under the name of these would be a wrong result of a study."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    for number in range(2):
        write_exam(archive / str(number), "FFDM L CC")
    other = write_weights(tmp_path / "other.safetensors", more="another file")
    write_exam(tmp_path / "third", "FFDM L CC", study="1.2.3")
    assert predict(archive, "-o", out, "--weights", model) == 0
    before = {name: content for name, content in contents(out).items() if name not in ("run.json",)}
    # The results of another exam by other weights, those of an archive, and what other programs call run.json.
    assert predict(tmp_path / "third", "-o", out / exam_code("1.2.3"), "--weights", other) == 0
    shutil.copytree(out, tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", out / "nested")
    for name, content in (("list", "[1]"), ("text", "no json"), ("foreign", '{"version": 1, "exam": "foreign"}')):
        (out / name).mkdir()
        (out / name / "run.json").write_text(content)
    capsys.readouterr()
    assert predict(archive, "-o", out, "--weights", model) == 0
    sentence = f"5 folders in {out} with a run.json are not in its lists: not results of these weights and settings."
    assert f"note: {sentence}\n" in capsys.readouterr().out
    assert record(out)["notes"] == [sentence]
    assert {name: content for name, content in contents(out).items() if name in before} == before
    assert predict(archive, tmp_path / "third", "-o", out, "--weights", model) == 1
    assert f"{out / exam_code('1.2.3')} was made with weights." in capsys.readouterr().err
    assert {name: content for name, content in contents(out).items() if name in before} == before


def test_damaged_predictions_of_an_exam_do_not_stop_the_others(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    for number in range(2):
        write_exam(archive / str(number), "FFDM L CC", study=f"1.2.{number}")
    assert predict(archive, "-o", out, "--weights", model) == 0
    code = exam_code("1.2.0")
    (out / code / "predictions.json").write_text("{")
    assert predict(archive, "-o", out, "--weights", model) == 1
    assert (
        f"The predictions of exam {code} are damaged; remove its folder and predict it again."
        in capsys.readouterr().out
    )
    assert {breast.exam for breast in read(out / "predictions.json").breasts} == {exam_code("1.2.1")}
    shutil.rmtree(out / code)
    assert predict(archive, "-o", out, "--weights", model) == 0
    assert len(read(out / "predictions.json").breasts) == 2


def start(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mm3d", "predict", *map(str, arguments), "--jobs", "1"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def test_runs_that_share_a_folder_do_not_disturb_each_other(tmp_path: Path, model: Path) -> None:
    """As containers do, of which each has a part of the archive, and some the same part."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    parts = [write_exam(archive / str(number), "FFDM L CC", study=f"1.2.{number}")[0] for number in range(3)]
    arguments = ("-o", out, "--weights", model)
    runs = [start(*part, *arguments) for part in (parts, parts, parts[:2], parts[1:])]
    assert [run.wait(timeout=600) for run in runs] == [0] * 4
    codes = [exam_code(f"1.2.{number}") for number in range(3)]
    assert files(out) == LISTS | {f"{code}/{name}" for code in codes for name in FILES}
    assert {breast.exam for breast in read(out / "predictions.json").breasts} == set(codes)
    assert [exam["exam"] for exam in record(out)["exams"]] == sorted(codes)
    assert {path.name for path in out.iterdir()} == LISTS | set(codes)


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_ended_while_it_placed_results_is_continued(tmp_path: Path, model: Path, before: bool) -> None:
    """What is there is known as a result of mm3d, and not as complete."""
    write_exam(tmp_path / "exam", "FFDM L CC")
    out, whole = tmp_path / "out", tmp_path / "whole"
    arguments = (tmp_path / "exam", "--weights", model, "-o")
    assert predict(*arguments, whole) == 0
    if before:
        assert predict(*arguments, out) == 0
    else:
        out.mkdir()
    setup = make_setup(Options(PredictSettings(), model), synthetic=False)
    (exam,) = find_exams(read_archive([tmp_path / "exam"]), "DBT", False).exams
    (whole / "report.html").unlink()
    with pytest.raises(FileNotFoundError):
        place_results(whole, out, exam, setup.method)
    assert not is_finished(out, exam)
    assert ("report.html" in files(out)) == before
    assert "were being replaced" in record(out)["failure"]
    assert predict(*arguments, out) == 0
    assert files(out) == FILES
    assert not {"failure", "replacing"} & set(record(out))
