"""What the report says of scores and lesions: a score that nobody understands, or a lesion that counts twice."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from support.opened import Opened
from support.reports import measurements, trial_exam, write_trial
from support.results import bell, exam_result, finding, view_result

from mm3d.output.predictions import Finding, choose_distinct
from mm3d.output.report.page import explain_scores, number_lesions, write_report
from mm3d.output.result import Calibration, ExamResult, OperatingPoint
from mm3d.output.sr import write_measurement_report
from mm3d.shared.errors import InputError

LARGE, SMALL = (40.0, 100.0, 80.0, 140.0), (44.0, 104.0, 68.0, 124.0)  # one in the other, IoU 0.3


def found(box: tuple[float, ...], score: float, z: int = 5) -> Finding:
    return Finding(box, score, z, slice_weights=bell(20, z))


def page(result: ExamResult, path: Path) -> Any:
    """The data of the report."""
    write_report(result, path / "report.html")
    return json.loads(re.findall('id="exam">(.*?)</script>', (path / "report.html").read_text())[0])


@pytest.mark.parametrize("scores", [(0.9, 0.6), (0.6, 0.9)])
def test_a_box_in_a_box_is_marked_once_and_the_higher_score_counts(tmp_path: Path, scores: tuple[float, ...]) -> None:
    findings = (found(LARGE, scores[0]), found(SMALL, scores[1], 9))
    exam = exam_result([view_result("R", "CC", "DBT", 20, *findings)])
    best = max(findings, key=lambda finding: finding.score)
    assert [finding for _, finding in exam.marked()] == [best]
    (shown,) = page(exam, tmp_path)["views"][0]["findings"]  # the slider of the report does not bring it back
    assert (shown["box"], shown["number"]) == (list(best.box), 1)
    assert len(exam.predictions().table.scores) == 2  # evaluation gets all that the model found


def test_neighbours_that_only_overlap_are_lesions_of_their_own() -> None:
    """A second lesion beside the first must not disappear."""
    boxes = [LARGE, (65.0, 100.0, 105.0, 140.0), (40.0, 128.0, 60.0, 160.0), (0.0, 0.0, 0.0, 10.0)]
    assert choose_distinct([Finding(box, 0.9 - 0.1 * n) for n, box in enumerate(boxes)]) == [0, 1, 2, 3]


def test_a_lesion_of_cc_and_mlo_is_one_finding_with_two_places(tmp_path: Path) -> None:
    exam = exam_result(threshold=0.3)
    lesions = [[(view.view, finding.score) for view, finding in lesion] for lesion in exam.lesions()]
    assert lesions == [[("rcc", 0.9), ("rmlo", 0.8)], [("rcc", 0.5)], [("lcc", 0.45)], [("lcc", 0.4)]]
    trial = trial_exam(write_trial(tmp_path))
    views = [
        replace(view, findings=tuple(replace(f, lesion=0 if view.laterality == "L" else None) for f in view.findings))
        for view in trial.views
        if view.modality == "DBT"
    ]
    write_measurement_report(replace(trial, views=tuple(views)), tmp_path / "report.dcm")
    groups = measurements(tmp_path / "report.dcm").get_planar_roi_measurement_groups()
    names = [(group.tracking_identifier, str(group.tracking_uid)) for group in groups]
    assert [name for name, _ in names] == ["LCC DBT 1, LMLO DBT 1"] * 2 + ["RCC DBT 1", "RMLO DBT 1"]
    assert len({uid for _, uid in names}) == 4  # OHIF shows one box of those that share a UID


def test_a_hidden_box_does_not_take_a_number() -> None:
    exam = exam_result(
        [view_result("R", "CC", "DBT", 20, found(SMALL, 0.5), found(LARGE, 0.6), finding(0.4, 3, 20, 100))]
    )
    assert number_lesions(exam) == [[None, 1, 2]]


def with_point(exam: ExamResult, breast: float | None, **method: Any) -> ExamResult:
    return replace(exam, method=replace(exam.method, operating_point=OperatingPoint(0.3, breast=breast), **method))


def test_breasts_are_amber_by_their_own_operating_point_or_by_their_marks() -> None:
    """An exam without a mark was amber, because its score was compared with the findings' threshold."""
    quiet = exam_result([view_result("R", "CC", "DBT", 20, finding(0.1, 3, 20))])
    assert quiet.score > quiet.threshold
    assert quiet.suspicious == frozenset()
    assert exam_result().suspicious == {"L", "R"}
    assert with_point(quiet, 0.85).suspicious == {"R"}
    assert with_point(exam_result(), 0.85).suspicious == {"R"}
    assert with_point(exam_result(), 0.95).suspicious == frozenset()


def test_one_sentence_explains_the_scores() -> None:
    said = explain_scores(exam_result())
    assert said.count(".") == 1
    assert "also those too low to be marked; it is amber if a finding in it is marked" in said
    assert "it is amber if it reaches its own operating point of 0.85" in explain_scores(
        with_point(exam_result(), 0.85)
    )
    assert "that of its highest finding" in explain_scores(with_point(exam_result(), None, predict={"scores": "max"}))


def test_a_calibration_gives_percentages(tmp_path: Path) -> None:
    calibration = Calibration(1.0, 0.0, "1000 breasts of a screening")
    assert calibration.percent(0.25) == pytest.approx(25)
    assert Calibration(2.0, -1.0, "").percent(0.5) == pytest.approx(26.894, abs=1e-3)
    assert [round(Calibration(50.0, 0.0, "").percent(score)) for score in (0.0, 1.0)] == [0, 100]
    content = page(with_point(exam_result(), None, calibration=calibration), tmp_path)
    assert content["percents"] == pytest.approx({"R": 90, "L": 45})
    assert "that had cancer (1000 breasts of a screening)" in content["explanation"]
    assert page(exam_result(), tmp_path)["percents"] == {}
    for slope, intercept in ((0.0, 1.0), (-1.0, 0.0), (float("nan"), 0.0), (1.0, float("inf"))):
        with pytest.raises(InputError, match="calibration"):
            Calibration(slope, intercept, "")


def test_the_page_shows_the_sentence_the_colour_the_percentages_and_the_warning(
    browser: Browser, tmp_path: Path
) -> None:
    calibration = Calibration(1.0, 0.0, "a screening")
    exam = with_point(exam_result(warnings=("L CC: the volume has only 1 slice.",)), 0.85, calibration=calibration)
    view = replace(exam.views[1], kind="film")
    exam = replace(exam, views=(exam.views[0], view, *exam.views[2:]))
    write_report(exam, tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html")
    expect(opened.page.locator(".explained")).to_have_text(explain_scores(exam))
    assert opened.page.locator("#scores .high dt").all_inner_texts() == ["Exam", "Right"]
    expect(opened.page.locator("#scores")).to_contain_text("0.45 · 45%")
    expect(opened.page.locator(".banner")).to_contain_text("Warning, L CC: the volume has only 1 slice.")
    expect(opened.page.get_by_role("button", name="film").first).to_be_visible()
    opened.close()
