"""The tool behind docs/real.md: its figures are those of the films and slices that it was given."""

import json
from pathlib import Path

import measure_real
import measure_victre
import numpy as np
import pytest
from PIL import Image
from support.csv_files import write_csv
from support.dicom_files import breast
from support.examples import build
from support.victre_files import draw_breast, write_mhd

from mm3d.cli import main
from mm3d.data.prepare.prepared import PreparedBreast, read_breasts
from mm3d.model import weights
from mm3d.output.predictions import BreastPrediction, Finding, ViewPrediction
from mm3d.shared.errors import InputError

SIZE = {"width": 48, "length": 96, "slices": 4, "intensity": "auto"}
FILMS = ("file", "patient", "side", "view", "label", "boxes", "split")
SLICES = ("jpg", "PatientID", "StudyUID", "View", "Slice", "X", "Y", "Width", "Height", "Class")


def draw(path: Path, x: int, y: int) -> None:
    """A left breast with a bright square of 20 x 20 pixels."""
    pixels = (breast(side="L") // 4).astype(np.uint8)
    pixels[y : y + 20, x : x + 20] = 200
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """Two patients for training and three for validation, each with both views but the last."""
    lines = []
    for number in range(5):
        for position in ("CC", "MLO")[: 1 if number == 4 else 2]:
            draw(tmp_path / "films" / f"{number}{position}.png", 40, 100 + 2 * number)
            label, split = ("malignant", "benign")[number % 2], "train" if number < 2 else "validation"
            box = f'"[[40, {100 + 2 * number}, 60, {120 + 2 * number}]]"'
            lines.append(f"{number}{position}.png,P{number},L,{position},{label},{box},{split}")
    write_csv(tmp_path / "films" / "films.csv", FILMS, *lines)
    size = ["--width", "48", "--length", "96", "--jobs", "1"]
    assert main(["prepare", "images", str(tmp_path / "films"), "-o", str(tmp_path / "prepared"), *size]) == 0
    return tmp_path / "prepared"


@pytest.fixture
def slices(tmp_path: Path) -> Path:
    """Three slices of one volume, not in their order, and one of another."""
    lines = []
    for patient, z, x in (("A", 30, 30), ("A", 10, 60), ("A", 20, 45), ("B", 7, 40)):
        draw(tmp_path / "slices" / f"{patient}{z}.jpg", x, 110)
        lines.append(f"{patient}{z}.jpg,{patient},S,lcc,{z},{x},110,20,20,{'cancer' if patient == 'A' else 'benign'}")
    write_csv(tmp_path / "slices" / "manifest.csv", SLICES, *lines)
    return tmp_path / "slices"


@pytest.fixture
def tiny_weights(tmp_path: Path) -> Path:
    weights.save(build(), tmp_path / "tiny.safetensors", {"input": "ffdm", "prepare": SIZE})
    return tmp_path / "tiny.safetensors"


def test_all_that_the_page_says_is_measured(tmp_path: Path, films: Path, slices: Path, tiny_weights: Path) -> None:
    output = tmp_path / "measured"
    words = [str(tiny_weights), "--films", str(films), "--slices", str(slices), "-o", str(output)]
    measure_real.main(words)
    measured = json.loads((output / "measured.json").read_text())
    (ours,) = measured["films"]["systems"].values()
    assert (ours["count"], ours["images"], ours["malignant breasts"], ours["other breasts"]) == (3, 5, 2, 1)
    pairs = measured["two views against one"]
    assert pairs["breasts"] == 2  # that of a single view is not compared
    assert {system["images"] for system in pairs["systems"].values()} == {4}
    assert pairs["differences"].keys() == {"R@0.25", "R@0.5", "R@1", "R@2", "AUC"}
    assert [measured[part]["systems"]["tiny"]["count"] for part in ("slices", "slices, all boxes")] == [3, 4]
    choice = measured["which slice"]
    assert [(row["view"], row["slice"], row["slices"]) for row in choice["rows"]] == [
        ("A-S-lcc", s, 3) for s in range(3)
    ]
    chosen = [row for row in choice["rows"] if row["w"]]
    assert all(
        sum(row["w"]) == pytest.approx(1, abs=1e-5) and row["w"][row["chosen"]] == max(row["w"]) for row in chosen
    )
    assert (choice["found"], choice["by chance"]) == (len(chosen), pytest.approx(len(chosen) / 3))
    assert "two views against one" in (output / "measured.md").read_text()
    assert (output / "real.png").stat().st_size < 150_000
    for part in ("films", "slices"):
        assert (output / part / "sheet.jpg").is_file()


def test_films_of_another_size_are_refused(tmp_path: Path, films: Path, slices: Path) -> None:
    path = tmp_path / "other.safetensors"
    weights.save(build(), path, {"input": "ffdm", "prepare": SIZE | {"length": 200}})
    with pytest.raises(InputError, match="is prepared to 96 x 48, and other sees 200 x 48"):
        measure_real.main([str(path), "--films", str(films), "--slices", str(slices), "-o", str(tmp_path / "out")])


def test_random_boxes_have_the_sizes_of_annotations_and_lie_in_their_view(films: Path) -> None:
    """A baseline of boxes that nobody could hit would flatter the detector."""
    breasts = read_breasts(films)
    sizes = measure_real.typical_sizes(breasts)
    predicted = [as_predicted(prepared) for prepared in breasts]
    drawn = measure_real.draw_random_boxes(breasts, predicted, sizes, np.random.default_rng(0))
    for prepared, one in zip(breasts, drawn, strict=True):
        for view, own in zip(prepared.views, one.views, strict=True):
            geometry = view.file.geometry
            assert len(own.findings) == 30
            corners = ((x1, y1, x2, y2) for x1, y1, x2, y2 in (finding.box for finding in own.findings))
            boxes = np.array([geometry.box_to_model(box) for box in corners])
            assert (boxes >= -1e-6).all()
            assert (boxes <= np.array([geometry.width, geometry.height] * 2) + 1e-6).all()
            wide = (boxes[:, 2] - boxes[:, 0]) / geometry.width
            assert ((wide > 0.9 * sizes[:, 0].min()) & (wide < 1.1 * sizes[:, 0].max())).all()


def as_predicted(prepared: PreparedBreast) -> BreastPrediction:
    record = prepared.breast
    findings = tuple(Finding((0, 0, 1, 1), 0.5) for _ in range(30))
    views = tuple(ViewPrediction(f"l{view.view.position.lower()}", findings, "FFDM") for view in prepared.views)
    return BreastPrediction(record.patient, record.exam, record.laterality, views)


def test_the_mass_of_a_breast_that_others_made_has_its_row(
    tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lesion in (("pcl_1", True), ("pc_1_crop", False)):
        header = write_mhd(tmp_path / "victre", draw_breast(lesion), ElementDataFile=f"{name}.raw")
        header.with_name("breast.raw").rename(header.with_name(f"{name}.raw"))
        header.rename(header.with_name(f"{name}.mhd"))
    folder, output = str(tmp_path / "victre"), str(tmp_path / "out")
    measure_victre.main([str(tiny_weights), folder, "--scale", "tiny", "-o", output])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| `tiny`")]
    assert [row[1] for row in rows] == ["1"] * 3 + ["1.7"] * 3
    for row in rows:
        assert row[2] == "none" or (0 < float(row[2]) < 1 and int(row[3]) >= 1)
        assert 0 < float(row[-1].rstrip(" |")) < 1
