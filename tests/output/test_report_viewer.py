"""The report in a real browser, as a radiologist uses it: by mouse, by keys alone, by fingers."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.opened import Opened, open_report
from support.results import HEIGHT, WIDTH, bell, exam_result, grey, view_result

from mm3d.output.predictions import Finding
from mm3d.output.result import Method, OperatingPoint, ReadProblem

HOSTILE = (
    "<!--<script </script><script>document.title='taken'</script>"
    "<img src=x onerror=\"document.title='taken'\">&lt;{{program}}'\""
)

# All that keys change, as text.
STATE = """() => JSON.stringify([
    state.threshold, state.marks, state.invert, state.sync, state.tool, state.window, Boolean(state.alone),
    state.slab, state.thickness, state.prior, Boolean(state.playing), state.active.view.ruler,
    panes.indexOf(state.active), list.shown().indexOf(state.selected), document.getElementById("help").open,
    panes.map(({ views, view }) => view && [views.indexOf(view), view.wanted, view.zoom, view.shift]),
])"""


def test_views_hang_with_chest_walls_facing_and_open_at_their_top_finding(opened: Opened) -> None:
    boxes = [opened.pane(name).bounding_box() for name in ("Right CC", "Left CC", "Right MLO", "Left MLO")]
    rcc, lcc, rmlo, lmlo = (box for box in boxes if box)
    assert rcc["x"] == rmlo["x"] < lcc["x"] == lmlo["x"]
    assert rcc["y"] == lcc["y"] < rmlo["y"] == lmlo["y"]
    opened.is_on("Right CC", 6)
    opened.is_on("Left CC", 3)  # the volume, not the mammogram
    opened.is_on("Right MLO", 20)
    expect(opened.pane("Left MLO")).to_contain_text("not in this exam")
    expect(opened.pane("Left MLO")).not_to_contain_text("could not be read")
    expect(opened.page.locator("#scores dt")).to_have_text(["Exam", "Right", "Left"])
    expect(opened.page.locator("#scores dd")).to_have_text(["0.90", "0.90", "0.45"])
    expect(opened.page.get_by_role("note")).to_contain_text(
        "Not for clinical use. Weights mini-1: Trained on synthetic"
    )


def test_a_view_that_could_not_be_read_is_not_said_to_be_missing(browser: Browser, tmp_path: Path) -> None:
    """Nobody would send for the images again."""
    report = open_report(
        browser,
        tmp_path,
        exam_result(problems=(ReadProblem("It is cut off.", "L", "MLO"), ReadProblem("It is cut off.", "R", "CC"))),
    )
    expect(report.pane("Left MLO")).to_contain_text("could not be read")
    expect(report.pane("Left MLO")).not_to_contain_text("not in this exam")
    report.is_on("Right CC", 6)  # another image of it is there
    report.close()


def test_wheel_keys_drag_and_slider_change_the_slice(opened: Opened) -> None:
    page, stage = opened.page, opened.pane("Right CC").locator(".stage")
    stage.hover()
    page.mouse.wheel(0, 100)
    opened.is_on("Right CC", 7)
    page.mouse.wheel(0, -100)
    page.mouse.wheel(0, -100)
    opened.is_on("Right CC", 5)
    for key, z in (("ArrowDown", 6), ("ArrowUp", 5), ("PageDown", 10), ("PageUp", 5), ("End", 19), ("Home", 0)):
        page.keyboard.press(key)
        opened.is_on("Right CC", z)
    page.keyboard.press("ArrowUp")
    opened.is_on("Right CC", 0)  # there is nothing before the first
    drag(page, stage, 0, 120)
    expect(opened.pane("Right CC")).not_to_have_attribute("data-slice", "0")
    rail = opened.pane("Right CC").get_by_role("slider")
    box = rail.bounding_box()
    assert box
    rail.click(position={"x": 5, "y": box["height"] * (12.5 / 20)})
    opened.is_on("Right CC", 12)
    expect(rail).to_have_attribute("aria-valuenow", "13")
    opened.is_on("Right MLO", 20)  # the others stay


def drag(page: Page, at: Locator, dx: float, dy: float, button: str = "left") -> None:
    box = at.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3
    page.mouse.move(x, y)
    page.mouse.down(button=button)  # type: ignore[arg-type]
    page.mouse.move(x + dx, y + dy, steps=4)
    page.mouse.up(button=button)  # type: ignore[arg-type]


def test_marks_are_there_where_w_is_high_and_fade_elsewhere(opened: Opened) -> None:
    expect(opened.marks("Right CC").locator("text")).to_have_text(["1 · 0.90"])  # 2 is on slice 15, 5 scores too low
    mark = opened.marks("Right CC").first
    opacity = []
    for z in range(6, 11):
        expect(opened.pane("Right CC")).to_have_attribute("data-slice", str(z))
        opacity.append(float(mark.evaluate("mark => mark.style.opacity")))
        opened.page.keyboard.press("ArrowDown")
    assert opacity == sorted(opacity, reverse=True)
    assert opacity[0] == 1 > opacity[-1]
    opened.page.keyboard.press("Home")
    expect(opened.marks("Right CC")).to_have_count(0)


def test_the_box_lies_on_the_finding(browser: Browser, tmp_path: Path) -> None:
    """In a fitted view and in one zoomed and moved, the box is where its stored pixels are: here, a bright patch."""
    found = Finding((40, 100, 64, 140), 0.45, 3, slice_weights=bell(12, 3))
    view = view_result("L", "CC", "DBT", 12, found)
    patch = np.zeros((HEIGHT, WIDTH), np.uint8)
    patch[100:140, 40:64] = 255
    exam = exam_result([replace(view, frames=np.maximum(view.frames, patch))])
    report = open_report(browser, tmp_path, exam)
    pane = report.pane("Left CC")
    for zoom in ("1.6×", ""):
        report.drawn()
        box = report.marks("Left CC").locator("rect").bounding_box()
        assert box
        # Boxes are drawn 4 pixels larger than they are, with lines of 2.5 pixels.
        inner = (box["x"] + 5.25, box["y"] + 5.25, box["x"] + box["width"] - 5.25, box["y"] + box["height"] - 5.25)
        assert inner == pytest.approx(bright(pane), abs=2)
        for key in ("+", "+", "Shift+ArrowLeft", "Shift+ArrowLeft") if zoom else ("0",):
            report.page.keyboard.press(key)
        expect(pane.locator(".settings")).to_have_text(zoom)
    report.close()


def bright(pane: Locator) -> tuple[float, ...]:
    """x1, y1, x2, y2 of the bright pixels of an image, in CSS pixels of the page."""
    edges = pane.locator("canvas.image").evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const xs = [], ys = [];
            for (let i = 0; i < canvas.width * canvas.height; i++) {
                if (data[4 * i] > 165) xs.push(i % canvas.width), ys.push(Math.floor(i / canvas.width));
            }
            const { left, top } = canvas.getBoundingClientRect();
            const from = (list, start) => start + list.reduce((a, b) => Math.min(a, b)) / devicePixelRatio;
            const to = (list, start) => start + (list.reduce((a, b) => Math.max(a, b)) + 1) / devicePixelRatio;
            return [from(xs, left), from(ys, top), to(xs, left), to(ys, top)];
        }"""
    )
    return tuple(edges)


