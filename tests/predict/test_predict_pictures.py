"""`mm3d predict` on pictures and arrays, as researchers have them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.array_files import write_nifti, write_nrrd
from support.csv_files import write_csv
from support.dicom_files import breast, mammogram, write
from support.exams import files, predict, record, write_weights

from mm3d.cli import main
from mm3d.data.prepare.prepared import read_breasts
from mm3d.output.predictions import read

PAGES = {"predictions.json", "predictions.csv", "report.html", "run.json"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def volume(side: str = "L") -> NDArray[np.uint16]:
    return np.stack([breast(120, 90, side, seed=z) for z in range(20)])


def save(path: Path, side: str = "L") -> Path:
    """A mammogram of 8 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((breast(120, 90, side) // 4).astype(np.uint8)).save(path)
    return path


def beside(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps(fields))
    return path


def views(out: Path) -> list[tuple[str, str, int]]:
    return [(view["view"], view["kind"], view["slices"]) for view in record(out)["views"]]


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_pictures_with_a_table_are_exams(tmp_path: Path, model: Path, suffix: str) -> None:
    for name, side in (("a", "L"), ("b", "L"), ("c", "R")):
        save(tmp_path / "films" / f"{name}.{suffix}", side)
    rows = [f"a.{suffix},P1,L,CC", f"b.{suffix},P1,L,MLO", f"c.{suffix},P2,R,CC"]
    write_csv(tmp_path / "films" / "films.csv", ("file", "patient", "side", "view"), *rows)
    out = tmp_path / "out"
    command = (tmp_path / "films", "-o", out, "--weights", model, "--modality", "film")
    assert predict(*command) == 0
    predictions = read(out / "predictions.json")
    assert sorted((key.patient, key.study, key.view) for key, _ in predictions.views()) == [
        ("P1", "1", "lcc"),
        ("P1", "1", "lmlo"),
        ("P2", "1", "rcc"),
    ]
    exams = [path.parent for path in out.glob("*/run.json")]
    assert [files(exam) for exam in exams] == [PAGES, PAGES]  # no structured reports, which refer to DICOM files
    assert sorted(view for exam in exams for view in views(exam)) == [
        ("lcc", "film", 1),
        ("lmlo", "film", 1),
        ("rcc", "film", 1),
    ]
    before = {path: path.stat().st_mtime_ns for exam in exams for path in exam.iterdir()}
    assert predict(*command) == 0  # nothing to do
    assert {path: path.stat().st_mtime_ns for path in before} == before
    rows[1] = f"b.{suffix},P1,L,CC"  # a table that says something else makes other exams
    write_csv(tmp_path / "films" / "films.csv", ("file", "patient", "side", "view"), *rows)
    assert predict(*command) == 0
    assert sorted(view for exam in exams for view, _, _ in views(exam)) == ["lcc", "lcc1", "rcc"]


def test_arrays_with_json_beside_them_are_one_exam(tmp_path: Path, model: Path) -> None:
    folder, out = tmp_path / "P7", tmp_path / "out"
    write_nifti(folder / "cc.nii.gz", volume())
    beside(folder / "cc.json", side="L", view="CC")
    write_nrrd(folder / "mlo.nrrd", volume())
    beside(folder / "mlo.json", view="lmlo")
    np.save(folder / "right.npy", volume("R").astype(np.float32))
    beside(folder / "right.json", side="RIGHT", view="CC", pixel_spacing=0.1, slice_spacing=1)
    assert predict(folder, "-o", out, "--weights", model) == 0
    assert sorted(views(out)) == [("lcc", "DBT", 20), ("lmlo", "DBT", 20), ("rcc", "DBT", 20)]
    assert files(out) == PAGES
    assert {key.patient for key, _ in read(out / "predictions.json").views()} == {"P7"}
    assert record(out)["warnings"] == []
    assert predict(folder / "cc.nii.gz", "-o", tmp_path / "one", "--weights", model) == 0  # one of them alone
    assert views(tmp_path / "one") == [("lcc", "DBT", 20)]


def test_an_array_of_few_slices_is_judged_with_a_warning(tmp_path: Path, model: Path) -> None:
    np.save(tmp_path / "cc.npy", volume()[:5])
    beside(tmp_path / "cc.json", side="L", view="CC")
    assert predict(tmp_path / "cc.npy", "-o", tmp_path / "out", "--weights", model) == 0
    (warning,) = record(tmp_path / "out")["warnings"]
    assert warning.startswith("L CC: the volume has only 5 slices (a volume of a breast has at least 10)")


def test_what_cannot_be_read_is_said_and_the_rest_is_predicted(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "films", tmp_path / "out"
    for name in ("a.png", "b.png", "c.png"):
        save(folder / name)
    (folder / "b.png").write_bytes(b"no picture")
    table = ("file", "patient", "side", "view")
    write_csv(folder / "t.csv", table, "a.png,P1,L,CC", "b.png,P1,L,MLO", "c.png,P1,,CC", "d.png,P1,L,CC")
    assert predict(folder, "-o", out, "--weights", model) == 1
    assert views(out) == [("lcc", "FFDM", 1)]
    said = " ".join(record(out)["problems"])
    assert "c.png: Its side is missing" in said
    assert "d.png: There are 0 such files" in said
    assert "L MLO: a file (--with-identifiers names it) cannot be read as a picture" in said
    assert "Traceback" not in capsys.readouterr().err


def test_pictures_without_a_table_are_refused_with_what_to_do(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "films" / "a.png")
    for given in (path, path.parent):
        assert predict(given, "-o", tmp_path / "out", "--weights", model) == 1
        said = capsys.readouterr().err
        assert "name the one that describes the images with --table, or put a JSON file with side and view" in said


def test_pictures_beside_dicom_files_do_not_count(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exports of a hospital often have previews."""
    write(mammogram(breast(120, 90)), tmp_path / "exam" / "a.dcm")
    save(tmp_path / "exam" / "preview.jpg")
    assert predict(tmp_path / "exam", "-o", tmp_path / "out", "--weights", model) == 0
    assert views(tmp_path / "out") == [("lcc", "FFDM", 1)]
    assert record(tmp_path / "out")["others"] == 1
    (tmp_path / "exam" / "a.dcm").write_bytes(b"")
    assert predict(tmp_path / "exam", "-o", tmp_path / "broken", "--weights", model) == 1
    assert "is empty" in capsys.readouterr().err  # and not that the preview needs a table


def test_boxes_of_volumes_are_prepared_with_their_slices(tmp_path: Path) -> None:
    """From CSV, from COCO, and from JSON beside the volume."""
    sizes = ["--width", "45", "--length", "60", "--slices", "20", "--jobs", "1"]
    columns = ("file", "patient", "side", "view", "label", "x1", "y1", "x2", "y2", "slice", "first_slice", "last_slice")
    for kind in ("csv", "coco", "beside"):
        folder = tmp_path / kind
        folder.mkdir()
        np.save(folder / "v.npy", volume())
        options = []
        if kind == "csv":
            write_csv(folder / "t.csv", columns, "v.npy,P1,L,CC,malignant,10,50,20,60,7,5,9")
        elif kind == "coco":
            image = {"id": 1, "file_name": "v.npy", "patient": "P1", "side": "L", "view": "CC"}
            box = {"image_id": 1, "category_id": 1, "bbox": [10, 50, 10, 10], "slice": 7}
            box |= {"first_slice": 5, "last_slice": 9}
            categories = [{"id": 1, "name": "malignant"}]
            beside(folder / "coco.json", images=[image], annotations=[box], categories=categories)
            options = ["--table", str(folder / "coco.json")]
        else:
            box = {"boxes": [[10, 50, 20, 60]], "slice": 7, "first_slice": 5, "last_slice": 9}
            beside(folder / "v.json", patient="P1", side="L", view="CC", label="cancer", **box)
        out = tmp_path / f"{kind}-out"
        assert main(["prepare", "images", str(folder), "-o", str(out), *sizes, *options]) == 0
        ((prepared,), (view,)) = (read_breasts(out), read_breasts(out)[0].views)
        assert (prepared.breast.patient, prepared.breast.label, view.view.modality) == ("P1", "malignant", "DBT")
        (annotation,) = view.view.annotations or ()
        assert annotation.box == (10, 50, 20, 60)
        assert (annotation.slice, annotation.first_slice, annotation.last_slice) == (7, 5, 9)
        assert view.image().shape[0] == 20
