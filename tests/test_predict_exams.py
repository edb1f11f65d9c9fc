"""DICOM exams in, findings out: what is looked at, what is left when something fails, and who can be recognised."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import breast, tomosynthesis_slice, write
from exams import PREPARE, damage, image, write_exam, write_weights
from pydicom import dcmread
from pydicom.uid import generate_uid
from reports import instance, marked

from mm3d.cli import main
from mm3d.cohorts.folder import exam_code
from mm3d.errors import InputError
from mm3d.model import weights
from mm3d.predict.lesions import Placed, pair
from mm3d.predict.operating_point import choose
from mm3d.predict.results import stored_weights
from mm3d.predictions import Predictions, read
from mm3d.prepare.geometry import Geometry

FILES = {"predictions.json", "predictions.csv", "report.html", "run.json", "sr/measurements.dcm", "sr/cad.dcm"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def predict(*arguments: str | Path, jobs: int = 1) -> int:
    return main(["predict", *map(str, arguments), "--jobs", str(jobs)])


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def by_view(predictions: Predictions) -> dict[tuple[str, str], Any]:
    return {(view.view, view.modality): view for _, view in predictions.views()}


# ---- what is looked at ---------------------------------------------------------------------------------------------


def test_an_exam_of_mixed_and_missing_views(tmp_path: Path, model: Path) -> None:
    """A volume beside a mammogram, a breast with one view; results lie in OUT, and all of them agree."""
    paths = write_exam(tmp_path / "exam", "DBT L CC", "FFDM L MLO", "FFDM R CC")
    out = tmp_path / "out"
    assert predict(*paths, "-o", out, "--weights", model, "--threshold", "0") == 0
    assert files(out) == FILES
    views = by_view(read(out / "predictions.json"))
    assert set(views) == {("lcc", "DBT"), ("lmlo", "FFDM"), ("rcc", "FFDM")}
    assert all(view.findings for view in views.values())
    assert all(f.slice is not None and len(f.slice_weights) == 4 for f in views["lcc", "DBT"].findings)
    assert all(f.slice is None and f.slice_weights is None for f in views["lmlo", "FFDM"].findings)
    assert len(read(out / "predictions.csv").breasts) == 2
    expected = [
        (instance(path), None if f.slice is None else f.slice + 1, f.box, 100 * f.score)
        for path, view in zip(paths, views.values(), strict=True)
        for f in view.findings
    ]
    for report in ("measurements", "cad"):
        found = marked(out / "sr" / f"{report}.dcm")
        assert [mark[:2] for mark in found] == [mark[:2] for mark in expected]
        for mark, wanted in zip(found, expected, strict=True):
            assert mark[2] == pytest.approx(wanted[2], abs=1e-3)
            assert mark[3] == pytest.approx(wanted[3], rel=1e-4)
    told = record(out)
    assert told["marked"] == len(expected)
    assert told["score"] == max(told["breasts"].values())
    assert told["method"]["prepare"] == PREPARE | {"intensity": "auto"}
    assert set(told["seconds"]) == {"start", "read", "model", "outputs"}
    assert told["method"]["weights"]["intended_use"] == "For tests only."
    assert "For tests only." in (out / "report.html").read_text()


def test_of_a_view_in_two_kinds_one_is_used_and_that_is_said(tmp_path: Path, model: Path) -> None:
    """Volumes with mammograms of the same view, repeats, raw data, and a view that is neither CC nor MLO."""
    folder = tmp_path / "exam"
    write_exam(folder, "DBT L CC", "DBT L CC again", "FFDM L CC", "FFDM L MLO", study="1.2.3")
    raw = image("FFDM", "L", "MLO")
    raw.StudyInstanceUID, raw.PresentationIntentType = "1.2.3", "FOR PROCESSING"
    spot = image("FFDM", "L", "CC")
    spot.StudyInstanceUID, spot.ViewPosition = "1.2.3", "XCCL"
    raw.save_as(folder / "raw.dcm", enforce_file_format=True)
    spot.save_as(folder / "spot.dcm", enforce_file_format=True)
    (folder / "readme.txt").write_text("no image")
    assert predict(folder, "-o", tmp_path / "out", "--weights", model) == 0
    views = by_view(read(tmp_path / "out" / "predictions.json"))
    assert set(views) == {("lcc", "DBT"), ("lcc1", "DBT"), ("lmlo", "FFDM")}
    assert record(tmp_path / "out")["notes"] == [
        "L CC: the volume is used, the mammogram is left out.",
        "L MLO: the image For Presentation is used, the one For Processing is left out.",
        "1 image is left out: neither CC nor MLO, or the header does not say which view or side.",
    ]
    # Weights of mammograms prefer those, and take the volume of a view that has nothing else.
    flat = write_weights(tmp_path / "flat.safetensors", input="ffdm")
    (folder / "3.dcm").unlink()
    (folder / "raw.dcm").unlink()
    dbt = image("DBT", "L", "MLO")
    dbt.StudyInstanceUID = "1.2.3"
    dbt.save_as(folder / "3.dcm", enforce_file_format=True)
    assert predict(folder, "-o", tmp_path / "flat", "--weights", flat) == 0
    views = by_view(read(tmp_path / "flat" / "predictions.json"))
    assert set(views) == {("lcc", "FFDM"), ("lmlo", "DBT")}
    assert views["lmlo", "DBT"].findings[0].slice is not None


def test_a_volume_in_single_slices_is_marked_in_the_right_file(tmp_path: Path, model: Path) -> None:
    paths = [
        write(
            tomosynthesis_slice(breast(120, 90, seed=z), z, StudyInstanceUID="1.2.3", SeriesInstanceUID="1.2.3.4"),
            tmp_path / "exam" / f"{9 - z}.dcm",  # named against their order
        )
        for z in range(6)
    ]
    assert predict(tmp_path / "exam", "-o", tmp_path / "out", "--weights", model, "--threshold", "0") == 0
    ((_, view),) = read(tmp_path / "out" / "predictions.json").views()
    found = marked(tmp_path / "out" / "sr" / "measurements.dcm")
    assert [mark[0] for mark in found] == [instance(paths[round(f.slice or 0)]) for f in view.findings]


def test_real_mammograms(tmp_path: Path, model: Path, real_data: Path) -> None:
    """A GE and a Siemens image, of two patients: two exams, and all findings marked."""
    assert predict(real_data / "dicom", "-o", tmp_path / "out", "--weights", model, "--threshold", "0") == 0
    exams = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert len(exams) == 2
    for exam in exams:
        (breast,) = read(exam / "predictions.json").breasts
        assert len(marked(exam / "sr" / "cad.dcm")) == len(breast.views[0].findings) > 0


def test_dicom_and_prepared_views_give_the_same_whatever_the_chunk(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "exam"
    write_exam(folder, "DBT L CC", "DBT L MLO", "DBT R MLO")
    assert predict(folder, "-o", tmp_path / "dicom", "--weights", model, jobs=2) == 0
    sizes = [part for name, value in PREPARE.items() for part in (f"--{name}", str(value))]
    assert main(["prepare", "folder", str(folder), "-o", str(tmp_path / "prepared"), *sizes, "--jobs", "1"]) == 0
    assert predict(tmp_path / "prepared", "-o", tmp_path / "again", "--weights", model) == 0
    one, two = (read(tmp_path / name / "predictions.json").breasts for name in ("dicom", "again"))
    assert one == two
    assert predict(tmp_path / "prepared", "-o", tmp_path / "chunk", "--weights", model, "--chunk", "1") == 0
    three = read(tmp_path / "chunk" / "predictions.json").breasts
    for whole, other in zip(one, three, strict=True):
        assert whole.score == pytest.approx(other.score, rel=1e-4)
        for view, again in zip(whole.views, other.views, strict=True):
            assert [f.slice for f in view.findings] == [f.slice for f in again.findings]
            for f, g in zip(view.findings, again.findings, strict=True):
                assert (*f.box, f.score) == pytest.approx((*g.box, g.score), rel=1e-3, abs=1e-3)


# ---- many exams, and those that fail -------------------------------------------------------------------------------


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
    assert "1 could not be predicted" in told
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
    assert "1 of them finished before" in capsys.readouterr().out
    assert (out / good / "report.html").stat().st_mtime_ns == kept
    assert {breast.exam for breast in read(out / "predictions.json").breasts} == {good, partly, broken}
    assert record(out)["failures"] == {}
    # One exam of them alone goes to its own folder, and the others stay in the lists.
    assert predict(archive / "exam2", "-o", out, "--weights", model) == 0
    assert "3 exams" not in capsys.readouterr().out
    assert len(record(out)["exams"]) == 3


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
    assert "1 of them finished before" in capsys.readouterr().out
    for arguments, said in (
        ((one, "--threshold", "0.2"), "holds results with another operating point"),
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
        ((path, *out, "--weights", model, "--split", "test"), "--split is for prepared folders"),
        ((path, *out, "--weights", model, "--input", "msp"), "Input msp is for prepared folders"),
        ((prepared, *out, "--weights", model, "--threshold", "0.1"), "operating points, identifiers and sizes are for"),
        ((prepared, path, *out, "--weights", model), "is a prepared folder; give it alone"),
    ):
        assert predict(*arguments) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_shipped_weights_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SHIPPED", "none of that name")
    with pytest.raises(InputError, match=r"comes without weights; give some with --weights"):
        weights.find(None)


# ---- the operating point -------------------------------------------------------------------------------------------


def test_below_the_operating_point_nothing_is_marked(tmp_path: Path) -> None:
    own = write_weights(tmp_path / "own.safetensors", operating_point={"threshold": 0.9, "source": "validation"})
    (path,) = write_exam(tmp_path / "exam", "DBT L CC")
    out = tmp_path / "out"
    assert predict(path, "-o", out, "--weights", own) == 0
    assert read(out / "predictions.json").breasts[0].views[0].findings  # predictions are all that was found
    assert marked(out / "sr" / "measurements.dcm") == marked(out / "sr" / "cad.dcm") == []
    for name in ("measurements", "cad"):
        content = (out / "sr" / f"{name}.dcm").read_bytes()
        assert b"No finding reaches the operating point of 0.9; nothing is marked." in content
    assert record(out)["marked"] == 0
    assert record(out)["method"]["operating_point"] == {"threshold": 0.9, "source": "validation"}
    assert '"threshold":0.9' in (out / "report.html").read_text()


def test_operating_points_of_an_evaluation(tmp_path: Path, model: Path) -> None:
    header = weights.read_header(model)
    points = [
        {"of": "findings", "rule": rule, "wanted": {"fp_per_volume": rate}, "threshold": threshold}
        for rule, rate, threshold in (("2D", 0.25, 0.7), ("2D", 0.5, 0.6), ("3D", 0.25, 0.8), ("3D", 0.5, None))
    ]
    points.append({"of": "breasts", "wanted": {"specificity": 0.9}, "threshold": 0.4})
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"systems": [{"operating_points": points}]}))
    assert choose(None, str(path), header).threshold == 0.7
    assert choose(None, f"{path}:3D@0.25", header).threshold == 0.8
    assert choose(0.3, None, header).threshold == 0.3
    assert "default" in choose(None, None, header).source
    for name, said in ((":3D@0.5", "no score from 0 to 1"), (":4D", "it has 2D@0.25, 2D@0.5, 3D@0.25, 3D@0.5")):
        with pytest.raises(InputError, match=said):
            choose(None, f"{path}{name}", header)
    path.write_text(json.dumps({"systems": [{"operating_points": points}] * 2}))
    with pytest.raises(InputError, match="compares 2 systems"):
        choose(None, str(path), header)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"is no metrics\.json"):
        choose(None, str(path), header)


# ---- who can be recognised -----------------------------------------------------------------------------------------

CANARIES = {
    "PatientName": "Kanarie^Berta",
    "PatientID": "KANARIE-4711",
    "PatientBirthDate": "19531124",
    "PatientAddress": "Kanariengasse 7",
    "OtherPatientIDs": "KANARIE-0815",
    "StudyDate": "20190317",
    "StudyTime": "101112",
    "AcquisitionDate": "20190317",
    "InstitutionName": "Kanarienklinik",
    "InstitutionAddress": "Kanarienplatz 1",
    "ReferringPhysicianName": "Kanarienarzt^Otto",
    "OperatorsName": "Kanarienkraft^Eva",
    "StationName": "KANARIE1",
    "AccessionNumber": "KANARIE99",
    "StudyID": "KANARIE98",
    "StudyDescription": "Kanarienstudie",
    "SeriesDescription": "Kanarienserie",
    "ImageComments": "Kanarienkommentar",
}
WORDS = [b"anari", b"ANARI", b"Berta", b"4711", b"0815", b"19531124", b"20190317", b"101112", b"2019-03-17"]


def test_nobody_is_recognised_in_any_output_or_message(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in those of broken exams and files, either, whose names may hold the patient's."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    study = "1.2.826.4711.1"
    write_exam(archive / "Kanarie^Berta", "DBT L CC", "FFDM R CC", study=study, **CANARIES)
    (broken,) = write_exam(archive / "Kanarie 2", "FFDM L CC", **CANARIES)
    damage(broken)
    claims: dict[str, Any] = CANARIES | {"Rows": 4000}  # more than the file has
    (odd,) = write_exam(archive / "Kanarie 3", "FFDM L CC", **claims)
    (archive / "Kanarie 4").mkdir()
    (archive / "Kanarie 4" / "berta.dcm").write_bytes(odd.read_bytes()[:700])  # cut off in its header
    (archive / "Kanarie 4" / "Berta.pdf").write_text("Kanarie")

    def run(output: Path, *more: str) -> tuple[int, bytes]:
        code = predict(archive, "-o", output, "--weights", model, *more)
        said = capfd.readouterr()  # of the workers, too
        return code, (said.out + said.err).encode()

    code, said = run(out)
    assert code == 1
    assert said.count(b"problem: ") == 3
    assert b"Traceback" not in said
    assert files(out / exam_code(study)) == FILES
    for word in WORDS:
        assert word not in said
        for path in out.rglob("*"):
            assert word not in os.fsencode(path.relative_to(out))
            if path.is_file() and path.suffix != ".dcm":
                assert word not in path.read_bytes(), path.name
    assert b"Kanarie^Berta" in (out / exam_code(study) / "sr" / "cad.dcm").read_bytes()  # the archive's own files
    # The same search finds them where they were asked for, so it would have found them above.
    named = tmp_path / "named"
    code, said = run(named, "--with-identifiers")
    assert code == 1
    assert b"Kanarie 2/0.dcm" in said
    found = read(named / "predictions.csv").breasts[0]
    assert (found.patient, found.exam) == ("KANARIE-4711", study)
    page = (named / exam_code(study) / "report.html").read_text()
    assert "Kanarie^Berta · KANARIE-4711 · 20190317" in page


# ---- parts ---------------------------------------------------------------------------------------------------------


def test_findings_as_far_from_the_nipple_are_one_lesion() -> None:
    findings = [
        Placed("CC", 0.6, depth=3.0),
        Placed("CC", 0.9, depth=5.0),
        Placed("MLO", 0.8, depth=4.2),
        Placed("MLO", 0.7, depth=4.9),
        Placed("CC", 0.5, depth=9.0),
    ]
    assert pair(findings) == [None, 0, None, 0, None]  # 0.8 finds only 3.0, which is too far
    assert pair(findings[:1]) == [None]
    assert pair([]) == []


def test_every_stored_slice_has_its_share_of_the_models() -> None:
    geometry = Geometry((0, 0, 10, 10), mirrored=False, height=10, width=10, stored_slices=5, slices=2)
    stored = stored_weights((0.2, 0.8), geometry)
    assert stored is not None
    assert stored == pytest.approx(np.array([0.2, 0.2, 0.8, 0.8, 0.8]) / 2.8)
    assert stored_weights(None, geometry) is None
