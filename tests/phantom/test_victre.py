"""A breast that others made: somebody who has VICTRE's files gets the same breast, turned rightly, with its mass."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from support.victre_files import AIR, FAT_LABEL, GLAND_LABEL, PADDLE, SKIN_LABEL, SPACING, draw_breast, write_mhd

from mm3d.cli import main
from mm3d.data.datasets import tables
from mm3d.phantom.tissue import FAT, GLAND, MASS
from mm3d.phantom.victre import LabelVolume, VictreTrial, make_victre_phantom, read_victre, render_victre
from mm3d.shared.errors import InputError


def make_trial(volume: LabelVolume, **settings: object) -> VictreTrial:
    return VictreTrial(seed=3, breasts=1, anatomy="breast.mhd", labels=volume.hash, **settings)  # type: ignore[arg-type]


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "raw.gz"])
def test_the_labels_are_read_and_lie_between_the_plates(tmp_path: Path, packed: bool) -> None:
    labels = draw_breast()
    volume = read_victre(write_mhd(tmp_path, labels, packed=packed))
    assert np.array_equal(volume.labels, labels[4:-4])
    assert (volume.voxel, volume.thickness) == (SPACING, 40.0)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_however_the_breast_lies_in_the_file_it_is_turned(
    tmp_path: Path, axes: tuple[int, ...], mirrored: bool
) -> None:
    labels = draw_breast()
    turned = labels[:, :, ::-1] if mirrored else labels
    spacing = tuple(SPACING[axis] for axis in axes)
    volume = read_victre(write_mhd(tmp_path, np.ascontiguousarray(turned.transpose(axes)), spacing))
    assert np.array_equal(volume.labels, labels[4:-4])
    assert volume.voxel == SPACING


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ElementType": "MET_SHORT"}, "ElementType = MET_SHORT is not read; it must be MET_UCHAR"),
        ({"CompressedData": "True"}, "CompressedData = True is not read; it must be False"),
        ({"NDims": "2"}, "NDims = 2 is not read; it must be 3"),
        ({"DimSize": "60 100"}, "DimSize and ElementSpacing must be three numbers above 0 each"),
        ({"ElementSpacing": "0 1 1"}, "DimSize and ElementSpacing must be three numbers above 0 each"),
        ({"DimSize": "60 100 49"}, "does not have the 294,000 bytes that breast.mhd says"),
        ({"DimSize": "60 100 47"}, "does not have the 282,000 bytes that breast.mhd says"),
        ({"ElementDataFile": "other.raw"}, "neither other.raw nor other.raw.gz is beside it"),
        ({"ElementDataFile": "../breast.raw"}, "ElementDataFile must be the name of a file beside it"),
    ],
)
def test_a_header_that_it_does_not_know_is_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_victre(write_mhd(tmp_path, draw_breast(), SPACING, False, **changes))


def test_what_is_no_compressed_breast_of_victre_is_refused(tmp_path: Path) -> None:
    labels = draw_breast()
    for wrong, words in (
        (np.where(labels == GLAND_LABEL, 30, labels), "the label 30 is none of VICTRE's tissues"),
        (np.where(labels == PADDLE, AIR, labels), "no paddles .* give a compressed breast"),
        (np.pad(labels, ((0, 0), (0, 0), (1, 0))), "the chest wall cannot be found"),
    ):
        with pytest.raises(InputError, match=words):
            read_victre(write_mhd(tmp_path, wrong.astype(np.uint8)))
    (tmp_path / "breast.raw").unlink()
    (tmp_path / "breast.raw.gz").write_bytes(gzip.compress(labels.tobytes())[:-400])
    with pytest.raises(InputError, match=r"breast.raw.gz is damaged"):
        read_victre(tmp_path / "breast.mhd")
    (tmp_path / "breast.mhd").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no header of a MetaImage"):
        read_victre(tmp_path / "breast.mhd")


# ---- the breast ------------------------------------------------------------------------------------------------------


def test_tissue_keeps_its_attenuation_and_its_volume_in_our_voxels(tmp_path: Path) -> None:
    volume = read_victre(write_mhd(tmp_path, draw_breast(lesion=False)))
    phantom = make_victre_phantom(volume, make_trial(volume, scale="mini"))
    grid = phantom.breast.grid
    assert phantom.lesions == ()
    assert phantom.volume[20, len(grid.y) // 2, round(20 * 1.25 / 0.8)] == pytest.approx(GLAND)
    assert phantom.volume[2, len(grid.y) // 2, round(5 * 1.25 / 0.8)] == pytest.approx(FAT)
    assert phantom.air is not None
    tissue = np.isin(volume.labels, (FAT_LABEL, SKIN_LABEL, GLAND_LABEL)).sum() * np.prod(volume.voxel)
    assert (1 - phantom.air).sum() * np.prod(grid.voxel) == pytest.approx(tissue, rel=1e-4)
    assert phantom.breast.anatomy.thickness == 40
    share = (volume.labels == GLAND_LABEL).sum() / np.isin(volume.labels, (FAT_LABEL, GLAND_LABEL)).sum()
    assert phantom.breast.anatomy.density == pytest.approx(share)


@pytest.mark.parametrize("contrast", [1.0, 1.7])
def test_a_lesion_adds_the_difference_to_the_tissue_around_it(tmp_path: Path, contrast: float) -> None:
    volume, without = (
        read_victre(write_mhd(tmp_path / str(lesion), draw_breast(lesion=lesion))) for lesion in (True, False)
    )
    trial = make_trial(volume, scale="mini", contrast=contrast)
    phantom, twin = make_victre_phantom(volume, trial), make_victre_phantom(without, trial)
    (lesion,) = phantom.lesions
    assert lesion.added.max() == pytest.approx(contrast * (MASS[0] - FAT), rel=1e-4)
    volume_with = twin.volume.copy()
    volume_with[lesion.where] += lesion.added
    assert np.abs(volume_with - phantom.volume).max() < 1e-6  # the mass lies in fat, and so does what replaces it


@pytest.mark.parametrize("laterality", ["L", "R"])
def test_the_mass_is_annotated_where_it_is(tmp_path: Path, laterality: str) -> None:
    path = write_mhd(tmp_path, draw_breast())
    trial = make_trial(read_victre(path), scale="mini", position="MLO", laterality=laterality)
    breast, (mammogram, slices) = render_victre(path, trial, 0)
    assert (breast.label, breast.laterality, slices.view.position) == ("malignant", laterality, "MLO")
    assert breast.attributes["anatomy"] == "breast.mhd"
    (flat,), (deep,) = mammogram.view.annotations or (), slices.view.annotations or ()
    assert (flat.malignant, flat.slice, flat.box) == (True, None, deep.box)
    rows, columns = slices.pixels.shape[1:]
    assert len(slices.pixels) == 40
    x1, y1, x2, y2 = deep.box
    if laterality == "R":
        x1, x2 = columns - x2, columns - x1
    top = (rows - round(84 * 0.8 / 0.8)) / 2  # 84 of the 100 rows of 0.8 mm are breast
    assert ((x1 + x2) / 2, (y1 + y2) / 2) == pytest.approx((22.5 * 1.25 / 0.8, top + 18.5), abs=2)
    assert (x2 - x1, y2 - y1) == pytest.approx((12.5, 12.5), abs=3)  # 10 mm of 0.8 mm
    assert deep.slice is not None
    assert deep.slice == pytest.approx(10, abs=2)  # 4 slices are paddle
    assert deep.first_slice is not None
    assert deep.last_slice is not None
    assert deep.first_slice < deep.slice < deep.last_slice
    inside = slices.pixels[deep.slice, round(y1) + 3 : round(y2) - 3]
    assert inside.max() > 0


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_makes_a_trial_that_can_be_read_and_is_one_of_that_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_mhd(tmp_path / "victre", draw_breast(), packed=True), tmp_path / "out"
    command = ["phantom", str(out), "--anatomy", str(path), "--scale", "tiny", "--jobs", "1"]
    assert main(command) == 0
    (breast,) = tables.read(out).breasts
    assert [view.modality for view in breast.views] == ["FFDM", "DBT"]
    assert breast.label == "malignant"
    assert main(command) == 0  # nothing is missing
    write_mhd(tmp_path / "victre", draw_breast(lesion=False), packed=True)
    assert main(command) == 1
    assert "was made with trial.labels" in capsys.readouterr().err
    assert main([*command[:1], str(tmp_path / "healthy"), *command[2:]]) == 0
    assert tables.read(tmp_path / "healthy").breasts[0].label == "negative"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--anatomy", "FILE", "--breasts", "3"], "--breasts is for drawn breasts only"),
        (["--anatomy", "FILE", "--malignant", "1"], "--malignant is for drawn breasts only"),
        (["--position", "MLO"], "--position is for --anatomy only"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    path = write_mhd(tmp_path, draw_breast())
    given = [str(path) if word == "FILE" else word for word in options]
    assert main(["phantom", str(tmp_path / "out"), *given]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_real_breast_of_victre_has_its_mass(real_data: Path) -> None:
    """VICTRE's notes say where the mass is: voxels z 121-177, y 336-392, x 137-191, of 0.2 mm."""
    path = real_data / "victre" / "pcl_1.mhd"
    volume = read_victre(path)
    assert volume.labels.shape == (249, 539, 331)
    assert volume.thickness == pytest.approx(49.8)
    trial = VictreTrial(seed=0, breasts=1, scale="mini", anatomy=path.name, labels=volume.hash)
    breast, (_, slices) = render_victre(path, trial, 0)
    assert breast.label == "malignant"
    (mass,) = slices.view.annotations or ()
    # The paddle is below plane 5. The rows of the breast, which begin at plane 34, are in the middle of the detector.
    assert mass.slice == pytest.approx((149 - 5) * 0.2, abs=3)
    x1, y1, x2, y2 = mass.box
    assert ((x1 + x2) / 2, x2 - x1) == pytest.approx((164 * 0.2 / 0.8, 11 / 0.8), abs=4)
    rows = slices.pixels.shape[1]
    top = rows / 2 - (500 - 34) / 2 * 0.2 / 0.8
    assert ((y1 + y2) / 2, y2 - y1) == pytest.approx((top + (364 - 34) * 0.2 / 0.8, 11 / 0.8), abs=4)
    path = path.with_name("pc_1_crop.mhd")
    trial = VictreTrial(seed=0, breasts=1, scale="tiny", anatomy=path.name, labels=read_victre(path).hash)
    healthy, images = render_victre(path, trial, 0)
    assert healthy.label == "negative"
    assert all(image.view.annotations == () for image in images)
