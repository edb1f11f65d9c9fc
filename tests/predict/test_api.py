"""`mm3d.load` and what it gives: researchers live in scripts and notebooks."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from support.dicom_files import breast
from support.exams import FILES, damage, files, predict, record, write_exam, write_weights

import mm3d
from mm3d.predict.api import Model, PredictedExam, Viewer

SPACING = (1.0, 0.1, 0.1)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="module")
def model(weights: Path) -> Model:
    return mm3d.load(weights, jobs=1)


def volume(slices: int = 20, side: str = "L") -> NDArray[np.uint16]:
    return np.stack([breast(120, 90, side, seed=z) for z in range(slices)])


@pytest.fixture(scope="module")
def exam(model: Model) -> PredictedExam:
    return model.predict({"lcc": volume(), "LMLO": volume(18)}, spacing=SPACING)


def run(program: str, *arguments: object) -> str:
    command = [sys.executable, *(["-c", program] if "\n" in program else [program]), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_quick_because_it_imports_nothing() -> None:
    """`make bench` has the milliseconds."""
    program = "import sys\nimport mm3d\nprint(*({*sys.modules} - {*sys.stdlib_module_names}))\n"
    imported = set(run(program).split())
    assert "mm3d" in imported
    assert not [name for name in imported if name.startswith(("mm3d.", "torch", "numpy", "rich", "pydicom"))]


def test_a_folder_has_the_results_of_the_command_line(model: Model, weights: Path, tmp_path: Path) -> None:
    write_exam(tmp_path / "exam", "DBT L CC", "DBT L MLO", "FFDM R CC")
    (tmp_path / "exam" / "cut.dcm").write_bytes(b"")  # it cannot be read, and the report says so
    assert predict(tmp_path / "exam", "-o", tmp_path / "command", "--weights", weights) == 1
    found = model.predict(str(tmp_path / "exam"))
    assert found.save(tmp_path / "python") == tmp_path / "python"
    assert files(tmp_path / "python") == FILES
    for name in ("predictions.json", "predictions.csv", "report.html"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    ours, theirs = record(tmp_path / "python"), record(tmp_path / "command")
    assert {**ours, "made": 0, "seconds": 0} == {**theirs, "made": 0, "seconds": 0}
    assert len(found.problems) == 1
    assert "1 problems" in repr(found)


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "flat"])
def test_an_array_has_the_results_of_its_file(kind: str, model: Model, weights: Path, tmp_path: Path) -> None:
    array: NDArray[Any] = volume()[0] if kind == "flat" else volume()
    if kind != "flat":
        array = (array // 4).astype(kind)
    (tmp_path / "given").mkdir()
    np.save(tmp_path / "given" / "lcc.npy", array)
    said = {"patient": "P7", "view": "lcc", "pixel_spacing": 0.1, "slice_spacing": 1.0}
    (tmp_path / "given" / "lcc.json").write_text(json.dumps(said))
    command = (tmp_path / "given", "-o", tmp_path / "command", "--weights", weights, "--stretch", "2")
    assert predict(*command) == 0
    exam = model.predict(array, spacing=(1, 0.2, 0.1), side="L", view="CC", patient="P7")
    exam.save(tmp_path / "python")
    for name in ("predictions.json", "predictions.csv", "report.html"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()


def test_findings_say_where_and_how_suspicious(exam: PredictedExam) -> None:
    best = exam.findings[0]
    assert [finding.score for finding in exam.findings] == sorted((f.score for f in exam.findings), reverse=True)
    assert {finding.view for finding in exam.findings} == {"lcc", "lmlo"}
    x1, y1, x2, y2 = best.box
    assert 0 <= x1 < x2 <= 90
    assert 0 <= y1 < y2 <= 120
    assert best.slice is not None
    assert 0 <= best.slice < 20
    assert best.weights is not None
    assert best.weights.shape == (4,)  # the slices that the weights look at
    assert best.weights.sum() == pytest.approx(1, abs=1e-4)
    marked = [(finding.view, finding.box) for finding in exam.findings if finding.marked]
    assert marked == [(view.view, finding.box) for view, finding in exam.marked()]


def test_a_breast_may_have_one_view(model: Model, exam: PredictedExam) -> None:
    """Of two calls, each sees its own view; the other view of a breast changes what is found in this one."""
    alone = model.predict(volume(), spacing=SPACING, side="L", view="CC")
    together = [finding.score for finding in exam.findings if finding.view == "lcc"]
    assert [view.view for view in alone.views] == ["lcc"]
    assert [finding.score for finding in alone.findings] != together
    again = model.predict({"lcc": volume()}, spacing=SPACING)
    assert again.findings == alone.findings


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (volume(), {"spacing": SPACING}, "needs its side"),
    (volume(), {"side": "L", "view": "CC"}, "need their spacing: from slice to slice"),
    (volume(), {"side": "L", "view": "CC", "spacing": (0.1, 0.1)}, "give three numbers"),
    (volume()[0], {"side": "L", "view": "CC", "spacing": 0.1}, "give two or three numbers"),
    (volume(), {"side": "L", "view": "CC", "spacing": (1, 0, 0.1)}, "not between 0 and 10 mm"),
    (volume()[None], {"side": "L", "view": "CC", "spacing": SPACING}, r"not of shape \(1, 20, 120, 90\)"),
    (volume() * np.nan, {"side": "L", "view": "CC", "spacing": SPACING}, "The array lcc has values that are NaN"),
    (volume() > 9, {"side": "L", "view": "CC", "spacing": SPACING}, "of the type bool"),
    (np.ones((4, 99, 99)), {"side": "L", "view": "CC", "spacing": SPACING}, "L CC: the array: the image has only one"),
    ([[1, 2], [3]], {"side": "L", "view": "CC", "spacing": SPACING}, "cannot be made a numpy array"),
    ({"left": volume()}, {"spacing": SPACING}, "'left' is the name of no view"),
    ({}, {"spacing": SPACING}, "is empty"),
    ({"lcc": volume()}, {"spacing": SPACING, "side": "L"}, "leave out side and view"),
    ("nowhere", {}, "nowhere does not exist"),
    ("nowhere", {"side": "L", "view": "CC"}, "side and view are for arrays"),
    (volume(), {"side": "L", "view": "CC", "spacing": SPACING, "stretch": 2}, "stretch is for files"),
]


@pytest.mark.parametrize(("images", "options", "sentence"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_a_sentence(model: Model, images: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(mm3d.InputError, match=sentence):
        model.predict(images, **options)


def test_several_exams_come_one_after_the_other(model: Model, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        paths = write_exam(tmp_path / "exams" / name, "DBT L CC")
    damage(paths[0])
    with pytest.raises(mm3d.InputError, match="has 3 exams; predict them with predict_all"):
        model.predict(tmp_path / "exams")
    with pytest.warns(UserWarning, match="exam .* LCC DBT"):
        found = list(model.predict_all(tmp_path / "exams"))
    assert len({exam.code for exam in found}) == 2


def test_saving_replaces_nothing_that_is_not_its_own(exam: PredictedExam, model: Model, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    with pytest.raises(mm3d.InputError, match=r"report\.html"):
        exam.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "report.html").read_text() == "mine"
    exam.save(tmp_path / "out")
    exam.save(tmp_path / "out")  # its own results
    other = model.predict(volume(), spacing=SPACING, side="L", view="CC", patient="other")
    with pytest.raises(mm3d.InputError, match="another exam"):
        other.save(tmp_path / "out")


def test_the_picture_shows_the_findings_on_their_slice(exam: PredictedExam) -> None:
    figure: Any = exam.show()
    assert figure._repr_png_().startswith(b"\x89PNG")
    for axes, view in zip(figure.axes, exam.views, strict=True):
        shown = view.marked(exam.threshold) or [max(view.findings, key=lambda finding: finding.score)]
        z = round(shown[0].slice or 0)
        assert axes.get_title().startswith(f"{view.view.upper()}, slice {z + 1} of {len(view.frames)}")
        np.testing.assert_array_equal(axes.images[0].get_array(), view.frames[z])
        boxes = [list(patch.get_bbox().extents) for patch in axes.patches if isinstance(patch, Rectangle)]
        assert boxes == [pytest.approx(finding.box) for finding in shown if round(finding.slice or 0) == z]
    one: Any = exam.show("lcc", 3)
    np.testing.assert_array_equal(one.axes[0].images[0].get_array(), exam.views[0].frames[3])
    for view_name, slice_, sentence in (("rcc", None, "no view 'rcc'"), ("lcc", 20, "no slice 20"), (None, 1, "name")):
        with pytest.raises(mm3d.InputError, match=sentence):
            exam.show(view_name, slice_)


def test_the_viewer_is_the_report_in_a_frame(exam: PredictedExam, tmp_path: Path) -> None:
    frame = exam.show(viewer=True, height=500)
    assert isinstance(frame, Viewer)
    shown: list[dict[str, str | None]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: shown.append({"tag": tag, **dict(attrs)})  # type: ignore[method-assign]
    parser.feed(frame._repr_html_())
    (iframe,) = shown
    assert (iframe["tag"], iframe["height"], iframe["sandbox"]) == ("iframe", "500", "allow-scripts")
    report = exam.save(tmp_path / "out") / "report.html"
    assert iframe["srcdoc"] == report.read_text(encoding="utf-8")


def test_a_script_without_a_main_guard_predicts(weights: Path, tmp_path: Path) -> None:
    """Worker processes must not run it again. And what was written for the exam is removed when the script ends."""
    write_exam(tmp_path / "exam", "DBT L CC", "DBT L MLO")
    script = tmp_path / "five.py"
    script.write_text(
        "import sys, tempfile\ntempfile.tempdir = sys.argv[3]\nprint('began')\nimport mm3d\n"
        "model = mm3d.load(sys.argv[1], jobs=2)\nprint(len(model.predict(sys.argv[2]).views))\n"
    )
    with TemporaryDirectory() as temporary:  # its path is short: Python's socket for the workers is in it
        assert run(str(script), weights, tmp_path / "exam", temporary) == "began\n2\n"
        assert not list(Path(temporary).glob("mm3d-*"))


def test_names_are_those_of_the_command_line() -> None:
    assert mm3d.load("ffdm").method.weights == "ffdm"
    with pytest.raises(mm3d.InputError, match="nowhere does not exist"):
        mm3d.load("nowhere")
