"""Seen, or said to be not seen: an image that was not really looked at must not lead to an exam that looks complete."""

from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from pydicom.uid import generate_uid
from support.dicom_files import breast, item, tomosynthesis_slice, write
from support.exams import by_view, image, predict, record, write_exam, write_weights
from support.reports import find, looked_at

from mm3d.data.datasets.folder import exam_code
from mm3d.output.predictions import read

VIEWS = ("DBT L CC", "DBT L MLO", "DBT R CC", "DBT R MLO")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def summaries(out: Path) -> tuple[str, ...]:
    """What the CAD report says of the whole exam, and of its detections."""
    cad = dcmread(out / "sr" / "cad.dcm")
    return tuple(find(cad, code)[0].ConceptCodeSequence[0].CodeMeaning for code in ("111017", "111064"))


def change(path: Path, **fields: Any) -> None:
    ds = dcmread(path)
    for name, value in fields.items():
        setattr(ds, name, value)
    write(ds, path)


def test_an_exam_of_which_all_was_seen_is_called_complete(tmp_path: Path, model: Path) -> None:
    write_exam(tmp_path / "exam", *VIEWS)
    assert predict(tmp_path / "exam", "-o", tmp_path / "out", "--weights", model, "--threshold", "1") == 0
    assert summaries(tmp_path / "out") == ("All algorithms succeeded; without findings", "Succeeded")
    assert record(tmp_path / "out")["notes"] == record(tmp_path / "out")["problems"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"NumberOfFrames": 1},
        {"Rows": 60},
        {"BitsAllocated": 8, "BitsStored": 8},
        {"BitsStored": 8},
        {"RescaleSlope": "nan"},
        {"PhotometricInterpretation": "MONOCHROME1"},
    ],
)
def test_a_view_whose_header_lies_is_a_problem_of_its_exam(tmp_path: Path, model: Path, fields: dict[str, Any]) -> None:
    paths = write_exam(tmp_path / "exam", *VIEWS)
    change(paths[2], **fields)
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model, "--threshold", "1") == 1
    (problem,) = record(out)["problems"]
    assert problem.replace(" ", "").startswith("RCC")
    assert summaries(out) == ("Not all algorithms succeeded; without findings", "Partially Succeeded")
    assert set(by_view(read(out / "predictions.json"))) == {("lcc", "DBT"), ("lmlo", "DBT"), ("rmlo", "DBT")}


def test_a_window_that_shows_nothing_is_not_used_and_that_is_said(tmp_path: Path, model: Path) -> None:
    """The breast would be black, without a mark, and without a word."""
    paths = write_exam(tmp_path / "exam", *VIEWS)
    whole = dcmread(paths[2])
    whole.SharedFunctionalGroupsSequence[0].FrameVOILUTSequence = [item(WindowCenter=-5000, WindowWidth=1)]
    write(whole, paths[2])
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 0
    (note,) = record(out)["notes"]
    assert note.startswith("R CC: in its own display window the breast is nearly the same grey everywhere, so percent")
    assert note in (out / "report.html").read_text()