def test_the_threshold_hides_boxes_and_the_page_says_what_is_not_marked(opened: Opened) -> None:
    page, told, slider = opened.page, opened.page.locator("#told"), opened.page.get_by_label("Show scores from")
    expect(told).to_have_text("Not marked: 1 finding scores below the operating point of 0.30.")
    slider.fill("0.85")
    expect(opened.marks("Right CC")).to_have_count(1)
    expect(opened.marks("Right MLO")).to_have_count(0)
    expect(page.locator(".finding")).to_have_count(1)
    slider.fill("0.95")
    expect(opened.marks("Right CC")).to_have_count(0)
    expect(told).to_have_text("Nothing is marked: no finding reaches 0.95; 6 findings score below it.")
    slider.fill("0")
    expect(page.locator(".finding")).to_have_count(6)
    expect(page.locator(".divider")).to_have_text("Below the operating point")
    page.get_by_role("button", name="Back to the operating point").click()
    expect(page.locator(".finding")).to_have_count(5)
    page.get_by_role("button", name="Marks").click()
    expect(opened.marks("Right CC")).to_have_count(0)
    expect(page.locator(".finding")).to_have_count(5)


def test_an_operating_point_between_the_slider_s_steps_is_kept(browser: Browser, tmp_path: Path) -> None:
    report = open_report(browser, tmp_path, exam_result(threshold=0.4501))
    for _ in range(2):
        expect(report.page.locator(".finding")).to_have_count(3)  # 0.45 is below it
        expect(report.page.locator("#told")).to_contain_text("the operating point of 0.450")
        report.page.get_by_label("Show scores from").fill("0.45")  # its nearest step, and it is meant
    report.close()


