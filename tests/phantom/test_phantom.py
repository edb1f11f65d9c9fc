"""The virtual trial's physics: what a study, a demo or shipped weights would inherit if it were wrong."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mm3d.cli import main
from mm3d.data.prepare.prepared import read_breasts
from mm3d.phantom.anatomy import draw_anatomy, form
from mm3d.phantom.imaging import SYSTEMS, System, Tomosynthesis, mammogram
from mm3d.phantom.latent import draw_latent
from mm3d.phantom.lesions import KINDS, draw_lesion, insert
from mm3d.phantom.scale import SCALES
from mm3d.phantom.tissue import FAT, GLAND, attenuation, beside
from mm3d.phantom.trial import BreastView, Trial, draw_case, make_views, render_breast
from mm3d.phantom.truth import reconstructed_signal, signal_box, visible_range
from mm3d.shared.errors import InputError

TINY = Trial(seed=5, breasts=40, scale="tiny", malignant=0.6, benign=0.3)
MINI = replace(TINY, scale="mini")
CANCERS = replace(MINI, malignant=1.0, benign=0.0, one_view=0.0)  # in both views


# ---- the trial -----------------------------------------------------------------------------------------------------


def test_a_breast_does_not_depend_on_when_and_with_how_many_others_it_is_made() -> None:
    first = render_breast(TINY, 3)
    render_breast(TINY, 0)
    again = render_breast(replace(TINY, breasts=4), 3)
    assert first.attributes == again.attributes
    for a, b in zip(first.views, again.views, strict=True):
        assert np.array_equal(a.pixels, b.pixels)
        assert a.findings == b.findings


def test_labels_are_what_the_findings_say() -> None:
    labels = set()
    for index in range(30):
        label, lesions = draw_case(TINY, index)
        labels.add(label)
        assert any(lesion.kind.malignant for lesion in lesions) == (label == "malignant")
        assert bool(lesions) == (label != "negative")
    assert labels == {"malignant", "benign", "negative"}


def test_shares_are_kept() -> None:
    drawn = [draw_case(replace(TINY, malignant=0.25, benign=0.5), index)[0] for index in range(2000)]
    assert drawn.count("malignant") / 2000 == pytest.approx(0.25, abs=0.03)
    assert drawn.count("benign") / 2000 == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"malignant": 0.8, "benign": 0.3}, "malignant = 0.8 and benign = 0.3 must be shares of one whole"),
        ({"breasts": 0}, "breasts = 0 must be at least 1"),
        ({"scale": "huge"}, "scale = 'huge' is none of tiny, mini, full"),
        ({"one_view": 2.0}, "one_view = 2.0 must be between 0 and 1"),
        ({"contrast": 0.0}, "contrast = 0.0 must be above 0"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        replace(TINY, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_findings_outside_one_view_are_as_many_as_stated(share: float) -> None:
    views = [make_views(replace(TINY, one_view=share, benign=0.4), index) for index in range(6)]
    lesions = [
        lesion for index in range(6) for lesion in draw_case(replace(TINY, one_view=share, benign=0.4), index)[1]
    ]
    seen = sum(len(view.seen) for pair in views for view in pair)
    assert lesions
    assert seen == len(lesions) * (1 if share else 2)


def test_both_breasts_of_a_patient_are_alike_and_of_the_two_sides() -> None:
    left, right, other = (render_breast(TINY, index) for index in (0, 1, 2))
    assert (left.laterality, right.laterality) == ("L", "R")
    assert left.patient == right.patient != other.patient
    drawn = [make_views(TINY, index)[0].form.anatomy for index in range(7)]
    for one, same, next_patient in (drawn[0:3], drawn[2:5], drawn[4:7]):
        assert abs(one.thickness - same.thickness) < 12  # two women's differ by 18 mm in the mean
        assert abs(one.depth - same.depth) < 12
        assert one != same  # nearly alike, not copies
        assert one.density != next_patient.density
    # The chest wall is on the left of a left breast, on the right of a right one.
    assert left.views[0].pixels[0, :, 0].sum() > 0 == left.views[0].pixels[0, :, -1].sum()
    assert right.views[0].pixels[0, :, -1].sum() > 0 == right.views[0].pixels[0, :, 0].sum()


# ---- tissue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.08, 0.2, 0.4])
def test_a_breast_has_the_density_it_is_said_to_have(density: float) -> None:
    rng = np.random.default_rng(0)
    anatomy = replace(draw_anatomy(rng, rng), density=density)
    view = form(anatomy, "CC", SCALES["mini"])
    volume = attenuation(view, draw_latent(rng, 1.0), rng)
    # Without the skin, and without ligaments and vessels, which are no gland: hence the tolerance upwards.
    inner = view.occupied(view.grid.z, anatomy.skin + 1.5) == 1
    measured = float(np.clip((volume[inner] - FAT) / (GLAND - FAT), 0, 1).mean())
    assert density - 0.04 < measured < density + 0.09


def test_only_the_shape_tells_a_malignant_mass_from_a_benign_one() -> None:
    rng = np.random.default_rng(1)
    drawn = {malignant: [draw_lesion(rng, malignant, 0.0, 1.0) for _ in range(3000)] for malignant in (True, False)}
    means = {malignant: np.mean([lesion.attenuation for lesion in lesions]) for malignant, lesions in drawn.items()}
    assert means[True] == pytest.approx(means[False], rel=0.002)
    for malignant, lesions in drawn.items():
        assert {lesion.kind.name for lesion in lesions} == {k.name for k in KINDS.values() if k.malignant == malignant}


# ---- findings and their truth --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def views() -> list[tuple[BreastView, BreastView]]:
    return [make_views(CANCERS, index) for index in range(6)]


def test_contrast_makes_findings_stand_out_without_moving_anything_else() -> None:
    plain, strong = (Trial(seed=3, breasts=8, scale="tiny", malignant=0.5, benign=0.5, contrast=k) for k in (1.0, 2.0))
    for index in range(plain.breasts):
        for view, clear in zip(make_views(plain, index), make_views(strong, index), strict=True):
            for seen, again in zip(view.seen, clear.seen, strict=True):
                assert again.lesion.attenuation - FAT == pytest.approx(2 * (seen.lesion.attenuation - FAT))
                assert again.lesion.calcium == pytest.approx(16 * seen.lesion.calcium)
                assert (seen.lesion.kind, seen.lesion.size) == (again.lesion.kind, again.lesion.size)
                assert again.change.where == seen.change.where
                assert again.change.added.sum() > seen.change.added.sum()


def test_boxes_hold_what_a_lesion_adds(views: list[tuple[BreastView, BreastView]]) -> None:
    for pair in views:
        for view in pair:
            for seen in view.seen:
                box = signal_box(seen.change, view.form)
                assert box is not None
                x1, y1, x2, y2 = box
                rows, columns = view.form.scale.shape
                assert 0 <= x1 < x2 <= columns
                assert 0 <= y1 < y2 <= rows
                shadow = np.abs(seen.change.added.sum(axis=0))
                top, left = seen.change.where[1].start + view.form.top, seen.change.where[2].start
                inside = shadow[y1 - top : y2 - top, x1 - left : x2 - left]
                assert inside.sum() > 0.97 * shadow.sum()
                # Tight: the outermost rows and columns are not empty, nor next to empty.
                outermost = min(inside[0].max(), inside[-1].max(), inside[:, 0].max(), inside[:, -1].max())
                assert outermost > 0.025 * np.quantile(shadow, 0.995)


def test_a_finding_is_as_deep_in_both_views(views: list[tuple[BreastView, BreastView]]) -> None:
    """Radiologists find a lesion of one view in the other by its distance from the nipple."""
    for cc, mlo in views:
        for a, b in zip(cc.seen, mlo.seen, strict=True):
            assert a.lesion == b.lesion
            centres = []
            for view, seen in ((cc, a), (mlo, b)):
                box = signal_box(seen.change, view.form)
                assert box is not None
                middle = (box[0] + box[2]) / 2 * view.form.scale.pixel
                centres.append(view.form.anatomy.depth - middle)
            assert abs(centres[0] - centres[1]) < 0.2 * a.lesion.size + 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_lesion_changes_its_surroundings_and_nothing_else(kind: str) -> None:
    rng = np.random.default_rng(3)
    view = form(replace(draw_anatomy(rng, rng), thickness=55.0, depth=95.0, length=190.0), "MLO", SCALES["mini"])
    before = attenuation(view, draw_latent(rng, 1.0), rng)
    lesion = next(
        drawn
        for drawn in (draw_lesion(rng, KINDS[kind].malignant, 0.0, 1.0) for _ in range(500))
        if drawn.kind.name == kind
    )
    lesion = replace(lesion, size=min(lesion.size, 25.0))
    after = before.copy()
    change = insert(after, view, lesion, (45.0, 8.0, 3.0))
    elsewhere = np.ones(before.shape, bool)
    elsewhere[change.where] = False
    assert np.array_equal(after[elsewhere], before[elsewhere])
    assert np.allclose(after[change.where] - before[change.where], change.added, atol=1e-6)
    assert np.abs(change.added).sum() > 0
    # The same noise, with and without: the mammogram differs at the lesion; scatter spreads a trace of it.
    around = beside(view)
    pictures = [mammogram(v, around, 0.8, 1.0, np.random.default_rng(4)) for v in (before, after)]
    difference = np.abs(pictures[1] - pictures[0])
    near = np.zeros(difference.shape, bool)
    near[change.where[1:]] = True
    assert difference[~near].max() < 0.02 * difference.max() + 1e-6


def test_the_visible_range_is_around_the_best_slice_and_at_the_lesion(
    views: list[tuple[BreastView, BreastView]],
) -> None:
    for index, pair in enumerate(views):
        for number, image in enumerate(render_breast(CANCERS, index).views):
            for seen, finding in zip(pair[number // 2].seen, image.findings, strict=True):
                if image.modality == "FFDM":
                    assert finding.slice is None
                    continue
                assert finding.slice is not None
                assert finding.first_slice is not None
                assert finding.last_slice is not None
                assert 0 <= finding.first_slice <= finding.slice <= finding.last_slice < len(image.pixels)
                added = np.abs(seen.change.added).sum(axis=(1, 2))
                middle = seen.change.where[0].start + float(np.average(np.arange(len(added)), weights=added))
                assert finding.first_slice <= middle <= finding.last_slice
                # Distortions and vessels are long and uneven, and best seen where most of them lies in the slice.
                uneven = seen.lesion.kind.name in ("architectural distortion", "vascular calcification")
                assert abs(finding.slice - middle) < (9 if uneven else 4)


@pytest.mark.parametrize("d", [[0.1, 0.6, 1.0, 0.4], [1.0, 0.2, 0.9], [0.2, 0.5, 0.9, 1.0]])
def test_the_visible_range_ends_where_half_is_lost(d: list[float]) -> None:
    expected = {0.1: (2, 1, 2), 1.0: (0, 0, 0), 0.2: (3, 1, 3)}[d[0]]
    assert visible_range(np.array(d)) == expected


# ---- imaging -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
@pytest.mark.parametrize("height", [-11.0, 0.0, 13.0])
def test_a_small_ball_is_sharpest_in_its_own_slice(system: System, height: float) -> None:
    z = np.arange(-24.5, 25, 1, dtype=np.float32)
    y, x = np.arange(-40, 40, 0.8), np.arange(0, 30, 0.8)
    distance = np.sqrt((z[:, None, None] - height) ** 2 + y[None, :, None] ** 2 + (x[None, None, :] - 15) ** 2)
    ball = np.clip(2.0 - distance, 0, 1).astype(np.float32)
    tomosynthesis = Tomosynthesis(system, z, len(y), 0.8)
    brightest = tomosynthesis.reconstruct(tomosynthesis.project(ball)).max(axis=(1, 2))
    # Neighbouring slices are nearly as bright, so the middle of the brightest counts.
    assert abs(float(z[brightest > 0.85 * brightest.max()].mean()) - height) <= 1.0


def test_a_wider_arc_resolves_depth_better() -> None:
    trial = replace(MINI, malignant=1.0, benign=0.0)
    view = make_views(trial, 1)[0]
    grid = view.form.grid
    widths = {}
    for name in ("hologic", "siemens"):
        tomosynthesis = Tomosynthesis(SYSTEMS[name], grid.z, len(grid.y), view.form.scale.pixel)
        signal = reconstructed_signal(view.seen[0].change, tomosynthesis, grid.shape)
        energy = (signal**2).sum(axis=(1, 2))
        widths[name] = (energy > energy.max() / 2).sum()
    assert widths["siemens"] < widths["hologic"]


def test_more_photons_less_noise() -> None:
    flat = np.full((20, 60, 60), FAT, np.float32)
    empty = np.zeros_like(flat)
    coarse, fine = (mammogram(flat, empty, pixel, 1.0, np.random.default_rng(0)).std() for pixel in (0.8, 0.1))
    assert fine / coarse == pytest.approx(8, rel=0.2)  # 64 times fewer photons in a pixel


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_writes_a_trial_that_prepare_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = tmp_path / "trial"
    options = ["--breasts", "2", "--seed", "3", "--scale", "tiny", "--malignant", "1", "--benign", "0", "--jobs", "2"]
    assert main(["phantom", str(trial), *options]) == 0
    checker = shutil.which("dciodvfy")
    assert checker, "dciodvfy is not installed: apt-get install dicom3tools"
    files = sorted(trial.rglob("*.dcm"))
    assert len(files) == 8
    for file in files:
        done = subprocess.run(
            [checker, "-new", str(file)], capture_output=True, text=True, check=False, errors="replace"
        )
        said = (done.stdout + done.stderr).splitlines()
        assert [line for line in said if line.startswith(("Error", "Abort"))] == []
    sizes = ["--width", "40", "--length", "80", "--slices", "4"]
    assert main(["prepare", "tables", str(trial), "-o", str(tmp_path / "prepared"), *sizes]) == 0
    assert "malignant findings" in capsys.readouterr().out
    breasts = read_breasts(tmp_path / "prepared")
    assert [(breast.label, len(views)) for breast, views in breasts] == [("malignant", 4)] * 2
    for _, views in breasts:
        assert any(finding.malignant for view in views for finding in view.findings() or ())
