"""The demo, as a stranger meets it: an exam, its results, and a page to look at."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect
from support.exams import FILES, write_exam, write_weights
from support.opened import Opened

from mm3d.cli import main
from mm3d.cli.demo import HIT, compare, demo, make_exam
from mm3d.data.dicom.header import read_header
from mm3d.evaluate.metrics.hits import iou
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction, read

SEED = 5
PANES = {"lcc": "Left CC", "lmlo": "Left MLO", "rcc": "Right CC", "rmlo": "Right MLO"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder, and what it says."""
    folder = tmp_path_factory.mktemp("demo")
    weights = write_weights(folder / "w.safetensors", operating_point=0.0)  # so that all is marked
    said = io.StringIO()
    with redirect_stdout(said):
        assert demo(folder / "demo", SEED, weights, scale="tiny") == 0
    return folder / "demo", said.getvalue()


def test_the_exam_has_four_views_and_a_cancer_and_the_last_line_says_what_was_found(shown: tuple[Path, str]) -> None:
    folder, said = shown
    assert {path.name for path in (folder / "exam").iterdir()} == {f"{view}.dcm" for view in PANES}
    assert {read_header(path).kind for path in (folder / "exam").iterdir()} == {"DBT"}
    breasts = make_exam(folder.parent / "again", SEED, "tiny")
    assert (folder.parent / "again" / "lcc.dcm").read_bytes() == (folder / "exam" / "lcc.dcm").read_bytes()
    cancers = [(v, f) for breast in breasts for v in breast.views for f in v.annotations or () if f.malignant]
    assert cancers
    *lines, last = said.splitlines()[-len(cancers) - 1 :]
    for line, (view, finding) in zip(lines, cancers, strict=True):
        assert line.startswith(f"Cancer in {view.laterality}{view.position}, slice {(finding.slice or 0) + 1} (visible")
        assert ("box found, score " in line) != ("missed." in line)
        assert ("the visible range" in line) == ("box found" in line)
    found = sum("found, score " in line for line in lines)
    marks = [f for _, view in read(folder / "predictions.json").views() for f in view.findings]  # 0 marks all
    told = re.fullmatch(
        rf"Box found for {found} of {len(cancers)} cancers, counted in each view; (\d+) other marks\. "
        rf"Open {re.escape(str(folder / 'report.html'))} in a browser\.",
        last,
    )
    assert told is not None
    assert 0 < int(told[1]) <= len(marks)
    assert said.count("For tests only.") == 1
    for name in ("predictions.csv", "run.json", "sr/measurements.dcm", "sr/cad.dcm"):
        assert (folder / name).is_file()


def test_the_demos_page_opens_at_the_top_finding_of_each_view(shown: tuple[Path, str], browser: Browser) -> None:
    """Without a complaint and without a request (see `Opened.close`)."""
    folder, _ = shown
    report = Opened(browser, folder / "report.html")
    for _, view in read(folder / "predictions.json").views():
        z = view.findings[0].slice
        assert z is not None
        expect(report.pane(PANES[view.view])).to_have_attribute("data-slice", str(round(z)))
        assert report.marks(PANES[view.view]).count() > 0
    expect(report.page.get_by_role("note")).to_contain_text("Not for clinical use. Weights w: For tests only.")
    report.close()