def test_nothing_found_is_said(browser: Browser, tmp_path: Path) -> None:
    report = open_report(browser, tmp_path, exam_result([view_result("L", "MLO", "DBT", 9)]))
    expect(report.page.locator("#told")).to_have_text("Nothing is marked: the detector proposes no finding.")
    report.is_on("Left MLO", 4)  # the middle
    expect(report.page.locator(".pane")).to_have_count(1)
    expect(report.page.locator("#absent")).to_have_text("Not in this exam: R CC, L CC, R MLO.")
    report.close()


def test_a_finding_of_the_list_moves_its_view(opened: Opened) -> None:
    page = opened.page
    expect(page.locator("#findings > li")).to_have_count(4)
    first = page.locator("#findings > li").first.locator(".finding")
    expect(first).to_have_count(2)  # CC and MLO of one lesion together
    page.get_by_role(
        "button", name="Finding 2, Right CC DBT, slice 16, likely 14 to 18, 12 × 12 mm, score 0.50"
    ).click()
    opened.is_on("Right CC", 15)
    expect(opened.marks("Right CC").locator("text")).to_have_text(["2 · 0.50"])
    page.get_by_role("button", name="Finding 4, Left CC FFDM").click()  # the mammogram comes forward
    opened.is_on("Left CC", 0)
    expect(opened.marks("Left CC").locator("text")).to_have_text(["4 · 0.40"])
    opened.pane("Left CC").get_by_role("button", name="DBT").click()
    opened.is_on("Left CC", 3)


def test_the_chosen_finding_stays_in_sight_on_other_slices(opened: Opened) -> None:
    """Who leaves its slices to see what is above and below still knows where to look; of the others nothing is left."""
    opened.page.keyboard.press("n")
    opened.page.keyboard.press("End")
    opened.is_on("Right CC", 19)
    ghost = opened.marks("Right CC").filter(has_text="1 ·")
    expect(ghost).to_have_count(1)
    assert 0 < float(ghost.evaluate("mark => mark.style.opacity")) < 0.5
    opened.page.get_by_role("button", name="Finding 3, Left CC").click()
    expect(ghost).to_have_count(0)


def test_a_jump_in_a_zoomed_view_brings_the_finding_into_the_middle(opened: Opened) -> None:
    pane = opened.pane("Right CC")
    pane.locator(".stage").hover()
    for key in ("+",) * 6:
        opened.page.keyboard.press(key)
    opened.page.get_by_role("button", name="Finding 2, Right CC DBT").click()
    opened.drawn()
    box, stage = opened.marks("Right CC").locator("rect").bounding_box(), pane.locator(".stage").bounding_box()
    assert box
    assert stage
    assert abs(box["x"] + box["width"] / 2 - stage["x"] - stage["width"] / 2) < 0.1 * stage["width"]
    assert abs(box["y"] + box["height"] / 2 - stage["y"] - stage["height"] / 2) < 0.1 * stage["height"]


def test_the_next_finding_is_the_next_that_is_shown(opened: Opened) -> None:
    """N never leads to a finding that the threshold hides."""
    opened.page.get_by_label("Show scores from").fill("0.48")
    opened.page.locator("body").click(position={"x": 2, "y": 2})  # away from the slider, which takes keys for itself
    chosen = opened.page.locator(".finding[aria-current=true]")
    for told in ("score 0.90", "score 0.80", "score 0.50", "score 0.90"):
        opened.page.keyboard.press("n")
        expect(chosen).to_have_attribute("aria-label", re.compile(told))


def test_the_bar_of_the_visible_range_and_the_box_lead_to_the_finding(opened: Opened) -> None:
    opened.pane("Right CC").locator(".bar").first.click()  # the lower score is drawn first
    opened.is_on("Right CC", 15)
    expect(opened.page.locator(".finding[aria-current=true]")).to_contain_text("slice 16")
    opened.marks("Right MLO").locator("rect").click()
    expect(opened.page.locator(".finding[aria-current=true]")).to_contain_text("slice 21")


