"""How many annotated cancers a start saves: a wrong number here would be the one that people repeat."""

import math
from pathlib import Path

import pytest

from mm3d.experiments.scaling import Curve, PowerLaw, draw_scaling, fit_power_law, saved
from mm3d.experiments.statistics import Figure

COUNTS = (36.0, 73.0, 146.0, 365.0)


def curve(label: str, law: PowerLaw, error: float = 0.02) -> Curve:
    return Curve(label, COUNTS, tuple(Figure(1 - law.missed(n), error) for n in COUNTS))


def test_a_power_law_is_found_again() -> None:
    law = PowerLaw(1.5, 0.25)
    found = curve("ffdm", law).law
    assert (found.a, found.b) == pytest.approx((1.5, 0.25))
    assert found.needed(found.missed(100)) == pytest.approx(100)


def test_an_uncertain_figure_counts_less() -> None:
    figures = [Figure(1 - 1.5 * n**-0.25, 0.01) for n in COUNTS]
    figures[0] = Figure(0.9, 1.0)  # far from the line, and known to be
    assert fit_power_law(COUNTS, figures).b == pytest.approx(0.25, abs=0.01)


def test_what_a_start_saves_is_read_off_both_lines() -> None:
    ahead, behind = curve("ffdm", PowerLaw(1.0, 0.25)), curve("pictures", PowerLaw(2.0, 0.25))
    assert [needed for _, needed in saved([ahead, behind])] == pytest.approx([16 * n for n in COUNTS])
    flat = curve("pictures", PowerLaw(0.6, 0.0))
    assert all(needed == math.inf or needed > 1e6 for _, needed in saved([ahead, flat])[-1:])


def test_the_picture_of_an_earlier_report_is_removed_with_its_results(tmp_path: Path) -> None:
    path = tmp_path / "scaling.png"
    assert draw_scaling([curve("ffdm", PowerLaw(1.0, 0.3))], path, "R@0.25, 3D")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not draw_scaling([], path, "R@0.25, 3D")
    assert not path.exists()
