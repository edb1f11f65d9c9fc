"""Preparation: what is lost or moved here no detector can find again."""

import csv
import dataclasses
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
from dicom_files import breast, compressed, dataset, mammogram, tomosynthesis, write
from openjpeg.utils import encode_array
from PIL import Image
from pydicom.uid import UID

from mm3d.cli import main
from mm3d.cohorts import folder as folder_reader
from mm3d.dicom.header import MAMMOGRAPHY, SLICES
from mm3d.prepare.prepared import read_breasts
from mm3d.prepare.region import breast_region, chest_wall
from mm3d.prepare.run import prepare
from mm3d.prepare.settings import PrepareSettings
from mm3d.prepare.view import WHITE, begin, fill
from mm3d.records import Breast, Cohort, Finding, Modality, View
from mm3d.workers import Outcome, Task, Workers

SMALL = PrepareSettings(width=60, length=120, slices=4)


def volume(slices: int = 9, side: str = "L", bright: int | None = None) -> np.ndarray:
    """A breast in which each slice is a little brighter than the one before, or one is bright in a square."""
    frames = np.stack([breast(side=side, seed=i) for i in range(slices)])
    if bright is not None:
        frames[bright, 100:120, 40:60] = 780
    return frames


def view_of(path: Path, **changes: Any) -> View:
    view = View("view", "L", "CC", "DBT", (path,), None, upright=True)
    return dataclasses.replace(view, **changes)


def prepared(view: View, tmp_path: Path, settings: PrepareSettings = SMALL) -> tuple[np.ndarray, Any]:
    """One view, in this process, as a worker would do it."""
    target = tmp_path / "prepared.npy"
    files, plan, filled = begin(view, settings, target)
    if not filled:
        fill(files, plan, target, range(plan.shape[0]))
    return np.load(target) / WHITE, plan


@pytest.mark.parametrize("kind", ["volume", "lying the wrong way", "mammogram", "MONOCHROME1"])
def test_copies_are_the_stored_slices_as_they_are_shown(tmp_path: Path, kind: str) -> None:
    """What a report shows: every slice, whole, upright, in the file's window; made while the view is prepared."""
    stored = volume(9) if kind in ("volume", "lying the wrong way") else volume(1)
    expected = np.rint(255 * ((stored - 399.5) / 799 + 0.5).clip(0, 1))
    modality: Modality = "DBT" if len(stored) > 1 else "FFDM"
    if kind == "lying the wrong way":
        ds = tomosynthesis(np.ascontiguousarray(stored[:, ::-1, ::-1]))
    elif kind == "volume":
        ds = tomosynthesis(stored)
    elif kind == "mammogram":
        ds = mammogram(stored[0])
    else:  # what was 0 is 1023, and dark
        ds = mammogram(1023 - stored[0], PhotometricInterpretation="MONOCHROME1", WindowCenter=1023 - 399)
    view = view_of(write(ds, tmp_path / "view.dcm"), modality=modality, upright=modality == "DBT")
    target, copies = tmp_path / "prepared.npy", tmp_path / "copies.npy"
    files, plan, filled = begin(view, SMALL, target, copies)
    if not filled:
        for s in range(plan.shape[0]):
            fill(files, plan, target, range(s, s + 1), copies)
    shown = np.load(copies)
    assert shown.dtype == np.uint8
    assert np.abs(shown - expected).max() <= 1
    assert plan.turned == (kind == "lying the wrong way")


# ---- the breast's region -------------------------------------------------------------------------------------------


def test_markers_text_clips_and_the_paddle_do_not_widen_the_region() -> None:
    image = breast(1200, 1000).astype(np.int32)
    plain = breast_region(image)
    image[60:140, 800:960] = 1000  # a lead marker with letters
    image[80:120, 830:930:8] = 0
    image[1100:1130, 700:980] = 900  # burnt-in text
    image[:, 760:763] = 500  # the paddle's edge
    image[900, 700:1000] = 1023  # a scratch
    image[595:600, 300:310] = 1023  # a clip in the breast
    assert breast_region(image) == pytest.approx(plain, abs=25)
    assert plain[0] == 0
    assert 560 < plain[2] < 680