def test_cc_and_mlo_scroll_together_by_relative_depth_if_asked(opened: Opened) -> None:
    opened.page.keyboard.press("s")
    opened.pane("Right CC").locator(".stage").hover()
    opened.page.keyboard.press("End")
    opened.is_on("Right MLO", 29)
    opened.page.keyboard.press("PageUp")
    opened.is_on("Right CC", 14)
    opened.is_on("Right MLO", 21)  # 14 / 19 of 29
    opened.is_on("Left CC", 3)  # another breast
    opened.page.keyboard.press("n")  # a jump is to one view
    opened.is_on("Right CC", 6)
    opened.is_on("Right MLO", 21)


def test_window_zoom_invert_and_reset(opened: Opened) -> None:
    pane = opened.pane("Right CC")
    settings = pane.locator(".settings")
    read = """canvas => canvas.getContext("2d").getImageData(canvas.width - 20, canvas.height / 2, 1, 1).data[0]"""
    drag(opened.page, pane.locator(".stage"), 0, -60, button="right")
    expect(settings).to_contain_text("W 100 L")
    brighter = pane.locator("canvas.image").evaluate(read)
    assert brighter > grey(6) + 20
    drag(opened.page, pane.locator(".stage"), 60, 0, button="right")
    expect(settings).not_to_contain_text("W 100")
    opened.page.get_by_role("button", name="Reset").click()
    expect(settings).to_be_empty()
    opened.is_on("Right CC", 6)
    opened.page.keyboard.press("i")
    expect(opened.page.get_by_role("button", name="Invert")).to_have_attribute("aria-pressed", "true")
    opened.drawn()
    assert abs(pane.locator("canvas.image").evaluate(read) - (255 - grey(6))) <= 2
    opened.page.keyboard.press("i")
    pane.locator(".stage").hover()
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, -100)
    opened.page.keyboard.up("Control")
    expect(settings).to_have_text("1.3×")
    opened.page.get_by_role("radio", name="Pan").click()
    before = opened.marks("Right CC").locator("rect").bounding_box()
    drag(opened.page, pane.locator(".stage"), -30, 10)
    opened.drawn()
    after = opened.marks("Right CC").locator("rect").bounding_box()
    assert before
    assert after
    assert (after["x"] - before["x"], after["y"] - before["y"]) == pytest.approx((-30, 10), abs=1)
    opened.is_on("Right CC", 6)
    pane.locator(".stage").dblclick()
    expect(opened.pane("Left CC")).to_be_hidden()
    opened.page.keyboard.press("Escape")
    expect(opened.pane("Left CC")).to_be_visible()


def test_keys_alone_are_enough(opened: Opened) -> None:
    """Every stop of the Tab key is seen and named, and every part is reached by it."""
    names = []
    for _ in range(20):
        opened.page.keyboard.press("Tab")
        focus = opened.page.evaluate(
            """() => {
                const at = document.activeElement;
                const pane = at.closest(".pane");
                const style = pane ? getComputedStyle(pane, "::after") : getComputedStyle(at);
                const [line, width] = pane
                    ? [style.borderTopStyle, style.borderTopWidth] : [style.outlineStyle, style.outlineWidth];
                const name = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
                return [name, line === "none" ? 0 : parseFloat(width)];
            }"""
        )
        if focus[0] in names or "mm3d" in focus[0]:
            break
        names.append(focus[0])
        assert focus[1] >= 2, f"the focus on {focus[0]} is not seen"
    assert names[:5] == ["Scroll", "Zoom out", "Zoom in", "Play", "What is shown of a volume"]
    assert names[5:10] == ["Marks", "Invert", "Sync", "Reset", "Keys"]
    assert names[10:13] == [
        "Slice of Right CC, tomosynthesis",
        "Slice of Left CC, tomosynthesis",
        "Slice of Right MLO, tomosynthesis",
    ]
    assert names[13] == "Show scores from"
    assert len(names[14:]) == 5
    for name in names[14:]:
        assert name.startswith("Finding")
    opened.page.keyboard.press("?")
    expect(opened.page.get_by_role("dialog")).to_be_visible()
    opened.page.keyboard.press("Escape")
    expect(opened.page.get_by_role("dialog")).to_be_hidden()
    opened.page.keyboard.press("n")
    opened.page.keyboard.press("n")
    opened.is_on("Right MLO", 20)
    opened.page.keyboard.press("ArrowRight")  # from the last view to the first
    opened.page.keyboard.press("ArrowDown")
    opened.is_on("Right CC", 7)
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("m")
    opened.is_on("Left CC", 0)
    opened.page.keyboard.press("f")
    expect(opened.pane("Right CC")).to_be_hidden()
    for key in ("T",) * 12:
        opened.page.keyboard.press(key.lower())
    expect(opened.page.locator("#threshold-value")).to_have_text("0.90")


