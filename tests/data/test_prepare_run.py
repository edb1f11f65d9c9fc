"""`mm3d prepare` from a folder to a folder: what it loses or moves no detector can find again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pydicom
import pytest
from openjpeg.utils import encode_array
from pydicom.uid import UID
from support.csv_files import rows_of
from support.dicom_files import breast, compressed, mammogram, tomosynthesis, write
from support.stored_views import SMALL, view_of, volume

from mm3d.cli import main
from mm3d.data.datasets import folder as folder_reader
from mm3d.data.datasets.assemble import CohortBuilder
from mm3d.data.datasets.folder import list_files, make_entries, read_headers
from mm3d.data.prepare.prepared import read_breasts, write_cohort
from mm3d.data.prepare.run import prepare_breasts, prepare_views
from mm3d.data.prepare.view import WHITE, begin_view, fill_view
from mm3d.data.records import Annotation, Breast, Cohort
from mm3d.shared.files import working_folder


def exams(root: Path) -> Path:
    """A hospital's export: the left breast with both views, the right one with MLO alone, and trouble."""
    j2k = [bytes(encode_array(frame, bits_stored=10, photometric_interpretation=2)) for frame in volume()]
    study = {"StudyInstanceUID": "1.2.3.4"}
    for name, ds in {
        "lcc": compressed(tomosynthesis(volume()), "1.2.840.10008.1.2.4.90", j2k),
        "lmlo": tomosynthesis(volume(), view="MLO"),
        "rmlo": mammogram(breast(side="R"), side="R", view="MLO"),
    }.items():
        for field, value in study.items():
            setattr(ds, field, value)
        write(ds, root / "exam" / f"{name}.dcm")
    cut = write(tomosynthesis(volume(), view="MLO"), root / "exam" / "cut.dcm")
    cut.write_bytes(cut.read_bytes()[:-50_000])
    broken = compressed(tomosynthesis(volume()), "1.2.840.10008.1.2.4.90", [*j2k[:4], j2k[4][:300], *j2k[5:]])
    broken.StudyInstanceUID = "1.2.3.4.5"
    write(broken, root / "exam" / "broken.dcm")
    (root / "exam" / "report.pdf").write_bytes(b"%PDF")
    return root


def command(source: Path, output: Path) -> int:
    sizes = ["--width", "60", "--length", "120", "--slices", "4", "--jobs", "2"]
    return main(["prepare", "folder", str(source), "-o", str(output), *sizes])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_of_exams_is_prepared_and_what_failed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    assert command(source, output) == 1  # a file failed, the rest is done
    printed = capsys.readouterr()
    breasts = read_breasts(output)
    assert sorted((b.breast.laterality, sorted(v.view.position for v in b.views)) for b in breasts) == [
        ("L", ["CC", "MLO"]),
        ("R", ["MLO"]),
    ]
    for prepared in breasts:
        for view in prepared.views:
            geometry = view.file.geometry
            assert view.image().shape == (geometry.slices, geometry.height, geometry.width)
            assert view.image().max() > WHITE // 3
    reasons = " ".join(row["reason"] for row in rows_of(output / "problems.csv"))
    for words in ("cut off", "is cut off in the middle of a frame", "is not DICOM"):
        assert words in reasons
    assert len(rows_of(output / "manifest.csv")) == 3
    for word in ("exams", "breasts", "views", "annotations", "problem", "3 of 4 views"):
        assert word in printed.out
    everything = (
        printed.out
        + printed.err
        + "".join(path.read_text(errors="replace") for path in output.rglob("*") if path.suffix in (".csv", ".json"))
    )
    assert "canary" not in everything.lower()  # no patient's name or number leaves the DICOM files


def test_findings_arrive_in_the_models_frame(tmp_path: Path) -> None:
    frames = volume(bright=6)
    path = write(tomosynthesis(frames), tmp_path / "v.dcm")
    finding = Annotation((40, 100, 60, 120), True, slice=6, first_slice=5, last_slice=7)
    view = view_of(path, annotations=(finding,))
    cohort = Cohort("one", (Breast("p", "e", "L", "malignant", (view,), "train", {"density": "C"}),))
    (done,), _ = prepare_views([view], tmp_path / "out", SMALL, 1)
    write_cohort(tmp_path / "out", cohort, {view.name: done.pixels.stem}, [])
    (read,) = read_breasts(tmp_path / "out")
    assert read.breast == cohort.breasts[0]
    (there,) = read.views
    (moved,) = there.annotations() or ()
    assert moved.slice is not None
    x1, y1, x2, y2 = (round(value) for value in moved.box)
    image = there.image() / WHITE
    assert image[moved.slice, y1:y2, x1:x2].mean() > 0.85
    assert json.loads((tmp_path / "out" / "cohort.json").read_text())["breasts"][0]["label"] == "malignant"


