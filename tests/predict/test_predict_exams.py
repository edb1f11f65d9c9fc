"""DICOM exams in, findings out: what is looked at, what is marked, and who can be recognised."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from support.dicom_files import breast, item, tomosynthesis_slice, write
from support.exams import FILES, PREPARE, by_view, damage, files, image, predict, record, write_exam, write_weights
from support.reports import instance, looked_at, marked, measurements

from mm3d.cli import main
from mm3d.data.datasets.folder import exam_code
from mm3d.data.prepare.geometry import Geometry, PrepareSettings
from mm3d.data.prepare.prepared import PreparedView, ViewFile
from mm3d.data.records import Position, View
from mm3d.model import weights
from mm3d.output.predictions import Finding, ViewPrediction, read
from mm3d.predict.exam import match_lesions, nipple_distance
from mm3d.predict.run import choose_operating_point
from mm3d.shared.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


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
    paths = write_exam(folder, "DBT L CC", "DBT L CC again", "FFDM L CC", "FFDM L MLO", study="1.2.3")
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
    looked = looked_at(dcmread(tmp_path / "out" / "sr" / "cad.dcm"), "111063")
    assert sorted(looked) == sorted(instance(paths[number]) for number in (0, 1, 3))
    assert record(tmp_path / "out")["notes"] == [
        "L CC: of a volume and a mammogram, the volume is taken.",
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


def test_an_image_of_a_biopsy_is_not_read_as_a_view(tmp_path: Path, model: Path) -> None:
    """It says CC, and shows a few centimetres through a device, or no breast at all."""
    folder = tmp_path / "exam"
    write_exam(folder, "FFDM L CC", "FFDM R CC", study="1.2.3")
    stereo: dict[str, Any] = {"ImageType": ["DERIVED", "PRIMARY", "STEREO_SCOUT"]}
    modified: dict[str, Any] = {
        "ViewCodeSequence": [item(CodeValue="R-10242", ViewModifierCodeSequence=[item(CodeMeaning="Stereotactic")])]
    }
    specimen = {"ViewCodeSequence": [item(CodeValue="127457009", CodeMeaning="tissue from breast")]}
    for number, fields in enumerate((stereo, modified, specimen)):
        write_exam(tmp_path / "other", "FFDM L CC", study="1.2.3", **fields)[0].rename(folder / f"odd{number}.dcm")
    assert predict(folder, "-o", tmp_path / "out", "--weights", model) == 0
    assert set(by_view(read(tmp_path / "out" / "predictions.json"))) == {("lcc", "FFDM"), ("rcc", "FFDM")}
    assert record(tmp_path / "out")["notes"] == ["3 images are left out: stereotactic, or of a specimen."]
    assert "3 images are left out: stereotactic" in (tmp_path / "out" / "report.html").read_text()


def test_copies_of_a_file_are_one_view_and_repeated_views_are_two(tmp_path: Path, model: Path) -> None:
    """A view that counts twice changes the breast's score, and shows every mark twice."""
    paths = write_exam(tmp_path / "exam", "DBT L CC", "DBT L CC again", "DBT L MLO")
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert predict(tmp_path / "exam", "-o", once, "--weights", model, "--threshold", "0") == 0
    (tmp_path / "exam" / "copies").mkdir()
    for path in paths:
        shutil.copy(path, tmp_path / "exam" / "copies" / f"again {path.name}")
    paths[2].write_bytes(paths[2].read_bytes()[:-100])  # of a whole file and a cut-off copy, the whole one counts
    assert predict(tmp_path / "exam", "-o", twice, "--weights", model, "--threshold", "0") == 0
    assert read(once / "predictions.json") == read(twice / "predictions.json")
    assert set(by_view(read(twice / "predictions.json"))) == {("lcc", "DBT"), ("lcc1", "DBT"), ("lmlo", "DBT")}
    assert record(twice)["notes"] == ["3 files are left out: the same image is there already."]
    groups = measurements(twice / "sr" / "measurements.dcm").get_planar_roi_measurement_groups()
    assert len({group.tracking_uid for group in groups}) == len(groups)  # a viewer keeps one box of each
    lesions = {str(group.tracking_identifier) for group in groups}  # those of CC and MLO name both places
    places = [place for lesion in lesions for place in lesion.split(", ")]
    assert len(places) == len(set(places)) == len(groups)
    assert {place.rpartition(" ")[0] for place in places} == {"LCC DBT", "LCC1 DBT", "LMLO DBT"}


