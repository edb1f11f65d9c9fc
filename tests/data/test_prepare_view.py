"""One view prepared: what is turned, darkened or lost here no detector can find again."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.csv_files import rows_of
from support.dicom_files import breast, item, mammogram, tomosynthesis, tomosynthesis_slice, write
from support.stored_views import SMALL, view_of, volume

from mm3d.data.dicom.kinds import MAMMOGRAPHY
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import ViewFile
from mm3d.data.prepare.region import breast_region, chest_wall
from mm3d.data.prepare.view import WHITE, begin_view, fill_view
from mm3d.data.records import Modality, Picture, View
from mm3d.shared.errors import InputError


def prepared(view: View, tmp_path: Path, settings: PrepareSettings = SMALL) -> tuple[np.ndarray, ViewFile]:
    """One view, in this process, as a worker would do it."""
    target = tmp_path / "prepared.npy"
    headers, plan, filled = begin_view(view, None, settings, target)
    if not filled:
        fill_view(headers, plan, target, range(plan.shape[0]))
    return np.load(target) / WHITE, plan.file


def test_left_and_right_breasts_both_have_the_chest_wall_on_the_left(tmp_path: Path) -> None:
    left, _ = prepared(view_of(write(tomosynthesis(volume()), tmp_path / "l.dcm")), tmp_path)
    path = write(tomosynthesis(volume(side="R"), side="R"), tmp_path / "r.dcm")
    right, file = prepared(view_of(path, laterality="R"), tmp_path)
    assert file.geometry.mirrored
    assert left.shape == right.shape
    assert left.shape[0] == 4
    assert left.shape[2] == 60
    for image in (left, right):
        assert image[:, 46, 0].mean() > 0.4
        assert image[:, 0, -1].mean() < 0.1


def test_a_left_view_that_lies_the_wrong_way_is_turned_by_180_degrees(tmp_path: Path) -> None:
    """8.5% of BCS-DBT. Boxes are drawn on the turned image; a detector trained without the turn learns from air."""
    frames = volume(bright=4)
    straight, _ = prepared(view_of(write(tomosynthesis(frames), tmp_path / "a.dcm")), tmp_path)
    turned, file = prepared(view_of(write(tomosynthesis(frames[:, ::-1, ::-1]), tmp_path / "b.dcm")), tmp_path)
    assert file.turned
    assert np.array_equal(straight, turned)
    x1, y1, x2, y2 = (round(value) for value in file.geometry.box_to_model((40, 100, 60, 120)))
    s = file.geometry.slice_to_model(4)
    assert turned[s, y1:y2, x1:x2].mean() > 0.85
    assert turned[s - 2, y1:y2, x1:x2].mean() < 0.65


def test_monochrome1_is_shown_as_monochrome2(tmp_path: Path) -> None:
    image = breast()
    plain, _ = prepared(view_of(write(mammogram(image), tmp_path / "2.dcm"), modality="FFDM", upright=False), tmp_path)
    negative = mammogram(
        1023 - image, PhotometricInterpretation="MONOCHROME1", WindowCenter=1023 - 399, WindowWidth=800
    )
    path = write(negative, tmp_path / "1.dcm")
    inverted, _ = prepared(view_of(path, modality="FFDM", upright=False), tmp_path)
    assert inverted == pytest.approx(plain, abs=0.003)
    # the full range of signed 16 bits
    full = mammogram(image, PhotometricInterpretation="MONOCHROME1", PixelRepresentation=1, BitsStored=16, HighBit=15)
    full.PixelData = (32767 - 128 * image.astype(int)).astype("<i2").tobytes()
    full.WindowCenter, full.WindowWidth = 32767 - 128 * 399, 128 * 800
    path = write(full, tmp_path / "signed.dcm")
    inverted, _ = prepared(view_of(path, modality="FFDM", upright=False), tmp_path)
    assert inverted == pytest.approx(plain, abs=0.003)


def test_windows_are_of_rescaled_values_and_stored_ones_may_be_negative(tmp_path: Path) -> None:
    image = breast()
    plain, _ = prepared(view_of(write(mammogram(image), tmp_path / "a.dcm"), modality="FFDM", upright=False), tmp_path)
    twice = mammogram(2 * image, BitsStored=12, HighBit=11, RescaleSlope="0.5", RescaleIntercept="0")
    signed = mammogram(image, PixelRepresentation=1, RescaleSlope="1", RescaleIntercept="512")
    signed.PixelData = (image.astype("<i2") - 512).tobytes()
    for ds in (twice, signed):
        rescaled, _ = prepared(view_of(write(ds, tmp_path / "b.dcm"), modality="FFDM", upright=False), tmp_path)
        assert rescaled == pytest.approx(plain, abs=0.003)


def test_percentiles_stand_in_where_there_is_no_window_or_it_is_raw(tmp_path: Path) -> None:
    raw = mammogram(breast() + 3, WindowCenter=5000, WindowWidth=10)
    raw.PresentationIntentType, raw.SOPClassUID = "FOR PROCESSING", MAMMOGRAPHY[1]
    without = mammogram(breast() + 3)
    del without.WindowCenter, without.WindowWidth
    for ds in (raw, without):
        view = view_of(write(ds, tmp_path / "view.dcm"), modality="FFDM", upright=False)
        image, _ = prepared(view, tmp_path)
        tissue = image[0, 40:60, 5:30]
        assert 0.2 < tissue.mean() < 0.9
        assert tissue.std() > 0.05


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"WindowCenter": -5000, "WindowWidth": 1}, "the breast is nearly the same grey everywhere"),
        ({"WindowCenter": 5000, "WindowWidth": 1}, "the breast is nearly the same grey everywhere"),
        ({"WindowCenter": 400, "WindowWidth": 100_000}, "the breast is nearly the same grey everywhere"),
        ({"WindowCenter": 400, "WindowWidth": 2}, "over 25% of the breast is pure black or white"),
        ({"WindowCenter": 400, "WindowWidth": 2, "VOILUTFunction": "SIGMOID"}, "over 25% of the breast is pure"),
        ({"RescaleSlope": "1e30"}, "the breast is nearly the same grey everywhere"),
        ({"RescaleIntercept": "100000"}, "the breast is nearly the same grey everywhere"),
        ({"WindowWidth": None, "VOILUTSequence": [255] * 1024}, "the breast is nearly the same grey everywhere"),
        ({"WindowWidth": None, "VOILUTSequence": range(1023, -1, -1)}, "the breast is nearly the same grey everywhere"),
    ],
)
def test_a_window_that_shows_nothing_is_replaced_and_that_is_said(
    tmp_path: Path, fields: dict[str, Any], fault: str
) -> None:
    """The model would be given an empty image, and call the exam negative."""
    if "VOILUTSequence" in fields:
        table = np.array(fields["VOILUTSequence"], dtype="<u2").tobytes()
        bits = 8 if max(fields["VOILUTSequence"]) < 256 else 10
        fields = fields | {"VOILUTSequence": [item(LUTDescriptor=[1024, 0, bits], LUTData=table)]}
    ds = mammogram(breast(), **fields)
    ds.BitsStored, ds.HighBit = 10, 9
    view = view_of(write(ds, tmp_path / "m.dcm"), modality="FFDM", upright=False)
    image, file = prepared(view, tmp_path)
    (note,) = file.notes
    assert note.startswith(f"in its own display window {fault}")
    assert note.endswith("so percentiles of its grey values are taken.")
    expected, usual = prepared(view, tmp_path, dataclasses.replace(SMALL, intensity="percentile"))
    assert image == pytest.approx(expected)
    assert usual.notes == ()
    with pytest.raises(InputError, match=r"prepare with --intensity auto\."):
        prepared(view, tmp_path, dataclasses.replace(SMALL, intensity="window"))


@pytest.mark.parametrize("intensity", ["auto", "percentile"])
@pytest.mark.parametrize("kind", ["flat", "an inverted image that says it is not"])
def test_an_image_in_which_nothing_can_be_seen_is_refused(tmp_path: Path, kind: str, intensity: str) -> None:
    image = breast()
    ds = mammogram(image)
    if kind == "flat":  # but for a little noise, which percentiles would turn into a picture
        ds = mammogram(np.where(image > 0, 400 + image % 8, 0).astype(np.uint16))
    else:
        ds.PhotometricInterpretation = "MONOCHROME1"
    view = view_of(write(ds, tmp_path / "m.dcm"), modality="FFDM", upright=False)
    with pytest.raises(InputError, match=r"m\.dcm(: .*, whatever window is taken| holds noise| .* is inverted)"):
        prepared(view, tmp_path, dataclasses.replace(SMALL, intensity=intensity))  # type: ignore[arg-type]


def test_real_images_are_far_from_the_limits(real_data: Path, tmp_path: Path) -> None:
    """docs/data.md has the figures: a limit that real images come near to would change how they are shown."""
    small = PrepareSettings(width=110, length=220)
    paths = [real_data / "dicom" / "ge-ffdm-rmlo-jpeg-lossless.dcm"]
    views = [view_of(path, modality="FFDM", upright=False) for path in paths]
    pictures = sorted((real_data / "bcs-dbt" / "annotated-slices").glob("**/*.jpg"))
    pictures += sorted((real_data / "cbis-films" / "films").glob("*.jpg"))[::20]
    views += [view_of(path, modality="FFDM", upright=False, picture=Picture()) for path in pictures]
    for view in views:
        _, plan, _ = begin_view(view, None, small, tmp_path / "prepared.npy")
        assert plan.file.notes == (), view.files
    assert len(views) > 100


def test_depth_is_pooled_by_maximum_and_short_volumes_are_kept(tmp_path: Path) -> None:
    frames = volume(slices=10, bright=7)
    image, file = prepared(view_of(write(tomosynthesis(frames), tmp_path / "v.dcm")), tmp_path)
    x1, y1, x2, y2 = (round(value) for value in file.geometry.box_to_model((44, 104, 56, 116)))
    lit = [s for s in range(4) if image[s, y1:y2, x1:x2].mean() > 0.9]
    assert lit == [s for s in range(4) if 7 in file.geometry.region(s)]
    short, file = prepared(view_of(write(tomosynthesis(volume(slices=3)), tmp_path / "s.dcm")), tmp_path)
    assert len(short) == file.geometry.stored_slices == 3


def test_slices_in_files_of_their_own_become_one_volume_by_position(tmp_path: Path) -> None:
    frames = volume(slices=6, bright=1)
    paths: list[Path] = []
    for i in (4, 1, 5, 0, 3, 2):
        ds = tomosynthesis_slice(frames[i], z=3 * i, Modality="CT")
        paths.append(write(ds, tmp_path / f"{len(paths)}.dcm"))
    whole = view_of(write(tomosynthesis(frames), tmp_path / "whole.dcm"))
    percentile = dataclasses.replace(SMALL, intensity="percentile")
    together, _ = prepared(whole, tmp_path, percentile)
    apart, _ = prepared(dataclasses.replace(whole, files=tuple(paths)), tmp_path, percentile)
    assert np.array_equal(apart, together)


@pytest.mark.parametrize("kind", ["volume", "lying the wrong way", "mammogram", "MONOCHROME1"])
def test_copies_are_the_stored_slices_as_they_are_shown(tmp_path: Path, kind: str) -> None:
    """What a report shows: every slice, whole, upright, in the file's window; made while the view is prepared."""
    stored = volume(9) if kind in ("volume", "lying the wrong way") else volume(1)
    expected = np.rint(255 * ((stored - 399.5) / 799 + 0.5).clip(0, 1))
    modality: Modality = "DBT" if len(stored) > 1 else "FFDM"
    if kind == "lying the wrong way":
        ds = tomosynthesis(np.ascontiguousarray(stored[:, ::-1, ::-1]))
    elif kind == "volume":
        ds = tomosynthesis(stored)
    elif kind == "mammogram":
        ds = mammogram(stored[0])
    else:  # what was 0 is 1023, and dark
        ds = mammogram(1023 - stored[0], PhotometricInterpretation="MONOCHROME1", WindowCenter=1023 - 399)
    view = view_of(write(ds, tmp_path / "view.dcm"), modality=modality, upright=modality == "DBT")
    target, copies = tmp_path / "prepared.npy", tmp_path / "copies.npy"
    headers, plan, filled = begin_view(view, None, SMALL, target, copies)
    if not filled:
        for s in range(plan.shape[0]):
            fill_view(headers, plan, target, range(s, s + 1), copies)
    shown = np.load(copies)
    assert shown.dtype == np.uint8
    assert np.abs(shown - expected).max() <= 1
    assert plan.file.turned == (kind == "lying the wrong way")