def test_an_image_full_of_breast_is_kept_whole() -> None:
    image = 300 + np.random.default_rng(0).integers(0, 200, (500, 400))
    assert breast_region(image) == (0, 0, 400, 500)


def test_the_crop_keeps_every_real_finding_and_removes_two_fifths_of_the_image(real_data: Path) -> None:
    folder = real_data / "bcs-dbt" / "annotated-slices"
    removed = []
    with (folder / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        image = np.asarray(Image.open(folder / row["jpg"]).convert("L"))
        x1, y1, x2, y2 = breast_region(image)
        x, y, width, height = (int(row[name]) for name in ("X", "Y", "Width", "Height"))
        assert x1 <= x, row
        assert y1 <= y, row
        assert x + width <= x2, row
        assert y + height <= y2, row
        assert chest_wall(image) == row["View"][0].upper()
        removed.append(1 - (x2 - x1) * (y2 - y1) / image.size)
    assert len(rows) > 50
    assert np.mean(removed) >= 0.4


@pytest.mark.parametrize("name", ["ge-ffdm-rmlo-jpeg-lossless.dcm", "siemens-mg-lcc-overlay-out-of-bounds.dcm"])
def test_real_mammograms_are_prepared(real_data: Path, tmp_path: Path, name: str) -> None:
    view = view_of(real_data / "dicom" / name, modality="FFDM", upright=False)
    image, plan = prepared(view, tmp_path, PrepareSettings(width=220, length=440))
    assert image.shape == plan.shape
    assert max(image.shape[1] / 440, image.shape[2] / 220) == 1
    assert 0.05 < image.mean() < 0.95
    if name.startswith("ge"):  # the other shows a part of a breast at a biopsy, from below
        assert image[0, :, :110].mean() > image[0, :, 110:].mean()  # the chest wall is on the left


# ---- orientation, intensity, depth ---------------------------------------------------------------------------------


def test_left_and_right_breasts_both_have_the_chest_wall_on_the_left(tmp_path: Path) -> None:
    left, _ = prepared(view_of(write(tomosynthesis(volume()), tmp_path / "l.dcm")), tmp_path)
    path = write(tomosynthesis(volume(side="R"), side="R"), tmp_path / "r.dcm")
    right, plan = prepared(view_of(path, laterality="R"), tmp_path)
    assert plan.geometry.mirrored
    assert left.shape == right.shape
    assert left.shape[0] == 4
    assert left.shape[2] == 60
    for image in (left, right):
        assert image[:, 46, 0].mean() > 0.4
        assert image[:, 0, -1].mean() < 0.1


def test_a_left_view_that_lies_the_wrong_way_is_turned_by_180_degrees(tmp_path: Path) -> None:
    """8.5% of BCS-DBT. Boxes are drawn on the turned image; a detector trained without the turn learns from air."""
    frames = volume(bright=4)
    straight, _ = prepared(view_of(write(tomosynthesis(frames), tmp_path / "a.dcm")), tmp_path)
    turned, plan = prepared(view_of(write(tomosynthesis(frames[:, ::-1, ::-1]), tmp_path / "b.dcm")), tmp_path)
    assert plan.turned
    assert np.array_equal(straight, turned)
    x1, y1, x2, y2 = (round(value) for value in plan.geometry.box_to_model((40, 100, 60, 120)))
    s = plan.geometry.slice_to_model(4)
    assert turned[s, y1:y2, x1:x2].mean() > 0.85
    assert turned[s - 2, y1:y2, x1:x2].mean() < 0.65


def test_monochrome1_is_shown_as_monochrome2(tmp_path: Path) -> None:
    image = breast()
    plain, _ = prepared(view_of(write(mammogram(image), tmp_path / "2.dcm"), modality="FFDM", upright=False), tmp_path)
    negative = mammogram(
        1023 - image, PhotometricInterpretation="MONOCHROME1", WindowCenter=1023 - 399, WindowWidth=800
    )
    path = write(negative, tmp_path / "1.dcm")
    inverted, _ = prepared(view_of(path, modality="FFDM", upright=False), tmp_path)
    assert inverted == pytest.approx(plain, abs=0.003)


def test_percentiles_stand_in_where_there_is_no_window_or_it_is_raw(tmp_path: Path) -> None:
    raw = mammogram(breast() + 3, WindowCenter=5000, WindowWidth=10)
    raw.PresentationIntentType, raw.SOPClassUID = "FOR PROCESSING", MAMMOGRAPHY[1]
    view = view_of(write(raw, tmp_path / "raw.dcm"), modality="FFDM", upright=False)
    image, _ = prepared(view, tmp_path)
    tissue = image[0, 40:60, 5:30]
    assert 0.2 < tissue.mean() < 0.8
    assert tissue.std() > 0.05


def test_depth_is_pooled_by_maximum_and_short_volumes_are_kept(tmp_path: Path) -> None:
    frames = volume(slices=10, bright=7)
    image, plan = prepared(view_of(write(tomosynthesis(frames), tmp_path / "v.dcm")), tmp_path)
    x1, y1, x2, y2 = (round(value) for value in plan.geometry.box_to_model((44, 104, 56, 116)))
    lit = [s for s in range(4) if image[s, y1:y2, x1:x2].mean() > 0.9]
    assert lit == [s for s in range(4) if 7 in plan.geometry.region(s)]
    short, plan = prepared(view_of(write(tomosynthesis(volume(slices=3)), tmp_path / "s.dcm")), tmp_path)
    assert len(short) == plan.geometry.stored_slices == 3


def test_slices_in_files_of_their_own_become_one_volume_by_position(tmp_path: Path) -> None:
    frames = volume(slices=6, bright=1)
    paths: list[Path] = []
    for i in (4, 1, 5, 0, 3, 2):
        ds = dataset(frames[i], SLICES[0], Modality="CT", ImageType=["DERIVED", "PRIMARY", "TOMO"])
        ds.ImagePositionPatient, ds.ImageOrientationPatient = [0, 0, 3.0 * i], [1, 0, 0, 0, 1, 0]
        paths.append(write(ds, tmp_path / f"{len(paths)}.dcm"))
    whole = view_of(write(tomosynthesis(frames), tmp_path / "whole.dcm"))
    percentile = dataclasses.replace(SMALL, intensity="percentile")
    together, _ = prepared(whole, tmp_path, percentile)
    apart, _ = prepared(dataclasses.replace(whole, files=tuple(paths)), tmp_path, percentile)
    assert np.array_equal(apart, together)


# ---- workers that die ----------------------------------------------------------------------------------------------


def crash(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(_: int) -> None:
    time.sleep(600)


def double(value: int) -> int:
    return 2 * value


def test_a_crash_or_a_hang_costs_its_task_and_nothing_else() -> None:
    with Workers(2) as workers:
        for key, function in enumerate([double, crash, double, hang, double, double]):
            workers.submit(Task(key, function, (key,), seconds=3.0 if function is hang else 60.0))
        outcomes: dict[int, Outcome] = {outcome.key: outcome for outcome in workers.outcomes()}
    assert {key: outcome.result for key, outcome in outcomes.items() if not outcome.failure} == {
        0: 0,
        2: 4,
        4: 8,
        5: 10,
    }
    assert "crashed" in outcomes[1].failure
    assert "took over 3 s" in outcomes[3].failure


def threads(_: int) -> list[str | None]:
    return [os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]


def test_a_worker_has_one_thread_whatever_the_machine_has() -> None:
    """Sums over several threads come out differently, and the same seed must give the same bytes."""
    before = dict(os.environ)
    with Workers(1) as workers:
        workers.submit(Task(0, threads, (0,), seconds=60.0))
        assert [outcome.result for outcome in workers.outcomes()] == [["1", "1"]]
    assert dict(os.environ) == before


# ---- the command ---------------------------------------------------------------------------------------------------


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


def test_a_folder_of_exams_is_prepared_and_what_failed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    assert command(source, output) == 1  # a file failed, the rest is done
    printed = capsys.readouterr()
    breasts = read_breasts(output)
    assert sorted((b.laterality, sorted(v.view.position for v in views)) for b, views in breasts) == [
        ("L", ["CC", "MLO"]),
        ("R", ["MLO"]),
    ]
    for _, views in breasts:
        for view in views:
            geometry = view.file.geometry
            assert view.image().shape == (geometry.slices, geometry.height, geometry.width)
            assert view.image().max() > WHITE // 3
    with (output / "problems.csv").open() as file:
        reasons = " ".join(row["reason"] for row in csv.DictReader(file))
    for words in ("cut off", "cannot be decoded", "is not DICOM"):
        assert words in reasons
    with (output / "manifest.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    for word in ("exams", "breasts", "views", "findings", "problem", "3 of 4 views"):
        assert word in printed.out
    everything = (
        printed.out
        + printed.err
        + "".join(path.read_text(errors="replace") for path in output.rglob("*") if path.suffix in (".csv", ".json"))
    )
    assert "canary" not in everything.lower()  # no patient's name or number leaves the DICOM files


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
    assert {view.file.geometry.width for _, views in read_breasts(output) for view in views} == {30}


def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    cohort = folder_reader.read(exams(tmp_path / "export"))
    output = tmp_path / "prepared"
    calls = 0

    def killed() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(cohort, output, SMALL, 2, killed)
    for path in (output / "views").glob("*.json"):
        assert np.load(path.with_suffix(".npy")).any()
    keys, failures = prepare(cohort, output, SMALL, 2, lambda: None)
    assert len(keys) == 3
    assert len(failures) == 1


def test_what_a_killed_run_left_half_made_is_cleared_away(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    (output / "views").mkdir(parents=True)
    dead = subprocess.Popen(["true"])
    dead.wait()
    stale, alive = (output / "views" / f".{'a' * 32}.{pid}.partial" for pid in (dead.pid, os.getppid()))
    for path in (stale, alive):
        path.write_bytes(b"half")
    command(source, output)
    assert not stale.exists()
    assert alive.exists()  # another run may be at work on it


def test_findings_arrive_in_the_models_frame(tmp_path: Path) -> None:
    frames = volume(bright=6)
    path = write(tomosynthesis(frames), tmp_path / "v.dcm")
    finding = Finding((40, 100, 60, 120), True, slice=6, first_slice=5, last_slice=7)
    view = view_of(path, findings=(finding,))
    cohort = Cohort("one", (Breast("p", "e", "L", "malignant", (view,), "train", {"density": "C"}),))
    keys, _ = prepare(cohort, tmp_path / "out", SMALL, 1, lambda: None)
    from mm3d.prepare.prepared import write_cohort

    write_cohort(tmp_path / "out", cohort, keys, [])
    ((read, (there,)),) = read_breasts(tmp_path / "out")
    assert read == cohort.breasts[0]
    (moved,) = there.findings() or ()
    assert moved.slice is not None
    x1, y1, x2, y2 = (round(value) for value in moved.box)
    image = there.image() / WHITE
    assert image[moved.slice, y1:y2, x1:x2].mean() > 0.85
    assert json.loads((tmp_path / "out" / "cohort.json").read_text())["breasts"][0]["label"] == "malignant"


def test_a_finding_beyond_the_last_slice_is_reported_and_not_moved(tmp_path: Path) -> None:
    path = write(tomosynthesis(volume()), tmp_path / "v.dcm")
    view = view_of(path, findings=(Finding((40, 100, 60, 120), True, slice=9),))
    cohort = Cohort("one", (Breast("p", "e", "L", "malignant", (view,)),))
    keys, (problem,) = prepare(cohort, tmp_path / "out", SMALL, 1, lambda: None)
    assert not keys
    assert "has 9 slices, and a finding is marked beyond them (slice 9" in problem.reason


def test_annotations_that_do_not_fit_the_image_are_reported(tmp_path: Path) -> None:
    path = write(tomosynthesis(volume()), tmp_path / "v.dcm")
    outside = view_of(path, findings=(Finding((900, 100, 930, 120), True, slice=3),))
    flat = view_of(path, name="flat", modality="FFDM", upright=False)
    cohort = Cohort("two", (Breast("p", "e", "L", "malignant", (outside, flat)),))
    _, problems = prepare(cohort, tmp_path / "out", SMALL, 1, lambda: None)
    reasons = {problem.subject: problem.reason for problem in problems}
    assert "is outside them" in reasons["view"]
    assert "said to be a mammogram and has 9 slices" in reasons["flat"]


def test_all_exams_of_a_patient_have_one_code(tmp_path: Path) -> None:
    for name, number in (("first", "P-1"), ("second", "P-1"), ("other", "P-2")):
        write(mammogram(breast(), PatientID=number), tmp_path / f"{name}.dcm")
    patients = {b.views[0].files[0].stem: b.patient for b in folder_reader.read(tmp_path).breasts}
    assert patients["first"] == patients["second"] != patients["other"]


def test_pixels_that_were_cut_off_later_are_made_again(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    command(source, output)
    pixels = sorted((output / "views").glob("*.npy"))[0]
    whole = pixels.read_bytes()
    pixels.write_bytes(whole[:200])
    command(source, output)
    assert pixels.read_bytes() == whole


def test_an_output_that_would_lose_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    command(source, output)
    before = (output / "cohort.json").read_bytes()
    assert command(exams(tmp_path / "another"), output) == 1
    assert "holds the prepared views of export; give another folder" in capsys.readouterr().err
    assert (output / "cohort.json").read_bytes() == before
    assert command(source, source / "inside") == 1
    assert command(source, source / "exam" / "lcc.dcm") == 1
    assert (source / "exam" / "lcc.dcm").is_file()
    file = tmp_path / "file"
    file.write_text("mine")
    assert command(source, file) == 1
    assert file.read_text() == "mine"


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


def test_folders_that_hold_nothing_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert command(tmp_path / "empty", tmp_path / "out") == 1
    assert "no mammography" in capsys.readouterr().err
    assert command(tmp_path / "absent", tmp_path / "out") == 1
    assert "is not a folder" in capsys.readouterr().err


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    source, output = exams(tmp_path / "export"), tmp_path / "prepared"
    arguments = [sys.executable, "-m", "mm3d", "prepare", "folder", str(source), "-o", str(output), "--jobs", "1"]
    arguments += ["--width", "60", "--length", "120", "--slices", "4"]
    runs = [subprocess.Popen(arguments, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait(timeout=120) for run in runs] == [1, 1]
    together = {path.name: path.read_bytes() for path in (output / "views").iterdir()}
    command(source, tmp_path / "alone")
    assert together == {path.name: path.read_bytes() for path in (tmp_path / "alone" / "views").iterdir()}
    assert len(read_breasts(output)) == 2


def test_a_folder_of_mutated_files_is_prepared_or_reported_and_writes_nowhere_else(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    whole = tomosynthesis(volume(slices=5))
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
    with (tmp_path / "prepared" / "problems.csv").open() as file:
        problems = list(csv.DictReader(file))
    done = sum(len(views) for _, views in read_breasts(tmp_path / "prepared"))
    assert done + len(problems) == 60
    assert 5 < done < 55  # both ways out were taken
    assert all("Error)" not in row["reason"] or "damaged" in row["reason"] for row in problems)
