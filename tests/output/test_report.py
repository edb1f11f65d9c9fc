"""The report before it is opened: numbers, sizes, and a page that holds nothing but itself."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.results import HEIGHT, WIDTH, exam_result, finding, view_result

from mm3d.output.predictions import Finding
from mm3d.output.report.frames import encode
from mm3d.output.report.page import number_lesions, stored_weights, write_report
from mm3d.output.result import ViewResult
from mm3d.shared.errors import InputError

WEBSITES = re.compile(rb"""(?:src|href|url)\s*[=(]\s*["']?(?!data:,)[^\s"'>)]""")


def test_a_lesion_has_one_number_in_both_views() -> None:
    assert number_lesions(exam_result()) == [[5, 1, 2], [4], [3], [1]]


def test_a_lesion_number_is_of_one_breast() -> None:
    exam = exam_result(
        [
            view_result("R", "CC", "DBT", 5, finding(0.6, 1, 5, lesion=0)),
            view_result("L", "CC", "DBT", 5, finding(0.7, 1, 5, lesion=0)),
        ]
    )
    assert number_lesions(exam) == [[2], [1]]


def view_of(*findings: Finding) -> ViewResult:
    return view_result("R", "CC", "DBT", 5, *findings)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: view_of(Finding((0, 0, 1, 1), 1.5)), "The score 1.5 of RCC DBT is not between 0 and 1."),
        (lambda: replace(view_of(), findings=(Finding((0, 0, 1, 1), 1.5),)), "The score 1.5 of a finding of RCC DBT"),
        (lambda: view_of(Finding((5, 0, 1, 1), 0.5)), "negative size"),
        (lambda: view_of(Finding((0, 0, 1, float("inf")), 0.5)), "four finite numbers"),
        (lambda: view_of(Finding((0, 0, 1, 1), 0.5, slice_weights=(float("nan"),))), "slice weights"),
        (lambda: view_of(Finding((0, 0, 1, 1), 0.5, slice_weights=(1.1, -0.1))), "slice weights"),
        (lambda: view_of(finding(0.5, 5, 5)), "RCC DBT: a finding is on slice 5 of 0 to 4"),
        (lambda: view_of(finding(0.5, 2, 6)), "RCC DBT: slice weights must be finite numbers from 0 on, at most 5."),
        (lambda: replace(view_of(), score=float("nan")), "nan"),
        (lambda: replace(view_of(), frames=np.zeros((3, 3), np.uint8)), "RCC DBT: frames must be uint8"),
        (lambda: replace(view_of(), frames=np.zeros((5, 3, 3))), "not float64 of (5, 3, 3)"),  # type: ignore[arg-type]
        (lambda: exam_result([]), "CASE-7 has no view"),
        (lambda: exam_result(threshold=2.0), "operating point"),
        (lambda: exam_result(breast_scores={"L": -1.0, "R": 0.5}), "breast L"),
        (lambda: exam_result(breast_scores={"L": 0.5}), "differ in R"),
    ],
)
def test_what_cannot_be_shown_is_named(make: object, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        make()  # type: ignore[operator]


def test_every_stored_slice_has_its_share_of_the_models() -> None:
    stored = stored_weights(Finding((0, 0, 1, 1), 0.5, 3, slice_weights=(0.2, 0.8)), 5)
    assert stored == pytest.approx(np.array([0.2, 0.2, 0.8, 0.8, 0.8]) / 2.8, abs=1e-4)
    assert stored_weights(Finding((0, 0, 1, 1), 0.5), 5) is None


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)


def rolled(picture: NDArray[np.uint8], slices: int, step: int) -> NDArray[np.uint8]:
    """A volume whose slices are the picture, each `step` rows further down, without a copy of it for each."""
    tall = np.concatenate([picture, picture])
    height, width = picture.shape
    return np.lib.stride_tricks.as_strided(tall, (slices, height, width), (step * width, width, 1), writeable=False)


def test_images_share_the_bytes_and_are_never_larger_than_stored() -> None:
    picture = noise(HEIGHT, WIDTH)
    volume = replace(view_result("R", "CC", "DBT", 20), frames=rolled(picture, 20, 7))
    mammogram = replace(view_result("L", "CC", "FFDM", 1), frames=picture[None])
    roomy = encode((volume, mammogram), 10_000_000)
    assert [(view.height, view.width, len(view.frames)) for view in roomy] == [(HEIGHT, WIDTH, 20), (HEIGHT, WIDTH, 1)]
    narrow = encode((volume, mammogram), 100_000)
    assert 60_000 < sum(view.size for view in narrow) <= 100_000  # much of what there is is used
    assert narrow[0].height < HEIGHT
    assert narrow[1].height == HEIGHT  # one frame does not suffer for the slices of others
    tight = encode((volume, mammogram), 40_000)
    assert tight[1].size <= 20_000  # nor do the slices for it: it has the share of a view
    with pytest.raises(InputError, match="RCC DBT: too many slices"):
        encode((volume,), 2_000)


def test_a_full_size_exam_stays_below_25_megabytes(tmp_path: Path) -> None:
    """Noise is the worst there is for JPEG."""
    picture = noise(2457, 1996)
    picture[:, 1000:] = 0  # a breast fills half of its image
    views = tuple(
        replace(
            view_result(side, position, "DBT", 70, finding(0.9, 30, 70)),
            frames=rolled(picture, 70, 31),
        )
        for side in ("R", "L")
        for position in ("CC", "MLO")
    )
    write_report(exam_result(views), tmp_path / "report.html")
    assert 10_000_000 < (tmp_path / "report.html").stat().st_size < 25_000_000


def test_the_page_lets_only_itself_run_and_names_no_other_place(tmp_path: Path) -> None:
    write_report(exam_result(), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_bytes()
    policy = re.search(rb'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    directives = dict(part.split(" ", 1) for part in policy[1].decode().replace("&#x27;", "'").split("; "))
    for tag in (b"script", b"style"):
        (text,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        assert directives.pop(f"{tag.decode()}-src") == f"'sha256-{digest}'"
    assert directives == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert not WEBSITES.findall(page)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