@pytest.mark.parametrize("name", ["ge-ffdm-rmlo-jpeg-lossless.dcm", "siemens-mg-lcc-overlay-out-of-bounds.dcm"])
def test_real_mammograms_are_prepared(real_data: Path, tmp_path: Path, name: str) -> None:
    view = view_of(real_data / "dicom" / name, modality="FFDM", upright=False)
    image, file = prepared(view, tmp_path, PrepareSettings(width=220, length=440))
    assert image.shape == (1, file.geometry.height, file.geometry.width)
    assert max(image.shape[1] / 440, image.shape[2] / 220) == 1
    assert 0.05 < image.mean() < 0.95
    if name.startswith("ge"):  # the other shows a part of a breast at a biopsy, from below
        assert image[0, :, :110].mean() > image[0, :, 110:].mean()  # the chest wall is on the left


def test_markers_text_clips_and_the_paddle_do_not_widen_the_region() -> None:
    image = breast(1200, 1000).astype(np.int32)
    plain = breast_region(image)
    image[60:140, 800:960] = 1000  # a lead marker with letters
    image[80:120, 830:930:8] = 0
    image[1100:1130, 700:980] = 900  # burnt-in text
    image[:, 760:763] = 500  # the paddle's edge
    image[900, 700:1000] = 1023  # a scratch
    image[595:600, 300:310] = 1023  # a clip in the breast
    assert breast_region(image) == pytest.approx(plain, abs=25)
    assert plain[0] == 0
    assert 560 < plain[2] < 680


def test_an_image_full_of_breast_is_kept_whole() -> None:
    image = 300 + np.random.default_rng(0).integers(0, 200, (500, 400))
    assert breast_region(image) == (0, 0, 400, 500)


def test_the_crop_keeps_every_real_finding_and_removes_two_fifths_of_the_image(real_data: Path) -> None:
    folder = real_data / "bcs-dbt" / "annotated-slices"
    removed = []
    rows = rows_of(folder / "manifest.csv")
    for row in rows:
        image = np.asarray(Image.open(folder / row["jpg"]).convert("L"))
        x1, y1, x2, y2 = breast_region(image)
        x, y, width, height = (int(row[name]) for name in ("X", "Y", "Width", "Height"))
        assert x1 <= x, row
        assert y1 <= y, row
        assert x + width <= x2, row
        assert y + height <= y2, row
        assert chest_wall(image) == row["View"][0].upper()
        removed.append(1 - (x2 - x1) * (y2 - y1) / image.size)
    assert len(rows) > 50
    assert np.mean(removed) >= 0.4
