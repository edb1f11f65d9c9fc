"""Many exams and broken ones: what is left when something fails, what is said of it, and what is not overwritten."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.uid import generate_uid
from support.exams import FILES, damage, files, predict, record, write_exam, write_weights
from support.reports import complaints, find, instance, looked_at

from mm3d.cli import main
from mm3d.data.datasets.folder import exam_code
from mm3d.model import weights
from mm3d.output.predictions import read
from mm3d.shared.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def test_a_broken_exam_among_good_ones(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each good exam has its folder, the broken one a sentence; a rerun does only what is missing."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    studies = [generate_uid() for _ in range(3)]
    for number, study in enumerate(studies):
        write_exam(archive / f"exam{number}", "FFDM L CC", "FFDM R CC", study=study)
    good, partly, broken = map(exam_code, studies)
    damage(archive / "exam1" / "0.dcm")  # one view of two
    for path in (archive / "exam2").iterdir():
        damage(path)
    whole = (archive / "exam1" / "1.dcm").read_bytes()
    (archive / "readme.txt").write_text("no image")
    arguments = (archive, "-o", out, "--weights", model)
    assert predict(*arguments) == 1
    told = capsys.readouterr().out
    assert f"problem: exam {broken}: LCC FFDM: a file (--with-identifiers names it)" in told
    assert f"problem: exam {partly}: LCC FFDM: a file" in told
    assert "2 exams, 1 could not be predicted" in told
    assert {path.name for path in out.iterdir()} == {good, partly, "predictions.json", "predictions.csv", "run.json"}
    assert files(out / good) == files(out / partly) == FILES
    assert "LCC FFDM" in record(out / partly)["problems"][0]
    assert "LCC FFDM" in (out / partly / "report.html").read_text()
    assert set(record(out)["failures"]) == {broken}
    assert {breast.exam for breast in read(out / "predictions.csv").breasts} == {good, partly}
    kept = (out / good / "report.html").stat().st_mtime_ns
    for number in (1, 2):  # mended
        (archive / f"exam{number}" / "0.dcm").write_bytes(whole)
    write_exam(archive / "exam1", "FFDM L CC", "FFDM R CC", study=studies[1])
    write_exam(archive / "exam2", "FFDM L CC", "FFDM R CC", study=studies[2])
    assert predict(*arguments) == 0
    assert "2 exams, 1 finished before" in capsys.readouterr().out
    assert (out / good / "report.html").stat().st_mtime_ns == kept
    assert {breast.exam for breast in read(out / "predictions.json").breasts} == {good, partly, broken}
    assert record(out)["failures"] == {}
    assert record(out)["others"] == 1
    assert predict(*arguments) == 0
    assert f"Nothing to do: {out} has the results of all 3 exams already." in capsys.readouterr().out
    # One exam of them alone goes to its own folder, and the others stay in the lists.
    assert predict(archive / "exam2", "-o", out, "--weights", model) == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert len(record(out)["exams"]) == 3


def test_what_a_view_that_could_not_be_read_leaves_behind(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damaged pixels, a cut-off file, an empty one: no result may look as if the whole exam had been seen."""
    study = {"StudyDate": "20260101", "StudyTime": "120000", "StudyID": "1"}
    paths = write_exam(tmp_path / "exam", "FFDM L CC", "FFDM R CC", "FFDM L MLO", **study)
    damage(paths[1])
    paths[2].write_bytes(paths[2].read_bytes()[:-5000])
    (tmp_path / "exam" / "empty.dcm").touch()
    (tmp_path / "exam" / "readme.txt").write_text("no image")
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 1
    said = capsys.readouterr().out
    hidden = "a file (--with-identifiers names it)"
    assert f"L MLO: {hidden} is cut off: its pixel data has " in said
    assert f"{hidden} is empty; copy or export it again, or remove it." in said
    assert f"RCC FFDM: {hidden}" in said
    told = record(out)
    assert (len(told["problems"]), told["others"]) == (3, 1)
    page = (out / "report.html").read_text()
    assert '"unread":["LMLO","RCC"]' in page
    unread = "Not looked at, because it could not be read: 1 file of L MLO, 1 file of an unknown view, 1 file of R CC."
    for name in ("measurements", "cad"):
        assert unread in (out / "sr" / f"{name}.dcm").read_bytes().decode(errors="replace")
        assert complaints(out / "sr" / f"{name}.dcm") == []
    cad = dcmread(out / "sr" / "cad.dcm")
    assert find(cad, "111017")[0].ConceptCodeSequence[0].CodeValue == "111243"
    assert find(cad, "111064")[0].ConceptCodeSequence[0].CodeMeaning == "Partially Succeeded"
    assert looked_at(cad, "111063") == [instance(paths[0])]  # successful detections
    assert looked_at(cad, "111025") == [instance(paths[2]), instance(paths[1])]  # failed ones


