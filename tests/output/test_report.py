"""The report before it is opened: numbers, sizes, and a page that holds nothing but itself."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.shown_exam import HEIGHT, WIDTH, finding, shown_exam, shown_view

from mm3d.output.report.exam import ShownFinding, numbered
from mm3d.output.report.frames import encode
from mm3d.output.report.page import write_report
from mm3d.shared.errors import InputError

WEBSITES = re.compile(rb"""(?:src|href|url)\s*[=(]\s*["']?(?!data:,)[^\s"'>)]""")


def test_a_lesion_has_one_number_in_both_views() -> None:
    assert numbered(shown_exam()) == [[5, 1, 2], [4], [3], [1]]


def test_a_group_does_not_reach_over_to_the_other_breast() -> None:
    exam = shown_exam(
        views=(
            shown_view("R", "CC", "DBT", 5, finding(0.6, 1, 5, group=0)),
            shown_view("L", "CC", "DBT", 5, finding(0.7, 1, 5, group=0)),
        )
    )
    assert numbered(exam) == [[2], [1]]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ShownFinding((0, 0, 1, 1), 1.5), "The score 1.5 of the finding is not between 0 and 1."),
        (lambda: ShownFinding((0, 0, 1, 1), float("nan")), "nan"),
        (lambda: ShownFinding((5, 0, 1, 1), 0.5), "negative size"),
        (lambda: ShownFinding((0, 0, 1, float("inf")), 0.5), "four finite numbers"),
        (lambda: ShownFinding((0, 0, 1, 1), 0.5, 0, (float("nan"),)), "slice weights"),
        (lambda: ShownFinding((0, 0, 1, 1), 0.5, 0, (1.1, -0.1)), "slice weights"),
        (lambda: shown_view("R", "CC", "DBT", 5, finding(0.5, 5, 6)), "R CC DBT: a finding is on slice 5 of 0 to 4"),
        (lambda: shown_view("R", "CC", "DBT", 5, finding(0.5, 2, 6)), "R CC DBT: a finding has 6 slice weights for 5"),
        (lambda: shown_exam(views=()), "CASE-7 has no view"),
        (lambda: shown_exam(threshold=2.0), "operating point"),
        (lambda: shown_exam(breast_scores={"L": -1.0}), "breast L"),
    ],
)
def test_what_cannot_be_shown_is_named(make: object, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        make()  # type: ignore[operator]


def test_a_frame_that_is_not_as_the_view_says_is_named(tmp_path: Path) -> None:
    view = replace(shown_view("R", "CC", "DBT", 5), frame=lambda _: np.zeros((3, 3), np.uint8))
    with pytest.raises(InputError, match="R CC DBT: frame 1 is uint8 of"):
        write_report(shown_exam(views=(view,)), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)


def test_images_share_the_bytes_and_are_never_larger_than_stored() -> None:
    picture = noise(HEIGHT, WIDTH)
    volume = replace(shown_view("R", "CC", "DBT", 20), frame=lambda z: np.roll(picture, 7 * z, axis=0))
    mammogram = replace(shown_view("L", "CC", "FFDM", 1), frame=lambda _: picture)
    roomy = encode((volume, mammogram), 10_000_000)
    assert [(view.height, view.width, len(view.frames)) for view in roomy] == [(HEIGHT, WIDTH, 20), (HEIGHT, WIDTH, 1)]
    narrow = encode((volume, mammogram), 100_000)
    assert 60_000 < sum(view.size for view in narrow) <= 100_000  # much of what there is is used
    assert narrow[0].height < HEIGHT
    assert narrow[1].height == HEIGHT  # one frame does not suffer for the slices of others
    tight = encode((volume, mammogram), 40_000)
    assert tight[1].size <= 20_000  # nor do the slices for it: it has the share of a view
    with pytest.raises(InputError, match="R CC DBT: too many slices"):
        encode((volume,), 2_000)


def test_a_full_size_exam_stays_below_25_megabytes(tmp_path: Path) -> None:
    """Noise is the worst there is for JPEG."""
    picture = noise(2457, 1996)
    picture[:, 1000:] = 0  # a breast fills half of its image
    views = tuple(
        replace(
            shown_view(side, position, "DBT", 70, finding(0.9, 30, 70)),
            shape=(70, 2457, 1996),
            frame=lambda z: np.roll(picture, 31 * z, axis=0),
        )
        for side in ("R", "L")
        for position in ("CC", "MLO")
    )
    write_report(shown_exam(views=views), tmp_path / "report.html")
    assert 10_000_000 < (tmp_path / "report.html").stat().st_size < 25_000_000


def test_the_page_lets_only_itself_run_and_names_no_other_place(tmp_path: Path) -> None:
    write_report(shown_exam(), tmp_path / "report.html")
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