@pytest.mark.parametrize("kind", ["empty", "empty without a suffix", "cut in its header", "cut in its pixels"])
def test_a_broken_file_beside_good_ones_is_a_problem_of_their_exam(tmp_path: Path, model: Path, kind: str) -> None:
    """In an archive of several exams, too: who opens the exam later does not read what the run said."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    studies = [generate_uid(), generate_uid()]
    for number, study in enumerate(studies):
        paths = write_exam(archive / f"exam{number}", *VIEWS, study=study)
    broken = paths[0].parent / "IM000001" if "suffix" in kind else paths[0]
    content = paths[0].read_bytes()
    paths[0].unlink()
    broken.write_bytes(content[: {"cut in its header": 600, "cut in its pixels": len(content) - 500}.get(kind, 0)])
    assert predict(archive, "-o", out, "--weights", model, "--threshold", "1") == 1
    good, partly = map(exam_code, studies)
    assert record(out / good)["problems"] == []
    assert summaries(out / good)[1] == "Succeeded"
    assert len(record(out / partly)["problems"]) == 1
    assert summaries(out / partly) == ("Not all algorithms succeeded; without findings", "Partially Succeeded")
    assert record(out)["problems"] == []  # of the run: there is no file whose exam is not known


def test_a_broken_file_in_a_folder_of_its_own_is_of_the_exam_around_it(tmp_path: Path, model: Path) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    studies = [generate_uid(), generate_uid()]
    for number, study in enumerate(studies):
        write_exam(archive / f"exam{number}" / "series", *VIEWS[:2], study=study)
    (archive / "exam1" / "other").mkdir()
    (archive / "exam1" / "other" / "a.dcm").touch()
    assert predict(archive, "-o", out, "--weights", model) == 1
    assert [len(record(out / exam_code(study))["problems"]) for study in studies] == [0, 1]


def test_a_broken_file_among_several_exams_is_told_in_each_of_them(tmp_path: Path, model: Path) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    studies = [generate_uid(), generate_uid()]
    for number, study in enumerate(studies):
        for path in write_exam(tmp_path / str(number), "DBT L CC", study=study):
            archive.mkdir(exist_ok=True)
            path.rename(archive / f"{number}.dcm")
    (archive / "empty.dcm").touch()
    assert predict(archive, "-o", out, "--weights", model) == 1
    assert len(record(out)["problems"]) == 1
    for study in studies:
        assert record(out / exam_code(study))["notes"] == [
            "1 file beside it cannot be read, and may be of this exam or of another one there."
        ]


def test_four_views_in_one_series_of_slices_are_four_views(tmp_path: Path, model: Path) -> None:
    """They became one "left CC" with the slices of both breasts."""
    study: dict[str, Any] = {"StudyInstanceUID": "1.2.3", "SeriesInstanceUID": "1.2.3.4"}
    for side in "LR":
        for view in ("CC", "MLO"):
            for z in range(5):
                ds = tomosynthesis_slice(breast(120, 90, side, seed=z), z, **study)
                ds.ImageLaterality, ds.ViewPosition = side, view
                write(ds, tmp_path / "exam" / f"{side}{view}{z}.dcm")
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 0
    assert {view["view"]: view["slices"] for view in record(out)["views"]} == dict.fromkeys(
        ("lcc", "lmlo", "rcc", "rmlo"), 5
    )
    (tmp_path / "exam" / "LCC2.dcm").unlink()
    (tmp_path / "exam" / "LCC3.dcm").unlink()
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 1
    (problem,) = record(out)["problems"]
    assert problem.startswith("L CC: between 1 and 4 mm, slices are missing; the others are used")
    assert summaries(out)[1] == "Partially Succeeded"


def test_views_of_a_part_are_left_out_and_displaced_implants_come_last(tmp_path: Path, model: Path) -> None:
    """A spot that counts as the CC would be paired with the MLO, and the real CC would count half."""
    folder, out = tmp_path / "exam", tmp_path / "out"
    for number, code in enumerate(("399209000", "", "399055006")):  # displaced, plain, spot
        ds = image("FFDM", "L", "CC", seed=number)
        ds.StudyInstanceUID = "1.2.3"
        modifiers = [item(CodeValue=code)] if code else []
        ds.ViewCodeSequence = [item(CodeValue="399162004", ViewModifierCodeSequence=modifiers)]
        write(ds, folder / f"{number}.dcm")
    assert predict(folder, "-o", out, "--weights", model) == 0
    assert record(out)["notes"] == [
        "L CC: an image with a displaced implant is used like any other.",
        "1 image is left out: magnified, compressed at a spot, tangential, or otherwise of a part of the breast.",
    ]
    looked = looked_at(dcmread(out / "sr" / "cad.dcm"), "111063")
    assert looked == [str(dcmread(folder / f"{number}.dcm").SOPInstanceUID) for number in (1, 0)]