def test_files_that_a_careless_anonymiser_gave_one_number_are_no_copies(tmp_path: Path, model: Path) -> None:
    write_exam(tmp_path / "exam", "FFDM L CC", "FFDM L MLO", study="1.2.3", SOPInstanceUID="1.2.3.4")
    assert predict(tmp_path / "exam", "-o", tmp_path / "out", "--weights", model) == 0
    assert set(by_view(read(tmp_path / "out" / "predictions.json"))) == {("lcc", "FFDM"), ("lmlo", "FFDM")}


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
    slices = [f.slice for f in view.findings if f.slice is not None]
    assert len(set(slices)) > 1
    assert [mark[0] for mark in found] == [instance(paths[round(z)]) for z in slices]


def test_real_mammograms(tmp_path: Path, model: Path, real_data: Path) -> None:
    """A GE image, whose findings are all marked, and a Siemens image that says CC and is from a stereotactic biopsy."""
    assert predict(real_data / "dicom", "-o", tmp_path / "out", "--weights", model, "--threshold", "0") == 1
    (exam,) = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    (breast,) = read(exam / "predictions.json").breasts
    assert len(marked(exam / "sr" / "cad.dcm")) == len(breast.views[0].findings) > 0
    (reason,) = record(tmp_path / "out")["failures"].values()
    assert "no CC or MLO view to look at" in reason
    assert "1 image is left out: stereotactic, or of a specimen." in reason