def test_every_key_of_the_help_page_does_something(opened: Opened) -> None:
    """The help names keys by what is on them; a key the program does not know would do nothing, silently."""
    known = set(opened.page.evaluate("() => Object.keys(KEYS)"))
    named = {
        "↑": "ArrowUp",
        "↓": "ArrowDown",
        "←": "ArrowLeft",
        "→": "ArrowRight",
        "Page ↑": "PageUp",
        "Page ↓": "PageDown",
    }
    told: set[str] = {"=", "?"}  # another face of +, and the key that opens the help
    for text in opened.page.locator(".keys dt kbd").all_text_contents():
        if text == "Shift":
            continue
        if text == "↑ ↓ ← →":
            told |= {f"Shift+{named[arrow]}" for arrow in "↑↓←→"}
        elif text.startswith("Shift "):
            told.add(f"Shift+{text[-1].lower()}")
        else:
            told.add(named.get(text, text.lower() if len(text) == 1 else "Escape" if text == "Esc" else text))
    assert told == known
    opened.page.keyboard.press("ArrowRight")  # Left CC, which has two images
    # Those at the end undo what others did, or change the slice by themselves; the help lets no other key through. The
    # magnifier moves with what moves the image, and there is no prior exam here.
    last = ["g", "Escape", "0", "k", "?", "o"]
    for key in (*sorted(known - set(last)), *last[:-1]):
        before = opened.page.evaluate(STATE)
        opened.page.keyboard.press(key)
        assert opened.page.evaluate(STATE) != before, key


def test_two_fingers_zoom_and_one_scrolls(browser: Browser, tmp_path: Path) -> None:
    report = open_report(browser, tmp_path, exam_result(), viewport={"width": 820, "height": 1180}, has_touch=True)
    stage = report.pane("Right CC").locator(".stage").bounding_box()
    assert stage
    x, y = stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2
    fingers = report.context.new_cdp_session(report.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        fingers.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": px, "y": py, "id": n} for n, (px, py) in enumerate(points)]},
        )

    touch("touchStart", (x, y))
    touch("touchMove", (x, y + 60))
    touch("touchEnd")
    expect(report.pane("Right CC")).not_to_have_attribute("data-slice", "6")
    now = report.pane("Right CC").get_attribute("data-slice")
    touch("touchStart", (x - 30, y), (x + 30, y))
    touch("touchMove", (x - 60, y), (x + 60, y))
    touch("touchEnd")
    expect(report.pane("Right CC").locator(".settings")).to_have_text("2.0×")
    assert report.pane("Right CC").get_attribute("data-slice") == now
    sizes = report.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]  # nothing sticks out
    report.close()


def test_hostile_strings_are_only_text(browser: Browser, tmp_path: Path) -> None:
    method = Method(HOSTILE, HOSTILE, OperatingPoint(0.3))
    exam = exam_result(title=HOSTILE, method=method, problems=(ReadProblem(HOSTILE),))
    report = open_report(browser, tmp_path, exam)
    assert report.page.title() == f"{HOSTILE} · mm3d"
    expect(report.page.locator("#title")).to_have_text(HOSTILE)
    expect(report.page.locator("#banner")).to_have_text(f"Weights {HOSTILE}: {HOSTILE}")
    expect(report.page.locator("#problems li")).to_have_text(HOSTILE)
    assert report.page.locator("img").count() == 0
    report.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_images_are_on_black_in_light_and_dark(browser: Browser, tmp_path: Path, scheme: str) -> None:
    report = open_report(browser, tmp_path, exam_result(), color_scheme=scheme)
    colour = """element => getComputedStyle(element).backgroundColor.match(/[0-9]+/g).slice(0, 3).map(Number)"""
    assert report.pane("Right CC").evaluate(colour) == [0, 0, 0]
    panel = report.page.locator("aside").evaluate(colour)
    assert (min(panel) > 200) if scheme == "light" else (max(panel) < 60)
    report.close()
