"""What a reader measures, plays and compares with in a report; and whether everybody can use it, in two browsers."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from support.firefox import start_firefox
from support.opened import Opened, open_report
from support.results import HEIGHT, WIDTH, bell, exam_result, finding, grey, view_result

from mm3d.output.predictions import Finding
from mm3d.output.report.page import write_report

TARGET_SIZE = {"rules": {"target-size": {"enabled": True}}}  # of axe: WCAG 2.2 AA, for fingers
FIRST = "canvas => canvas.getContext('2d').getImageData({}, canvas.height / 2, 1, 1).data[0]"
AIR, TISSUE = FIRST.format("5"), FIRST.format("canvas.width - 20")  # of a right breast


def read(opened: Opened, what: str, name: str = "Right CC") -> Any:
    opened.drawn()
    return opened.pane(name).locator("canvas.image").evaluate(what)


def middle(box: Any) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_captions_of_neighbours_move_apart(browser: Browser, tmp_path: Path) -> None:
    """Two captions on each other say neither."""
    boxes = [(60, 100, 84, 124), (70, 108, 98, 132), (78, 112, 106, 138), (62, 124, 80, 140), (10, 1, 40, 20)]
    found = tuple(Finding((*map(float, box),), 0.9 - 0.1 * n) for n, box in enumerate(boxes))
    report = open_report(browser, tmp_path, exam_result([view_result("R", "CC", "FFDM", 1, *found)]))
    texts = [text.bounding_box() for text in report.marks("Right CC").locator("text").all()]
    labels = [label.bounding_box() for label in report.pane("Right CC").locator(".label").all()]
    placed = [box for box in (*texts, *labels) if box]
    assert len(placed) == 7
    for n, a in enumerate(placed):
        for b in placed[:n]:
            apart = abs(middle(a)[0] - middle(b)[0]) - (a["width"] + b["width"]) / 2
            above = abs(middle(a)[1] - middle(b)[1]) - (a["height"] + b["height"]) / 2
            assert max(apart, above) > -3, (a, b)
    report.close()


def test_one_view_has_all_of_the_screen_and_two_of_a_breast_half_each(browser: Browser, tmp_path: Path) -> None:
    for views, columns in (([("L", "MLO")], 1), ([("L", "CC"), ("L", "MLO")], 2)):
        exam = exam_result([view_result(side, position, "FFDM", 1) for side, position in views])  # type: ignore[arg-type]
        report = open_report(browser, tmp_path, exam)
        hanging = report.page.locator("#hanging").bounding_box()
        assert hanging
        for side, position in views:
            box = report.pane(f"{'Left' if side == 'L' else 'Right'} {position}").bounding_box()
            assert box
            assert box["width"] >= hanging["width"] / columns - 2
            assert box["height"] == hanging["height"]
        expect(report.page.get_by_role("button", name="Play")).to_be_hidden()  # there is no volume
        larger = report.pane("Left CC").get_by_role("button", name="Left CC alone, and back")
        if columns == 2:
            larger.click()
            expect(report.pane("Left MLO")).to_be_hidden()
            larger.click()
            expect(report.pane("Left MLO")).to_be_visible()
        report.close()


def test_a_view_without_a_mark_opens_in_the_middle(browser: Browser, tmp_path: Path) -> None:
    """Its highest finding is below the operating point, and so nothing leads the reader to that slice."""
    report = open_report(browser, tmp_path, exam_result([view_result("R", "CC", "DBT", 21, finding(0.1, 2, 21))]))
    report.is_on("Right CC", 10)
    report.close()


def test_a_window_leaves_one_background(browser: Browser, tmp_path: Path) -> None:
    """Air in the image and what is around the image stay alike, however the grey values are set."""
    view = view_result("R", "CC", "FFDM", 1)
    view = replace(view, frames=np.maximum(view.frames, 20))  # air is seldom 0
    report = open_report(browser, tmp_path, exam_result([view]))
    corner = (
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, 1).data].filter((_, i) => i % 4 == 0)"
    )
    for keys in ("", "CC" + "b" * 6, "i"):
        for key in keys:
            report.page.keyboard.press(f"Shift+{key.lower()}" if key.isupper() else key)
        row = read(report, corner)
        assert max(row) - min(row) <= 4, keys  # the noise of JPEG
    report.close()


def test_zooming_brings_the_selected_finding_into_the_middle(opened: Opened) -> None:
    opened.page.keyboard.press("n")
    for _ in range(5):
        opened.page.keyboard.press("+")
    opened.drawn()
    box, stage = opened.marks("Right CC").locator("rect").bounding_box(), opened.pane("Right CC").locator(".stage")
    assert middle(box) == pytest.approx(middle(stage.bounding_box()), abs=3)


def test_a_ruler_measures_millimetres_by_mouse_and_by_keys(opened: Opened) -> None:
    page, pane = opened.page, opened.pane("Right CC")
    page.get_by_role("radio", name="Measure").click()
    per_mm = pane.locator(".scale").evaluate(
        "scale => scale.getBoundingClientRect().width / parseFloat(scale.textContent)"
    )
    x, y = middle(pane.locator(".stage").bounding_box())
    page.mouse.move(x - 40, y)
    page.mouse.down()
    page.mouse.move(x + 20, y, steps=3)
    page.mouse.up()
    length = pane.locator(".measure text")
    assert float(str(length.text_content()).removesuffix(" mm")) == pytest.approx(60 / per_mm, abs=0.6)
    handle = pane.get_by_role("button", name="Ruler of Right CC, end 2")
    handle.focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    assert float(str(length.text_content()).removesuffix(" mm")) == pytest.approx(90 / per_mm, abs=0.6)
    opened.is_on("Right CC", 6)  # the arrows moved nothing else
    page.keyboard.press("Delete")
    expect(pane.locator(".measure")).to_be_hidden()
    page.keyboard.press("r")
    expect(pane.get_by_role("button", name="Ruler of Right CC, end 1")).to_be_focused()
    page.keyboard.press("r")
    expect(pane.locator(".measure")).to_be_hidden()


def test_without_the_size_of_pixels_nothing_is_said_in_millimetres(browser: Browser, tmp_path: Path) -> None:
    view = replace(view_result("R", "CC", "FFDM", 1, Finding((40, 100, 64, 124), 0.9)), pixel_spacing=None)
    report = open_report(browser, tmp_path, exam_result([view]))
    report.page.keyboard.press("r")
    expect(report.pane("Right CC").locator(".scale")).to_have_text("no scale: size of pixels unknown")
    expect(report.pane("Right CC").locator(".measure text")).to_contain_text("pixels")
    expect(report.page.locator("body")).not_to_contain_text(re.compile(r"[0-9] mm"))
    report.close()


def test_a_slab_is_the_mean_or_the_maximum_of_slices(browser: Browser, tmp_path: Path) -> None:
    values = np.array([10, 20, 90, 20, 10, 40], np.uint8)  # of slices; the middle one is 90
    frames = np.broadcast_to(values[:, None, None], (6, HEIGHT, WIDTH)).copy()
    report = open_report(browser, tmp_path, exam_result([replace(view_result("R", "CC", "DBT", 6), frames=frames)]))
    settings = report.pane("Right CC").locator(".settings")
    assert read(report, TISSUE) == pytest.approx(90, abs=1)
    report.page.get_by_label("What is shown of a volume").select_option("mean")
    report.page.get_by_label("Slices of the slab").fill("3")
    report.page.keyboard.press("Enter")
    expect(settings).to_have_text("mean of 2 to 4")
    assert read(report, TISSUE) == pytest.approx(130 / 3, abs=1)
    report.page.locator("h1").click()
    report.page.keyboard.press("a")
    report.page.keyboard.press("ArrowDown")
    expect(settings).to_have_text("max of 3 to 5")
    assert read(report, TISSUE) == pytest.approx(90, abs=1)
    for key in ("]", "]", "ArrowDown"):
        report.page.keyboard.press(key)
    expect(settings).to_have_text("max of 3 to 6")  # at the end, a slab has the slices that there are
    report.page.keyboard.press("0")
    expect(settings).to_be_empty()
    report.close()


def test_slices_play_to_and_fro_until_stopped(opened: Opened) -> None:
    opened.page.keyboard.press("ArrowRight")  # Left CC, 12 slices, on 3
    opened.page.evaluate("""() => {
        const [pane, seen] = [panes[1].section, new Set()];
        window.ends = new Promise((done, give_up) => {
            setTimeout(give_up, 60000);
            new MutationObserver(() => {
                seen.add(pane.dataset.slice);
                if (seen.has("11") && seen.has("0")) done();
            }).observe(pane, { attributes: true });
        });
    }""")
    opened.page.get_by_role("button", name="Play").click()
    opened.page.evaluate("ends")  # the last slice and the first
    opened.page.keyboard.press("k")
    stopped = opened.page.evaluate("state.active.view.wanted")
    time.sleep(0.5)
    assert opened.page.evaluate("state.active.view.wanted") == stopped
    opened.is_on("Right CC", 6)


def test_the_magnifier_shows_the_place_under_it_larger(opened: Opened) -> None:
    page, glass = opened.page, opened.pane("Right CC").locator(".glass")
    expect(glass).to_be_hidden()
    page.keyboard.press("n")
    page.keyboard.press("g")
    opened.drawn()
    where = opened.marks("Right CC").locator("rect").bounding_box()
    assert middle(glass.bounding_box()) == pytest.approx(middle(where), abs=2)  # of the selected finding
    assert abs(glass.evaluate("canvas => canvas.getContext('2d').getImageData(95, 95, 1, 1).data[0]") - grey(6)) <= 2
    page.keyboard.press("Shift+ArrowRight")
    assert middle(glass.bounding_box())[0] == pytest.approx(middle(where)[0] + 40, abs=2)
    stage = opened.pane("Left CC").locator(".stage").bounding_box()
    page.mouse.move(*middle(stage))
    expect(glass).to_be_hidden()
    assert middle(opened.pane("Left CC").locator(".glass").bounding_box()) == pytest.approx(middle(stage), abs=2)
    page.keyboard.press("g")
    expect(opened.pane("Left CC").locator(".glass")).to_be_hidden()


def test_a_finger_measures_and_magnifies(browser: Browser, tmp_path: Path) -> None:
    size = {"width": 820, "height": 1180}
    report = open_report(browser, tmp_path, exam_result(), viewport=size, has_touch=True)
    x, y = middle(report.pane("Right CC").locator(".stage").bounding_box())
    fingers = report.context.new_cdp_session(report.page)

    def drag() -> None:
        for kind, at in (("touchStart", x - 30), ("touchMove", x), ("touchMove", x + 30), ("touchEnd", None)):
            points = [] if at is None else [{"x": at, "y": y}]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    report.page.get_by_role("radio", name="Measure").tap()
    drag()
    expect(report.pane("Right CC").locator(".measure text")).to_contain_text(" mm")
    # A tap right after the fingers of the other session is sometimes lost, so this is a click.
    report.page.get_by_role("radio", name="Magnify").check()
    drag()
    glass = report.pane("Right CC").locator(".glass")
    expect(glass).to_be_visible()
    assert middle(glass.bounding_box()) == pytest.approx((x + 30, y), abs=2)
    report.is_on("Right CC", 6)
    report.close()


def test_the_depth_of_a_finding_is_said_with_how_sure_it_is(browser: Browser, tmp_path: Path) -> None:
    flat = Finding((100, 100, 124, 124), 0.5, 4, slice_weights=(0.05,) * 20)
    exam = exam_result([view_result("R", "CC", "DBT", 20, finding(0.9, 11, 20), flat)])
    report = open_report(browser, tmp_path, exam)
    depth = report.pane("Right CC").locator(".depth")
    expect(depth).to_have_text("1: slice 12, likely 10 to 14")
    assert report.pane("Right CC").locator(".likely").all_inner_texts() == ["10", "14"]
    texts = report.page.locator(".deep").all_inner_texts()
    assert texts == ["slice 12, likely 10 to 14", "slice 5, likely 1 to 20 (depth unsure)"]
    report.page.get_by_role("button", name="Finding 2").click()
    expect(depth).to_have_text("2: slice 5, likely 1 to 20 (depth unsure)")
    report.close()


def test_a_finding_away_from_the_slices_that_count_is_not_said_to_be_sure(browser: Browser, tmp_path: Path) -> None:
    found = Finding((40, 100, 64, 124), 0.9, 2, slice_weights=bell(30, 10))
    report = open_report(browser, tmp_path, exam_result([view_result("R", "CC", "DBT", 30, found)]))
    expect(report.pane("Right CC").locator(".depth")).to_have_text("1: slice 3, likely 3 to 13")
    report.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_axe_finds_nothing_against_wcag_aa(
    browser: Browser, tmp_path: Path, scheme: str, size: tuple[int, int]
) -> None:
    """Contrast, names, roles: what keeps people from using the page."""
    viewport = {"width": size[0], "height": size[1]}
    report = open_report(browser, tmp_path, exam_result(), viewport=viewport, color_scheme=scheme)
    report.page.keyboard.press("n")
    report.page.get_by_label("Show scores from").fill("0")
    for _ in range(2):
        found = Axe().run(report.page, options=TARGET_SIZE).response["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
        report.page.keyboard.press("?")  # the help, too
    report.close()


def test_the_report_works_in_firefox(tmp_path: Path) -> None:
    write_report(exam_result(), tmp_path / "report.html")
    with start_firefox(tmp_path / "profile") as firefox:
        firefox.open(tmp_path / "report.html", 1280, 800)
        for _ in range(100):
            if firefox.evaluate("panes.every((pane) => !pane.view || pane.view.shown === pane.view.wanted)"):
                break
            time.sleep(0.1)
        shown = "[...document.querySelectorAll('.pane')].map((pane) => pane.dataset.slice ?? pane.textContent)"
        assert firefox.evaluate(shown) == ["6", "3", "20", "L MLOnot in this exam"]
        firefox.press("n", "ArrowDown", "+")
        drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        firefox.evaluate(drawn)
        assert firefox.evaluate(shown)[0] == "7"
        assert abs(firefox.evaluate(f"({TISSUE})(document.querySelector('canvas.image'))") - grey(7)) <= 2
        firefox.press("d", "d", "d")
        x, y, width, height = firefox.evaluate(
            "(({x, y, width, height}) => [x, y, width, height])(panes[0].stage.getBoundingClientRect())"
        )
        firefox.drag((x + width / 2, y + height / 2), (x + width / 2 + 50, y + height / 2))
        assert firefox.evaluate("panes[0].ruler.length()").endswith(" mm")
        firefox.press("a", "a", "c", "g")
        firefox.evaluate(drawn)
        assert firefox.evaluate("panes[0].settings.textContent").startswith("max of 6 to 10 · 1.3×")
        assert firefox.complaints == []