def test_a_cancer_is_found_or_missed_and_the_other_marks_are_counted(tmp_path: Path) -> None:
    """The reader must not take a mark elsewhere for the cancer, nor one below the operating point for a mark."""
    breasts = make_exam(tmp_path / "exam", SEED, "tiny")
    view, cancer = next((v, f) for b in breasts for v in b.views for f in v.annotations or () if f.malignant)
    name = (view.laterality + view.position).lower()
    x1, y1, x2, y2 = cancer.box
    there = Finding((x1 + 1, y1, x2 + 1, y2), 0.6, 3.0)
    first, last = cancer.first_slice, cancer.last_slice
    assert cancer.slice is not None
    assert first is not None
    assert last is not None
    off = abs(3 - cancer.slice)
    where = f"{f'{off} off' if off else 'the right one'}, {'inside' if first <= 3 <= last else 'outside'} the visible"
    elsewhere = Finding((x1 + 500, y1, x2 + 500, y2), 0.7, 1.0)
    assert iou(np.array(there.box), np.array(cancer.box)) >= HIT
    below = "missed; there is a finding of score 0.60, slice 4, but only scores of at least 0.65 are marked."
    for threshold, told, found, others in (
        (
            0.5,
            f"slice {cancer.slice + 1} (visible on {first + 1} to {last + 1}): box found, score 0.60, slice 4, {where}",
            1,
            "1 other mark.",
        ),
        (0.65, below, 0, "1 other mark."),
        (0.8, "missed; there is", 0, "0 other marks."),
    ):
        predicted = {v: ViewPrediction(v, (there, elsewhere) if v == name else (), score=0.5) for v in PANES}
        sides = [tuple(v for k, v in predicted.items() if k[0] == side) for side in "lr"]
        predictions = Predictions(
            (BreastPrediction("p", "e", "L", sides[0]), BreastPrediction("p", "e", "R", sides[1]))
        )
        lines = compare(breasts, predictions, threshold)
        (line,) = [line for line in lines if line.startswith(f"Cancer in {name.upper()}, slice ")]
        assert told in line
        assert lines[-1] == f"Box found for {found} of {len(lines) - 1} cancers, counted in each view; {others}"
        assert all(other.endswith(": missed.") for other in lines[:-1] if other != line)


def test_a_demo_writes_over_nothing_but_a_demo(
    tmp_path: Path, shown: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = write_weights(tmp_path / "w.safetensors")
    (path,) = write_exam(tmp_path / "mine", "FFDM L CC")
    taken, images = tmp_path / "taken", tmp_path / "images"
    assert main(["predict", str(path), "-o", str(taken), "--weights", str(weights), "--jobs", "1"]) == 0
    write_exam(images / "exam", "FFDM L CC")[0].rename(images / "exam" / "lcc.dcm")
    before = {path: path.read_bytes() for folder in (taken, images) for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    for folder, said in (
        (taken, f"{taken} holds the results of another exam; give another folder with -o."),
        (images, f"{images / 'exam'} holds files that no demo made; give another folder with -o."),
    ):
        assert main(["demo", "-o", str(folder), "--weights", str(weights)]) == 1
        assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert not (taken / "exam").exists()
    earlier = shutil.copytree(shown[0], tmp_path / "earlier")
    old = {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}
    assert len(old) == len(PANES) + len(FILES)
    assert demo(earlier, SEED + 1, weights, scale="tiny") == 0  # an earlier demo is replaced, by another exam, too
    assert {path for path in earlier.rglob("*") if path.is_file()} == set(old)
    assert [path for path, content in old.items() if path.read_bytes() == content] == []


def test_the_demo_shows_the_films_of_two_patients_with_what_is_found(tmp_path: Path) -> None:
    """As a user sees them: at the weights' operating point, hit or miss, beside the radiologists' boxes."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert demo(tmp_path / "demo", SEED, None, scale="tiny") == 0
    last = [line for line in said.getvalue().splitlines() if line.startswith("Box found for ")]
    assert [line.split(",")[0] for line in last[:2]] == ["Box found for 2 of 2 cancers", "Box found for 0 of 2 cancers"]
    for number in (1, 2):
        folder = tmp_path / "demo" / f"film-{number}"
        assert {read_header(path).kind for path in (folder / "exam").iterdir()} == {"film"}
        assert (folder / "report.html").is_file()
        assert json.loads((folder / "run.json").read_text())["method"]["weights"]["name"] == "mammo"
    with redirect_stdout(io.StringIO()):  # a second demo replaces the first
        assert demo(tmp_path / "demo", SEED, None, scale="tiny") == 0
