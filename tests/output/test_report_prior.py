"""Two exams of one patient: the report of the later one shows both, and never those of two patients."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, expect
from pydicom import Dataset
from support.opened import Opened
from support.results import exam_result, finding, view_result

from mm3d.output.report import page
from mm3d.output.report.page import write_report
from mm3d.output.report.prior import read_prior
from mm3d.output.result import ExamResult, PriorExam
from mm3d.predict.exam import Exam, find_prior
from mm3d.shared.errors import InputError


def both(folder: Path, slices: int = 20) -> ExamResult:
    """An exam of a right CC and MLO, and a prior exam of the CC, of which the first is written."""
    earlier = exam_result([view_result("R", "CC", "DBT", 12, finding(0.45, 3, 12))])
    write_report(earlier, folder / "prior.html")
    views = [view_result("R", "CC", "DBT", slices, finding(0.9, 6, slices)), view_result("R", "MLO", "DBT", slices)]
    return exam_result(views, prior=PriorExam(folder / "prior.html", "14 months earlier", 0.45))


def test_the_prior_exam_is_beside_the_exam(browser: Browser, tmp_path: Path) -> None:
    write_report(both(tmp_path), tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html")
    opened.is_on("Right CC", 6)
    opened.is_on("Prior Right CC", 3)
    expect(opened.pane("Prior Right CC")).to_contain_text("14 months earlier")
    expect(opened.pane("Prior Right MLO")).to_contain_text("not in the prior exam")
    expect(opened.page.locator(".divider")).to_have_text("Prior exam, 14 months earlier")
    expect(opened.page.locator("#told")).to_have_text("All findings are marked.")
    opened.page.get_by_role("button", name="Finding P1, Prior Right CC").click()
    expect(opened.marks("Prior Right CC").locator("text")).to_have_text(["P1 · 0.45"])
    opened.page.keyboard.press("f")  # one view alone, with its prior
    expect(opened.pane("Right CC")).to_be_visible()
    expect(opened.pane("Right MLO")).to_be_hidden()
    opened.page.keyboard.press("Escape")
    opened.page.keyboard.press("o")
    expect(opened.pane("Prior Right CC")).to_be_hidden()
    expect(opened.page.locator(".divider")).to_have_count(0)
    opened.page.get_by_role("button", name="Prior").click()
    expect(opened.pane("Prior Right CC")).to_be_visible()
    opened.close()


def test_without_a_prior_exam_there_is_no_such_button(browser: Browser, tmp_path: Path) -> None:
    write_report(exam_result(), tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html")
    expect(opened.page.get_by_role("button", name="Prior")).to_be_hidden()
    opened.page.keyboard.press("o")
    expect(opened.pane("Right CC")).to_be_visible()
    opened.close()


def test_a_report_with_a_prior_exam_is_not_larger_than_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = both(tmp_path, 8)
    monkeypatch.setattr(page, "PAGE_BYTES", page.TEXT_BYTES + 40_000)
    write_report(result, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    images = sum(len(block) for block in re.findall(r'class="frames">(.*?)</script>', text, re.DOTALL))
    assert 10_000 < images <= 40_500
    assert len(json.loads(re.findall('id="exam">(.*?)</script>', text)[0])["views"]) == 3


def test_a_prior_of_the_prior_is_left_out(tmp_path: Path) -> None:
    result = both(tmp_path)
    write_report(result, tmp_path / "second.html")
    prior = read_prior(replace(cast(PriorExam, result.prior), report=tmp_path / "second.html"), 10_000_000)
    assert [(view["laterality"], view["position"], view["slices"]) for view in prior.views] == [
        ("R", "CC", 20),
        ("R", "MLO", 20),
    ]


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    prior = cast(PriorExam, both(tmp_path).prior)
    text = prior.report.read_text()
    for damaged in ("", text[: text.index('class="frames"') + 500], text.replace('"slices":12', '"slices":13')):
        prior.report.write_text(damaged)
        with pytest.raises(InputError, match=r"prior\.html is damaged, or no report of this version"):
            read_prior(prior, 10_000_000)


def exam(code: str, day: str, patient: str = "1", name: str = "A", number: str = "7") -> Exam:
    context = Dataset()
    context.StudyDate, context.PatientName, context.PatientID = day, name, number
    header: Any = SimpleNamespace(context=context, patient=patient)
    return Exam(code, (), {Path(code): header}, (), ())


def test_the_last_earlier_exam_of_the_same_patient_is_the_prior() -> None:
    new = exam("new", "20260105")
    old, older = exam("old", "20241104"), exam("older", "20210105")
    others = [exam("later", "20270101"), exam("same day", "20260105"), exam("no date", ""), exam("bad", "2024")]
    strangers = [exam("b", "20251201", patient="2"), exam("c", "20251201", name="B"), exam("d", "20251201", number=" ")]
    found = find_prior(new, [*strangers, older, new, old, *others])
    assert found == (old, "14 months earlier")
    assert find_prior(new, [older, new, *others, *strangers]) == (older, "5 years earlier")
    yesterday = exam("yesterday", "20241103")
    assert find_prior(old, [yesterday, old]) == (yesterday, "1 day earlier")
    assert find_prior(older, [new, old, older]) is None
    assert find_prior(exam("anonymous", "20260105", number=""), [exam("y", "20240101", number="")]) is None
