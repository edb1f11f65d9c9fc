"""The set of three of `make hospital`: what a radiologist sees in OHIF, drawn by a real browser."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hospital import Hospital, run_hospital
from playwright.sync_api import Browser, Page, sync_playwright
from pydicom import dcmread
from support.nodes import wait_for
from support.orthanc import free_ports
from support.reports import installed, marked_by_highdicom

from mm3d.cli import DEMO_SEED
from mm3d.cli.demo import make_exam

PAGES = Path(sys.prefix) / "ohif" / "package" / "dist"  # the Makefile gets it
SECONDS = 120_000  # milliseconds, for a page on busy cores


@pytest.fixture
def viewer() -> Iterator[Browser]:
    """Chromium with WebGL by software. OHIF needs it, although `?cpu` lets it draw images without."""
    with sync_playwright() as playwright:
        arguments = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        launched = playwright.chromium.launch(executable_path=installed("chromium"), args=arguments)
        yield launched
        launched.close()


def open_report(page: Page, hospital: Hospital, study: str, frame: str) -> bool:
    """Open the measurement report, which shows this frame first, and take its findings over as OHIF's own
    measurements. Now and then OHIF does not draw them, if "Yes" is pressed while it is still loading: then False."""
    page.goto(f"http://127.0.0.1:{hospital.viewer}/viewer?StudyInstanceUIDs={study}&cpu")
    report = page.get_by_text("mm3d findings").first
    report.wait_for(timeout=SECONDS)
    page.get_by_text("Skip all").first.click(timeout=SECONDS)  # a tour for those who are here for the first time
    page.get_by_text("Confirm and hide").first.click(timeout=SECONDS)
    report.dblclick(timeout=SECONDS)
    page.get_by_text(frame).first.wait_for(timeout=SECONDS)
    page.wait_for_timeout(5000)  # it is drawn some time after that
    page.get_by_text("Yes", exact=True).first.click(timeout=SECONDS)
    page.wait_for_timeout(10_000)
    return page.locator("svg.svg-layer rect").count() > 0


def measured(page: Page) -> tuple[str, int, float, float]:
    """What OHIF says of the box that it draws: series, frame, area in mm² and mean of the pixels."""
    text = page.inner_text("body")
    series = re.findall(r"^(\w+ \w+) DBT synthetic$", text, re.MULTILINE)[-1]
    frame = re.findall(r"\((\d+)/\d+\)", text)[-1]
    drawn = page.locator("svg.svg-layer").first.text_content() or ""
    area, mean = (re.findall(rf"{name}: ([\d.]+)", drawn + text)[0] for name in ("Area", "Mean"))
    return series, int(frame), float(area), float(mean)


def test_ohif_draws_our_box_on_the_right_pixels_of_the_right_frame(viewer: Browser, tmp_path: Path) -> None:
    assert PAGES.is_dir(), f"{PAGES} is missing: make test gets it from npm"
    make_exam(tmp_path / "exam", DEMO_SEED, "mini")
    files = sorted((tmp_path / "exam").glob("*.dcm"))
    images = {str(ds.SOPInstanceUID): ds for ds in map(dcmread, files)}
    hospital = Hospital(tmp_path / "hospital", PAGES, *free_ports(5))
    with run_hospital(hospital):
        hospital.send(files)
        wait_for(lambda: "SR" in hospital.modalities(), "the reports in the archive", 240)
        (tmp_path / "report.dcm").write_bytes(hospital.find_object("1.2.840.10008.5.1.4.1.1.88.33"))
        marks = marked_by_highdicom(tmp_path / "report.dcm")
        instance, frame, _, _ = marks[0]
        ds = images[instance]
        for _ in range(5):
            page = viewer.new_page(viewport={"width": 1400, "height": 900})
            if drawn := open_report(page, hospital, ds.StudyInstanceUID, f"({frame}/{ds.NumberOfFrames})"):
                break
            page.close()
        assert drawn
        page.mouse.move(1250, 780)  # without a graphics card, OHIF shows the image in a corner: drag it to the middle
        page.mouse.down(button="middle")
        page.mouse.move(850, 480, steps=10)
        page.mouse.up(button="middle")
        page.wait_for_timeout(3000)
        page.screenshot(path=tmp_path / "ohif.jpg", type="jpeg", quality=70)
        series, shown, area, mean = measured(page)
        page.close()
    found = {}
    for instance, frame, box, _ in marks:
        ds = images[instance]
        found[ds.SeriesDescription.removesuffix(" DBT synthetic")] = (ds, frame, box)
    assert len(found) == 2
    ds, frame, (x1, y1, x2, y2) = found[series]
    assert shown == frame
    spacing = float(ds.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing[0])
    assert area == pytest.approx((x2 - x1) * (y2 - y1) * spacing**2, rel=0.01)
    assert frame is not None
    inside = ds.pixel_array[frame - 1, round(y1) : round(y2), round(x1) : round(x2)]
    assert mean == pytest.approx(np.mean(inside), rel=0.03)
    assert mean > 1.2 * np.mean(ds.pixel_array[frame - 1])  # a box elsewhere would show