def test_a_single_exam_that_fails_leaves_a_record(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who looks into OUT later must learn that it was tried, and why there is nothing."""
    paths = write_exam(tmp_path / "exam", "FFDM L CC", "FFDM L MLO", study="1.2.3")
    damage(paths[0])
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-5000])
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 1
    said = capsys.readouterr().out
    assert "L MLO: a file (--with-identifiers names it) is cut off" in said
    assert "LCC FFDM: a file (--with-identifiers names it) holds a frame that is not JPEG 2000" in said
    assert f"Nothing predicted: 1 failed; {out / 'run.json'} says why." in said
    assert "Wrote" not in said
    assert files(out) == {"run.json"}
    assert record(out)["exam"] == exam_code("1.2.3")
    assert "is cut off" in record(out)["failure"]
    assert "holds a frame that is not JPEG 2000" in record(out)["failure"]
    paths[0].unlink()
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 1  # there is nothing but the cut-off file
    assert "it has no other CC or MLO view to look at." in record(out)["failure"]
    paths[1].write_bytes(whole)
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 0
    assert files(out) == FILES
    assert "failure" not in record(out)


def test_what_is_broken_in_one_exam_is_not_said_of_another(tmp_path: Path, model: Path) -> None:
    """A radiologist would look for a view that this patient never had."""
    write_exam(tmp_path / "exams" / "whole", "FFDM L CC", study="1.2.3")
    (other,) = write_exam(tmp_path / "exams" / "cut", "FFDM L MLO", study="1.2.4")
    other.write_bytes(other.read_bytes()[:-5000])
    out = tmp_path / "out"
    assert predict(tmp_path / "exams", "-o", out, "--weights", model) == 1
    whole, cut = map(exam_code, ("1.2.3", "1.2.4"))
    assert record(out / whole)["problems"] == []
    assert b"Not looked at" not in (out / whole / "sr" / "cad.dcm").read_bytes()
    assert set(record(out)["failures"]) == {cut}
    assert "is cut off" in record(out)["failures"][cut]


def test_a_run_that_is_killed_loses_nothing(tmp_path: Path, model: Path) -> None:
    archive = tmp_path / "archive"
    for number in range(4):
        write_exam(archive / str(number), "DBT L CC", "FFDM R CC")
    arguments = ["predict", str(archive), "--weights", str(model), "--jobs", "1", "-o"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", "mm3d", *arguments, str(killed)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    while not (done := list(killed.glob("[!.]*/run.json"))):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < len(done) < 4
    first = {path: path.stat().st_mtime_ns for path in done}
    for path in done:
        assert files(path.parent) == FILES
    assert main([*arguments, str(killed)]) == 0
    assert main([*arguments, str(whole)]) == 0
    assert {path: path.stat().st_mtime_ns for path in done} == first  # it was not made again
    assert files(killed) == files(whole)  # nothing half made is left, either
    assert read(killed / "predictions.json") == read(whole / "predictions.json")


def test_results_of_something_else_are_not_overwritten(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = write_exam(tmp_path / "one", "FFDM L CC")[0], write_exam(tmp_path / "two", "FFDM L CC")[0]
    out = tmp_path / "out"
    assert predict(one, "-o", out, "--weights", model) == 0
    before = record(out)
    assert predict(one, "-o", out, "--weights", model) == 0
    assert f"Nothing to do: {out} has the results of its exam already." in capsys.readouterr().out
    for arguments, said in (
        (
            (one, "--threshold", "0.2", "--width", "64", "--with-identifiers", "--engine", "openvino"),
            f"{out} was made with engine = torch, not openvino; give another folder with -o.",
        ),
        ((one, "--threshold", "0.2"), "was made with operating_point."),
        ((two,), "holds the results of another exam; give another folder with -o."),
        ((one, two), "holds the results of another exam; give another folder with -o."),
    ):
        assert predict(*arguments, "-o", out, "--weights", model) == 1
        assert said in capsys.readouterr().err
    assert record(out) == before
    ds = dcmread(one)
    ds.PatientComments = "another file"
    ds.save_as(one)
    assert predict(one, "-o", out, "--weights", model) == 0  # the exam changed, so it is predicted again
    assert record(out)["files"]["stamp"] != before["files"]["stamp"]


def test_what_cannot_be_predicted_is_said(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = write_exam(tmp_path / "exam", "FFDM L CC")
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "cohort.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    bare = tmp_path / "bare.safetensors"
    weights.save(weights.load(model), bare, {})
    out = ("-o", tmp_path / "out")
    for arguments, said in (
        ((path, *out, "--weights", bare), "does not say to which size its views were prepared; give --width, --length"),
        ((tmp_path / "nowhere", *out, "--weights", model), "nowhere does not exist; give DICOM files, folders"),
        ((tmp_path / "empty", *out, "--weights", model), "empty has no mammography that can be read; give DICOM exams"),
        ((tmp_path / "exam", "-o", tmp_path / "exam" / "out", "--weights", model), "is inside"),
        ((tmp_path / "exam", "-o", tmp_path / "exam", "--weights", model), "results are kept apart; give another"),
        ((tmp_path / "exam", "-o", tmp_path, "--weights", model), "results are kept apart; give another folder"),
        ((path, "-o", tmp_path / "exam", "--weights", model), "results are kept apart; give another folder with -o."),
        ((path, *out, "--weights", model, "--split", "test"), "--split is for prepared folders"),
        ((path, *out, "--weights", model, "--input", "msp"), "Input msp is for prepared folders"),
        ((prepared, *out, "--weights", model, "--threshold", "0.1"), "identifiers, sizes and tables are for exams"),
        ((prepared, path, *out, "--weights", model), "is a prepared folder; give it alone"),
    ):
        assert predict(*arguments) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert files(tmp_path / "exam") == {"0.dcm"}


def test_shipped_weights_go_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = {path.stem: path for path in weights.shipped()}
    assert set(own) == {"dbt", "ffdm", "mammo"}
    assert {name: weights.find(name) for name in own} == own
    assert weights.find(None) == own["mammo"]  # for real breasts
    assert weights.find(None, synthetic=True) == own["dbt"]
    Path("ffdm").write_text("the user's own file comes first")
    assert weights.find("ffdm") == Path("ffdm")


def test_without_shipped_weights_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SHIPPED", {False: "none of that name"})
    with pytest.raises(InputError, match=r"comes without weights; give some with --weights"):
        weights.find(None)