def test_dicom_and_prepared_views_give_the_same_whatever_the_chunk(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "exam"
    write_exam(folder, "DBT L CC", "DBT L MLO", "DBT R MLO")
    assert predict(folder, "-o", tmp_path / "dicom", "--weights", model, jobs=2) == 0
    sizes = [part for name, value in PREPARE.items() for part in (f"--{name}", str(value))]
    assert main(["prepare", "folder", str(folder), "-o", str(tmp_path / "prepared"), *sizes, "--jobs", "1"]) == 0
    assert predict(tmp_path / "prepared", "-o", tmp_path / "again", "--weights", model) == 0
    one, two = (read(tmp_path / name / "predictions.json").breasts for name in ("dicom", "again"))
    assert one == two
    assert all(view.findings for breast in one for view in breast.views)
    assert predict(tmp_path / "prepared", "-o", tmp_path / "chunk", "--weights", model, "--chunk", "1") == 0
    three = read(tmp_path / "chunk" / "predictions.json").breasts
    for whole, other in zip(one, three, strict=True):
        assert whole.score == pytest.approx(other.score, rel=1e-4)
        for view, again in zip(whole.views, other.views, strict=True):
            assert [f.slice for f in view.findings] == [f.slice for f in again.findings]
            for f, g in zip(view.findings, again.findings, strict=True):
                assert (*f.box, f.score) == pytest.approx((*g.box, g.score), rel=1e-3, abs=1e-3)


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
    assert record(out)["method"]["operating_point"] == {
        "threshold": 0.9,
        "source": "validation",
        "chosen_on": "DBT",
        "breast": None,
    }
    assert '"threshold":0.9' in (out / "report.html").read_text()


def test_what_the_weights_are_for_and_what_their_operating_point_is_not_for_is_said(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A threshold for volumes may mark everything in mammograms, or nothing."""
    own = write_weights(tmp_path / "own.safetensors", operating_point=0.5)
    write_exam(tmp_path / "mixed", "DBT L CC", "FFDM R CC")
    write_exam(tmp_path / "volumes", "DBT L CC")
    remark = "Mammograms are judged by an operating point that was chosen on volumes; --threshold sets another."
    for exam, weights_path, remarks in (("mixed", own, [remark]), ("volumes", own, []), ("mixed", model, [])):
        out = tmp_path / f"{exam} {weights_path.stem}"
        assert predict(tmp_path / exam, "-o", out, "--weights", weights_path) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0] == f"Weights {weights_path.stem}: For tests only."
        assert [line for line in said if "chosen on" in line] == [f"note: {remark}" for remark in remarks]
        assert record(out)["notes"] == remarks


def test_weights_bring_an_operating_point_of_breasts_and_a_calibration(tmp_path: Path) -> None:
    calibration = {"slope": 2.0, "intercept": -1.0, "source": "a screening"}
    own = write_weights(
        tmp_path / "own.safetensors", operating_point={"threshold": 0.9, "breast": 0.01}, calibration=calibration
    )
    write_exam(tmp_path / "exam", "FFDM L CC")
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", own) == 0
    method = record(out)["method"]
    assert (method["operating_point"]["breast"], method["calibration"]) == (0.01, calibration)
    page = (out / "report.html").read_text()
    assert '"suspicious":["L"]' in page  # nothing is marked
    assert '"percents":{"L":' in page
    for wrong in ({"slope": -1.0, "intercept": 0.0, "source": ""}, {"slope": 1.0}, "high"):
        bad = write_weights(tmp_path / "bad.safetensors", calibration=wrong)
        assert predict(tmp_path / "exam", "-o", tmp_path / "bad", "--weights", bad) == 1
        assert not (tmp_path / "bad").exists()


def test_operating_points_of_an_evaluation(tmp_path: Path, model: Path) -> None:
    header = weights.read_header(model)
    points = [
        {"of": "findings", "rule": rule, "wanted": {"fp_per_volume": rate}, "threshold": threshold}
        for rule, rate, threshold in (("2D", 0.25, 0.7), ("2D", 0.5, 0.6), ("3D", 0.25, 0.8), ("3D", 0.5, None))
    ]
    points.append({"of": "breasts", "wanted": {"specificity": 0.9}, "threshold": 0.4})
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"systems": [{"operating_points": points, "modality": "FFDM"}]}))
    assert choose_operating_point(None, str(path), header).threshold == 0.7
    assert choose_operating_point(None, str(path), header).remark({"FFDM"}) is None
    assert "Volumes are judged" in (choose_operating_point(None, str(path), header).remark({"DBT"}) or "")
    assert choose_operating_point(None, f"{path}:3D@0.25", header).threshold == 0.8
    assert choose_operating_point(None, str(path), header).breast == 0.4
    assert choose_operating_point(0.3, None, header).threshold == 0.3
    assert "default" in choose_operating_point(None, None, header).source
    for name, said in ((":3D@0.5", "no score from 0 to 1"), (":4D", "it has 2D@0.25, 2D@0.5, 3D@0.25, 3D@0.5")):
        with pytest.raises(InputError, match=said):
            choose_operating_point(None, f"{path}{name}", header)
    path.write_text(json.dumps({"systems": [{"operating_points": points}] * 2}))
    with pytest.raises(InputError, match="compares 2 systems"):
        choose_operating_point(None, str(path), header)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"is no metrics\.json"):
        choose_operating_point(None, str(path), header)


# ---- who can be recognised -----------------------------------------------------------------------------------------

CANARIES = {
    "PatientName": "Kanarie^Berta",
    "PatientID": "KANARIE-47114711",
    "PatientBirthDate": "19531124",
    "PatientAddress": "Kanariengasse 7",
    "OtherPatientIDs": "KANARIE-08150815",
    "StudyDate": "20190317",
    "StudyTime": "101112.131415",
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


def test_the_report_of_the_later_exam_of_a_patient_shows_the_earlier_one(tmp_path: Path, model: Path) -> None:
    """Also if the earlier one was predicted by an earlier run."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    for folder, study, day, number in (
        ("a", "1.2", "20260105", "7"),
        ("b", "1.3", "20241104", "7"),
        ("c", "1.4", "20240101", "8"),
    ):
        write_exam(archive / folder, "DBT L CC", study=study, StudyDate=day, PatientID=number)
    assert predict(archive, "-o", out, "--weights", model, "--threshold", "0") == 0
    shutil.rmtree(out / exam_code("1.2"))
    assert predict(archive, "-o", out, "--weights", model, "--threshold", "0") == 0
    reports = {study: (out / exam_code(study) / "report.html").read_text() for study in ("1.2", "1.3", "1.4")}
    assert {study: page.count('class="frames"') for study, page in reports.items()} == {"1.2": 2, "1.3": 1, "1.4": 1}
    assert "14 months earlier" in reports["1.2"]
    assert (
        f"The report shows exam {exam_code('1.3')} of the same patient" in record(out / exam_code("1.2"))["notes"][-1]
    )
    assert {len(exam.views) for exam in read(out / "predictions.json").breasts} == {1}


WORDS = [b"anari", b"ANARI", b"Berta", b"47114711", b"08150815", b"19531124", b"20190317", b"101112.13", b"2019-03-17"]


def test_nobody_is_recognised_in_any_output_or_message(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in those of broken exams and files, either, whose names may hold the patient's."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    study = "1.2.826.47114711.1"
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
    assert said.count(b"problem: ") == 4
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
    assert (found.patient, found.exam) == ("KANARIE-47114711", study)
    page = (named / exam_code(study) / "report.html").read_text()
    assert "Kanarie^Berta · KANARIE-47114711 · 20190317" in page


# ---- parts ---------------------------------------------------------------------------------------------------------


def prepared(position: Position, mirrored: bool = False, spacing: float | None = 1.0) -> PreparedView:
    """A left breast that is 100 pixels deep; the nipple is at x = 110, or at 10 if it is mirrored."""
    geometry = Geometry((10, 0, 110, 50), mirrored, 50, 100, 1, 1)
    view = View("a view", "L", position, "FFDM", (Path("view.dcm"),), None)
    return PreparedView(view, ViewFile(geometry, False, spacing, None, "", PrepareSettings()), Path("view.npy"))


def at(distance: float, score: float) -> Finding:
    """A finding so many times 10 mm behind the nipple."""
    return Finding((109 - 10 * distance, 0, 111 - 10 * distance, 5), score)


def matched(cc: list[Finding], mlo: list[Finding]) -> list[list[int | None]]:
    views = [ViewPrediction("lcc", tuple(cc)), ViewPrediction("lmlo", tuple(mlo))]
    found = match_lesions([prepared("CC"), prepared("MLO")], views, threshold=0.3)
    return [[finding.lesion for finding in view.findings] for view in found]


def test_findings_as_far_from_the_nipple_are_one_lesion() -> None:
    cc, mlo = [at(3.0, 0.6), at(5.0, 0.9), at(9.0, 0.5)], [at(4.2, 0.8), at(4.9, 0.7), at(9.0, 0.2)]
    # 0.8 finds only 3.0, which is too far; 0.2 is below the operating point.
    assert matched(cc, mlo) == [[None, 0, None], [None, 0, None]]
    # The highest score chooses first, and its nearest is nearer to another.
    assert matched([at(4.85, 0.3), at(5.0, 0.9)], [at(4.9, 0.8)]) == [[None, 0], [0]]
    assert matched([at(1.0, 0.6), at(8.0, 0.5)], [at(1.0, 0.5), at(8.0, 0.6)]) == [[0, 1], [0, 1]]
    assert matched(cc[:1], []) == [[None], []]
    finding = Finding((60.0, 10.0, 80.0, 20.0), 0.5)  # 40 pixels behind the nipple, 60 if it is mirrored
    sides = (False, True)
    assert [nipple_distance(finding, prepared("CC", side, 0.5)) for side in sides] == [2.0, 3.0]  # in 10 mm
    assert [nipple_distance(finding, prepared("CC", side, None)) for side in sides] == [4.0, 6.0]  # in tenths
