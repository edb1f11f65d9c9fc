"""The demo, as a stranger meets it: an exam, its results, and a page to look at."""

from pathlib import Path

import pytest
from exams import write_weights
from opened import Opened
from playwright.sync_api import Browser, expect

from mm3d.demo import demo, make_exam
from mm3d.dicom.header import read_header
from mm3d.predictions import read

SEED = 5
PANES = {"lcc": "Left CC", "lmlo": "Left MLO", "rcc": "Right CC", "rmlo": "Right MLO"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder, and its last line."""
    folder = tmp_path_factory.mktemp("demo")
    weights = write_weights(folder / "w.safetensors", operating_point=0.0)  # so that all is marked
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("mm3d.demo._say", lambda _, text: lines.append(text))
        assert demo(folder / "demo", SEED, weights, scale="tiny") == 0
    return folder / "demo", lines[-1]


def test_the_exam_has_four_views_and_a_cancer_and_the_last_line_says_where(shown: tuple[Path, str]) -> None:
    folder, last = shown
    assert {path.name for path in (folder / "exam").iterdir()} == {f"{view}.dcm" for view in PANES}
    assert {read_header(path).kind for path in (folder / "exam").iterdir()} == {"volume"}
    breasts = make_exam(folder.parent / "again", SEED, "tiny")
    assert (folder.parent / "again" / "lcc.dcm").read_bytes() == (folder / "exam" / "lcc.dcm").read_bytes()
    cancers = [(v, f) for breast in breasts for v in breast.views for f in v.findings if f.malignant]
    assert cancers
    for view, finding in cancers:
        assert f"a cancer in {view.laterality}{view.position}, slice {(finding.slice or 0) + 1}, x " in last
    assert last.count("found") + last.count("not marked") == len(cancers)
    assert f"Open {folder / 'report.html'} in a browser." in last
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