def test_the_breasts_of_an_exam_are_prepared_without_lists(tmp_path: Path) -> None:
    images, _ = read_headers(list_files(exams(tmp_path / "export"))[0])
    headers = {header.path: header for header in images}
    breasts = CohortBuilder("exam", entries=make_entries(images)[0]).assemble().breasts
    prepared, problems = prepare_breasts(breasts, headers, SMALL, tmp_path / "work", 1)
    assert [sorted(view.view.position for view in breast.views) for breast in prepared] == [["CC", "MLO"], ["MLO"]]
    (problem,) = problems
    assert "is cut off in the middle of a frame" in problem.reason
    for one in prepared:
        for view in one.views:
            (header,) = view.headers
            assert header == headers[view.view.files[0]]
            assert view.display_slices is not None
            assert np.load(view.display_slices).shape == (header.frames, header.rows, header.columns)
            assert view.image().max() > WHITE // 3


def test_a_header_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding the exam parses each header; preparing it, as a worker does, and describing it for reports do not."""
    parsed: Counter[str] = Counter()
    read = pydicom.dcmread

    def count(file: BinaryIO, **options: Any) -> pydicom.FileDataset:
        parsed[Path(file.name).name] += 1
        return read(file, **options)

    monkeypatch.setattr(pydicom, "dcmread", count)
    images, _ = read_headers(list_files(exams(tmp_path / "export"))[0])
    headers = {header.path: header for header in images}
    entries, _ = make_entries(images)
    for entry in entries:
        if entry.view.files[0].name == "broken.dcm":
            continue
        known = tuple(headers[path] for path in entry.view.files)
        own, plan, filled = begin_view(entry.view, known, SMALL, tmp_path / "view.npy")
        if not filled:
            fill_view(own, plan, tmp_path / "view.npy", range(plan.shape[0]))
        assert own[0].context.PatientName == "Canary^Anna"
    assert set(parsed) == {"lcc.dcm", "lmlo.dcm", "rmlo.dcm", "cut.dcm", "broken.dcm"}
    assert set(parsed.values()) == {1}


# What is there already


def test_a_second_run_does_only_what_is_missing(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    command(source, output)
    files = sorted((output / "views").glob("*.npy"))
    stamps = [path.stat().st_mtime_ns for path in files]
    contents = [path.read_bytes() for path in files]
    files[0].unlink()
    command(source, output)
    assert sorted((output / "views").glob("*.npy")) == files
    assert [path.read_bytes() for path in files] == contents
    assert [path.stat().st_mtime_ns for path in files][1:] == stamps[1:]
    assert not list((output / "views").glob(".*"))  # nothing half-made stays behind


def test_other_settings_never_meet_old_files(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    command(source, output)
    main(["prepare", "folder", str(source), "-o", str(output), "--width", "30", "--length", "60", "--jobs", "2"])
    assert {view.file.geometry.width for one in read_breasts(output) for view in one.views} == {30}


def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    views = list(folder_reader.read(exams(tmp_path / "export")).views())
    output = tmp_path / "prepared"
    calls = 0

    def killed() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # of four views, one of which fails: at least one is finished, and one is not
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_views(views, output, SMALL, 2, killed)
    left = contents(output / "views")
    done, failures = prepare_views(views, output, SMALL, 2)
    assert len(done) == 3
    assert len(failures) == 1
    prepare_views(views, tmp_path / "alone", SMALL, 1)
    whole = contents(tmp_path / "alone" / "views")
    assert left
    assert left.items() < whole.items()
    assert contents(output / "views") == whole


def test_what_a_killed_run_left_half_made_is_cleared_away(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    stale = [folder / ".mm3d-0123456789abcdef.partial" for folder in (output, output / "views")]
    for path in stale:
        path.mkdir(parents=True)
        (path / "manifest.csv").write_bytes(b"half")
    with working_folder(output / "views") as alive:
        (alive / "view.npy").write_bytes(b"half")
        command(source, output)
        assert not any(path.exists() for path in stale)
        assert (alive / "view.npy").exists()  # another run may be at work on it
    assert not list(output.rglob(".*"))


def test_pixels_that_were_cut_off_later_are_made_again(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    command(source, output)
    pixels = sorted((output / "views").glob("*.npy"))[0]
    whole = pixels.read_bytes()
    pixels.write_bytes(whole[:200])
    command(source, output)
    assert pixels.read_bytes() == whole


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    arguments = [sys.executable, "-m", "mm3d", "prepare", "folder", str(source), "-o", str(output), "--jobs", "1"]
    arguments += ["--width", "60", "--length", "120", "--slices", "4"]
    runs = [subprocess.Popen(arguments, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait(timeout=120) for run in runs] == [1, 1]
    command(source, tmp_path / "alone")
    assert contents(output / "views") == contents(tmp_path / "alone" / "views")
    assert len(read_breasts(output)) == 2


def test_ctrl_c_ends_the_run_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "export"
    for i in range(40):
        write(tomosynthesis(volume(slices=40), view="MLO"), source / f"{i}.dcm")
    arguments = [sys.executable, "-m", "mm3d", "prepare", "folder", str(source), "-o", str(tmp_path / "out")]
    run = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list((tmp_path / "out").glob("views/*.npy")):  # workers are up
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to everybody
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert errors == "mm3d: interrupted.\n"


# What cannot be prepared


def test_a_finding_beyond_the_last_slice_is_reported_and_not_moved(tmp_path: Path) -> None:
    path = write(tomosynthesis(volume()), tmp_path / "v.dcm")
    view = view_of(path, annotations=(Annotation((40, 100, 60, 120), True, slice=9),))
    done, (problem,) = prepare_views([view], tmp_path / "out", SMALL, 1)
    assert not done
    assert "has 9 slices, and an annotation is beyond them (slice 9" in problem.reason


def test_annotations_that_do_not_fit_the_image_are_reported(tmp_path: Path) -> None:
    path = write(tomosynthesis(volume()), tmp_path / "v.dcm")
    outside = view_of(path, annotations=(Annotation((900, 100, 930, 120), True, slice=3),))
    flat = view_of(path, name="flat", modality="FFDM", upright=False)
    _, problems = prepare_views([outside, flat], tmp_path / "out", SMALL, 1)
    reasons = {problem.subject: problem.reason for problem in problems}
    assert "is outside them" in reasons["view"]
    assert "has 9 slices and cannot be a mammogram" in reasons["flat"]


def test_an_output_that_would_lose_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    command(source, output)
    before = (output / "cohort.json").read_bytes()
    assert command(exams(tmp_path / "another"), output) == 1
    assert "was made with dataset = export, not another; give another folder" in capsys.readouterr().err
    assert (output / "cohort.json").read_bytes() == before
    image = (source / "exam" / "lcc.dcm").read_bytes()
    for inside in (source / "inside", source / "exam" / "lcc.dcm"):
        assert command(source, inside) == 1
        assert f"{inside} is inside {source}, which is read" in capsys.readouterr().err
    assert not (source / "inside").exists()
    assert (source / "exam" / "lcc.dcm").read_bytes() == image
    file = tmp_path / "file"
    file.write_text("mine")
    assert command(source, file) == 1
    assert f"{file} is a file" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["cohort.json", "manifest.csv", "problems.csv"])
def test_a_users_own_lists_are_refused_and_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    output.mkdir()
    for content in ("mine", "[1]"):
        (output / name).write_text(content)
        assert command(source, output) == 1
        said = f"{output} has a {name} that is not a result of 'mm3d prepare'; give another folder with -o."
        assert said in capsys.readouterr().err
        assert {path.name: path.read_text() for path in output.rglob("*")} == {name: content}


def test_folders_that_hold_nothing_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert command(tmp_path / "empty", tmp_path / "out") == 1
    assert "no mammography" in capsys.readouterr().err
    assert command(tmp_path / "absent", tmp_path / "out") == 1
    assert "is not a folder" in capsys.readouterr().err


def test_a_folder_of_mutated_files_is_prepared_or_reported_and_writes_nowhere_else(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    whole = tomosynthesis(volume(slices=5))
    whole.BitsStored, whole.HighBit = 16, 15  # any value may be in the pixels
    source = tmp_path / "export"
    source.mkdir()
    for i in range(60):
        whole.SOPInstanceUID = whole.file_meta.MediaStorageSOPInstanceUID = UID(f"1.2.3.{1000 + i}")  # no copies
        content = bytearray(write(whole, tmp_path / "whole.dcm").read_bytes())
        for _ in range(random.integers(1, 6)):
            # most of a file is pixels, and most of what can go wrong is in front of them
            at = int(random.integers(128, 3000 if random.random() < 0.8 else len(content)))
            content[at : at + 4] = random.bytes(4)
        (source / f"{i}.dcm").write_bytes(content[: len(content) if i % 3 else int(random.integers(200, len(content)))])
    before = sorted(tmp_path.rglob("*"))
    assert command(source, tmp_path / "prepared") in (0, 1)
    after = [path for path in tmp_path.rglob("*") if path not in before]
    assert all(path == tmp_path / "prepared" or tmp_path / "prepared" in path.parents for path in after)
    problems = rows_of(tmp_path / "prepared" / "problems.csv")
    done = sum(len(prepared.views) for prepared in read_breasts(tmp_path / "prepared"))
    assert done + len(problems) == 60
    assert 5 < done < 55  # both ways out were taken
    assert all("Error)" not in row["reason"] or "damaged" in row["reason"] for row in problems)
