"""The physics of the virtual trial: a study, the demo and the shipped weights would inherit its errors."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mm3d.cli import main
from mm3d.data.prepare.prepared import read_breasts
from mm3d.phantom import processing, tissue
from mm3d.phantom.anatomy import SCALES, CompressedBreast, compress, draw_anatomy
from mm3d.phantom.annotations import find_box, find_visible_slices
from mm3d.phantom.imaging import SPECK_CONTRAST, SYSTEMS, System, Tomosynthesis, reconstruct_lesion, take_mammogram
from mm3d.phantom.lesions import KINDS, Insertion, Lesion, draw_lesion, insert_lesion
from mm3d.phantom.processing import LOOKS, _blur, process_mammogram, process_slices
from mm3d.phantom.tissue import FAT, GLAND, draw_structure, make_surrounding_fat, make_tissue
from mm3d.phantom.trial import Phantom, Trial, draw_case, make_phantoms, render_breast
from mm3d.shared.errors import InputError

TINY = Trial(seed=5, breasts=40, scale="tiny", malignant=0.6, benign=0.3)
MINI = replace(TINY, scale="mini")
CANCERS = replace(MINI, malignant=1.0, benign=0.0, one_view=0.0)  # in both views


# ---- the trial -----------------------------------------------------------------------------------------------------


def test_a_breast_does_not_depend_on_when_and_with_how_many_others_it_is_made() -> None:
    first, images = render_breast(TINY, 3)
    render_breast(TINY, 0)
    again, same_images = render_breast(replace(TINY, breasts=4), 3)
    assert first == again
    for a, b in zip(images, same_images, strict=True):
        assert np.array_equal(a.pixels, b.pixels)


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
    ("wrong", "message"),
    [
        ({"malignant": 0.8, "benign": 0.3}, "malignant = 0.8 and benign = 0.3 must be shares of one whole"),
        ({"breasts": 0}, "breasts = 0 must be at least 1"),
        ({"scale": "huge"}, "scale = 'huge' is none of tiny, mini, midi, full"),
        ({"one_view": 2.0}, "one_view = 2.0 must be between 0 and 1"),
        ({"contrast": 0.0}, "contrast = 0.0 must be above 0"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        replace(TINY, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_findings_outside_one_view_are_as_many_as_stated(share: float) -> None:
    trial = replace(TINY, one_view=share, benign=0.4)
    lesions = [lesion for index in range(6) for lesion in draw_case(trial, index)[1]]
    inserted = sum(len(phantom.lesions) for index in range(6) for phantom in make_phantoms(trial, index))
    assert lesions
    assert inserted == len(lesions) * (1 if share else 2)


def test_both_breasts_of_a_patient_are_alike_and_of_the_two_sides() -> None:
    (left, left_images), (right, right_images), (other, _) = (render_breast(TINY, index) for index in (0, 1, 2))
    assert (left.laterality, right.laterality) == ("L", "R")
    assert left.patient == right.patient != other.patient
    drawn = [make_phantoms(TINY, index)[0].breast.anatomy for index in range(7)]
    for one, same, next_patient in (drawn[0:3], drawn[2:5], drawn[4:7]):
        assert abs(one.thickness - same.thickness) < 12  # two women's differ by 18 mm in the mean
        assert abs(one.nipple_distance - same.nipple_distance) < 12
        assert one != same  # nearly alike, not copies
        assert one.density != next_patient.density
    # The chest wall is on the left of a left breast, on the right of a right one.
    assert left_images[0].pixels[0, :, 0].sum() > 0 == left_images[0].pixels[0, :, -1].sum()
    assert right_images[0].pixels[0, :, -1].sum() > 0 == right_images[0].pixels[0, :, 0].sum()


# ---- tissue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.08, 0.2, 0.4])
def test_a_breast_has_the_density_it_is_said_to_have(density: float) -> None:
    rng = np.random.default_rng(0)
    anatomy = replace(draw_anatomy(rng, rng), density=density)
    breast = compress(anatomy, "CC", SCALES["mini"])
    volume = make_tissue(breast, draw_structure(rng, 1.0), rng)
    # Without the skin, and without ligaments and vessels, which are no gland: hence the tolerance upwards.
    inner = breast.surface(anatomy.skin + 1.5).occupancy(breast.grid.z) == 1
    measured = float(np.clip((volume[inner] - FAT) / (GLAND - FAT), 0, 1).mean())
    assert density - 0.04 < measured < density + 0.09


def test_a_large_view_is_made_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """At full scale not even one slice fits into a processor's cache."""
    rng = np.random.default_rng(0)
    breast = compress(draw_anatomy(rng, rng), "MLO", SCALES["tiny"])
    structure = draw_structure(rng, 2.5)
    whole = make_tissue(breast, structure, np.random.default_rng(1))
    monkeypatch.setattr(tissue, "SLAB", breast.grid.shape[1] * breast.grid.shape[2] // 3)
    assert np.abs(make_tissue(breast, structure, np.random.default_rng(1)) - whole).max() < 1e-6


def test_only_the_shape_tells_a_malignant_mass_from_a_benign_one() -> None:
    rng = np.random.default_rng(1)
    drawn = {malignant: [draw_lesion(rng, malignant, 0.0, 1.0) for _ in range(3000)] for malignant in (True, False)}
    means = {malignant: np.mean([lesion.attenuation for lesion in lesions]) for malignant, lesions in drawn.items()}
    assert means[True] == pytest.approx(means[False], rel=0.002)
    for malignant, lesions in drawn.items():
        assert {lesion.kind.name for lesion in lesions} == {k.name for k in KINDS.values() if k.malignant == malignant}


# ---- findings and their truth --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Phantom, Phantom]]:
    return [make_phantoms(CANCERS, index) for index in range(6)]


def test_contrast_makes_findings_stand_out_without_moving_anything_else() -> None:
    plain, strong = (Trial(seed=3, breasts=8, scale="tiny", malignant=0.5, benign=0.5, contrast=k) for k in (1.0, 2.0))
    for index in range(plain.breasts):
        for phantom, clear in zip(make_phantoms(plain, index), make_phantoms(strong, index), strict=True):
            for one, other in zip(phantom.lesions, clear.lesions, strict=True):
                assert other.lesion.attenuation - FAT == pytest.approx(2 * (one.lesion.attenuation - FAT))
                assert other.lesion.calcium == pytest.approx(16 * one.lesion.calcium)
                assert (one.lesion.kind, one.lesion.size) == (other.lesion.kind, other.lesion.size)
                assert other.where == one.where
                assert other.added.sum() > one.added.sum()


def test_boxes_hold_what_a_lesion_adds(pairs: list[tuple[Phantom, Phantom]]) -> None:
    for pair in pairs:
        for phantom in pair:
            for insertion in phantom.lesions:
                box = find_box(insertion, phantom.breast)
                assert box is not None
                x1, y1, x2, y2 = box
                rows, columns = phantom.breast.scale.shape
                assert 0 <= x1 < x2 <= columns
                assert 0 <= y1 < y2 <= rows
                shadow = np.abs(insertion.added.sum(axis=0))
                top, left = insertion.where[1].start + phantom.breast.top, insertion.where[2].start
                inside = shadow[y1 - top : y2 - top, x1 - left : x2 - left]
                assert inside.sum() > 0.97 * shadow.sum()
                # Tight: the outermost rows and columns are not empty, nor next to empty.
                outermost = min(inside[0].max(), inside[-1].max(), inside[:, 0].max(), inside[:, -1].max())
                assert outermost > 0.025 * np.quantile(shadow, 0.995)


def test_a_lesion_is_as_far_from_the_nipple_in_both_views(pairs: list[tuple[Phantom, Phantom]]) -> None:
    """Radiologists find a lesion of one view in the other by its distance from the nipple."""
    for cc, mlo in pairs:
        for a, b in zip(cc.lesions, mlo.lesions, strict=True):
            assert a.lesion == b.lesion
            distances = []
            for breast, insertion in ((cc.breast, a), (mlo.breast, b)):
                box = find_box(insertion, breast)
                assert box is not None
                distances.append(breast.anatomy.nipple_distance - (box[0] + box[2]) / 2 * breast.scale.pixel)
            assert abs(distances[0] - distances[1]) < 0.2 * a.lesion.size + 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_lesion_changes_its_surroundings_and_nothing_else(kind: str) -> None:
    rng = np.random.default_rng(3)
    anatomy = replace(draw_anatomy(rng, rng), thickness=55.0, nipple_distance=95.0, length=190.0)
    breast = compress(anatomy, "MLO", SCALES["mini"])
    before = make_tissue(breast, draw_structure(rng, 1.0), rng)
    lesion = next(
        drawn
        for drawn in (draw_lesion(rng, KINDS[kind].malignant, 0.0, 1.0) for _ in range(500))
        if drawn.kind.name == kind
    )
    lesion = replace(lesion, size=min(lesion.size, 25.0))
    after = before.copy()
    insertion = insert_lesion(after, breast, lesion, (45.0, 8.0, 3.0))
    elsewhere = np.ones(before.shape, bool)
    elsewhere[insertion.where] = False
    assert np.array_equal(after[elsewhere], before[elsewhere])
    assert np.allclose(after[insertion.where] - before[insertion.where], insertion.added, atol=1e-6)
    assert np.abs(insertion.added).sum() > 0
    # The same noise, with and without: the mammogram differs at the lesion; scatter spreads a trace of it.
    fat = make_surrounding_fat(breast)
    pictures = [take_mammogram(v, fat, 0.8, 1.0, np.random.default_rng(4)) for v in (before, after)]
    difference = np.abs(pictures[1] - pictures[0])
    near = np.zeros(difference.shape, bool)
    near[insertion.where[1:]] = True
    assert difference[~near].max() < 0.02 * difference.max() + 1e-6


def test_the_visible_range_is_around_the_best_slice_and_at_the_lesion(
    pairs: list[tuple[Phantom, Phantom]],
) -> None:
    for index, pair in enumerate(pairs):
        for number, image in enumerate(render_breast(CANCERS, index)[1]):
            for insertion, annotation in zip(pair[number // 2].lesions, image.view.annotations or (), strict=True):
                if image.view.modality == "FFDM":
                    assert annotation.slice is None
                    continue
                assert annotation.slice is not None
                assert annotation.first_slice is not None
                assert annotation.last_slice is not None
                assert 0 <= annotation.first_slice <= annotation.slice <= annotation.last_slice < len(image.pixels)
                added = np.abs(insertion.added).sum(axis=(1, 2))
                middle = insertion.where[0].start + float(np.average(np.arange(len(added)), weights=added))
                assert annotation.first_slice <= middle <= annotation.last_slice
                # Distortions and vessels are long and uneven, and best seen where most of them lies in the slice.
                uneven = insertion.lesion.kind.name in ("architectural distortion", "vascular calcification")
                assert abs(annotation.slice - middle) < (9 if uneven else 4)


@pytest.mark.parametrize("d", [[0.1, 0.6, 1.0, 0.4], [1.0, 0.2, 0.9], [0.2, 0.5, 0.9, 1.0]])
def test_the_visible_range_ends_where_half_is_lost(d: list[float]) -> None:
    expected = {0.1: (2, 1, 2), 1.0: (0, 0, 0), 0.2: (3, 1, 3)}[d[0]]
    assert find_visible_slices(np.array(d)) == expected


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


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_coarse_pixels_do_not_widen_specks_in_depth(system: System) -> None:
    """Streaks above and below a calcification would be mistaken for it."""
    z = np.arange(-24.5, 25, 1, dtype=np.float32)
    speck = np.zeros((len(z), 100, 20), np.float32)
    speck[25, 50, 10] = 1.0
    cluster, mass = KINDS["calcification cluster"], KINDS["round mass"]
    where = (slice(0, len(z)), slice(0, 100), slice(0, 20))
    tomosynthesis = Tomosynthesis(system, z, 100, 0.8)
    profiles = []
    for kind in (cluster, mass):
        lesion = Lesion(kind, 10.0, 0.07, 0.7, 0, ("CC", "MLO"))
        signal = reconstruct_lesion(Insertion(lesion, where, speck), tomosynthesis, speck.shape)
        profiles.append(signal.max(axis=(1, 2)))
    narrow, wide = (profile / profile.max() for profile in profiles)
    assert (narrow > 0.5).sum() <= system.speck_depth_mm + 1 < (wide > 0.5).sum() + 2
    assert narrow[35] < 0.5 * wide[35] + 0.01  # 10 mm above
    assert profiles[0].max() == pytest.approx(SPECK_CONTRAST * profiles[1].max(), rel=1e-5)


def test_a_wider_arc_resolves_depth_better() -> None:
    trial = replace(MINI, malignant=1.0, benign=0.0)
    phantom = make_phantoms(trial, 1)[0]
    grid = phantom.breast.grid
    widths = {}
    for name in ("hologic", "siemens"):
        tomosynthesis = Tomosynthesis(SYSTEMS[name], grid.z, len(grid.y), phantom.breast.scale.pixel)
        signal = reconstruct_lesion(phantom.lesions[0], tomosynthesis, grid.shape)
        energy = (signal**2).sum(axis=(1, 2))
        widths[name] = (energy > energy.max() / 2).sum()
    assert widths["siemens"] < widths["hologic"]


def test_more_photons_less_noise() -> None:
    flat = np.full((20, 60, 60), FAT, np.float32)
    empty = np.zeros_like(flat)
    coarse, fine = (take_mammogram(flat, empty, pixel, 1.0, np.random.default_rng(0)).std() for pixel in (0.8, 0.1))
    assert fine / coarse == pytest.approx(8, rel=0.2)  # 64 times fewer photons in a pixel


# ---- processing ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flat() -> tuple[CompressedBreast, np.ndarray]:
    """A breast, and an image of it that rises steadily from the chest wall to the nipple."""
    rng = np.random.default_rng(2)
    breast = compress(draw_anatomy(rng, rng), "CC", SCALES["mini"])
    return breast, np.broadcast_to(breast.grid.x / 20, breast.inside.shape).astype(np.float32)


@pytest.mark.parametrize("vendor", SYSTEMS)
def test_processing_keeps_the_order_of_grey_values_and_does_not_clip(
    vendor: str, flat: tuple[CompressedBreast, np.ndarray]
) -> None:
    """A curve that falls or is flat would hide lesions."""
    breast, image = flat
    mammogram = process_mammogram(image, breast, vendor)
    slices = process_slices(np.stack([image] * 9), breast, vendor)
    row = int(np.argmax((breast.inside > 20).sum(axis=1)))
    inside = breast.inside[row] > 20
    for shown, bits in ((mammogram, 12), (slices[4], 10)):
        values = shown[row, inside].astype(int)
        assert (np.diff(values) > 0).all()
        assert values.max() < 2**bits - 1
        assert (shown[breast.inside < -2] == 0).mean() > 0.98  # all but the nipple


def test_a_wide_blur_is_the_same_by_fourier_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.random.default_rng(0).standard_normal((67, 90)).astype(np.float32) + 3
    plain = _blur(image, 5.3)
    monkeypatch.setattr(processing, "NARROW", 1.0)
    assert np.abs(_blur(image, 5.3) - plain).max() < 2e-6


def test_vendors_and_modalities_look_different(flat: tuple[CompressedBreast, np.ndarray]) -> None:
    """A detector of mammograms must meet the gap between modalities that a clinic has."""
    assert set(LOOKS) == {(vendor, modality) for vendor in SYSTEMS for modality in ("FFDM", "DBT")}
    breast, image = flat
    centre = breast.inside > 20
    medians = {}
    for vendor in SYSTEMS:
        medians[vendor, "FFDM"] = float(np.median(process_mammogram(image, breast, vendor)[centre])) / 4095
        medians[vendor, "DBT"] = float(np.median(process_slices(image[None], breast, vendor)[0][centre])) / 1023
        assert medians[vendor, "DBT"] > medians[vendor, "FFDM"] + 0.05
    assert len({round(median, 3) for median in medians.values()}) == 6


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
        lines = (done.stdout + done.stderr).splitlines()
        assert [line for line in lines if line.startswith(("Error", "Abort"))] == []
    sizes = ["--width", "40", "--length", "80", "--slices", "4"]
    assert main(["prepare", "tables", str(trial), "-o", str(tmp_path / "prepared"), *sizes]) == 0
    assert "malignant annotations" in capsys.readouterr().out
    breasts = read_breasts(tmp_path / "prepared")
    assert [(prepared.breast.label, len(prepared.views)) for prepared in breasts] == [("malignant", 4)] * 2
    for prepared in breasts:
        assert any(annotation.malignant for view in prepared.views for annotation in view.annotations() or ())
