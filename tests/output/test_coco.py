"""COCO files of findings: what other people's detectors write, and what other people's programs show."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mm3d.cli import main
from mm3d.data.records import Key
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction, read, write_coco, write_json
from mm3d.shared.errors import InputError

FINDINGS = (Finding((10.0, 20.0, 30.5, 60.0), 0.75, 4.0, 3.0, (0.25, 0.75)), Finding((1.0, 2.0, 3.0, 4.0), 0.5))
PREDICTIONS = Predictions(
    (
        BreastPrediction(
            "P1", "S1", "L", (ViewPrediction("lcc", FINDINGS, "DBT", 0.9), ViewPrediction("lmlo", ())), 0.8
        ),
        BreastPrediction("P1", "S1", "R", (ViewPrediction("rmlo1", FINDINGS[1:], "FFDM"),)),
    ),
    {"name": "ours"},
)


def theirs(**changes: Any) -> dict[str, Any]:
    """A COCO file as somebody else writes it."""
    images = [
        {"id": 7, "patient": "P1", "side": "left", "view": "CC"},
        {"id": 9, "patient": 2, "view": "rmlo", "exam": "E"},
    ]
    annotations = [{"image_id": 7, "bbox": [1, 2, 3, 4], "score": 0.5, "category_id": 3, "slice": 6}]
    return {"images": images, "annotations": annotations, "categories": []} | changes


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_coco(PREDICTIONS, tmp_path / "found.json", {Key("P1", "S1", "lcc", "DBT"): (90, 120)})
    assert read(tmp_path / "found.json") == PREDICTIONS
    content = json.loads((tmp_path / "found.json").read_text())
    assert [image.get("width") for image in content["images"]] == [90, None, None]
    first = content["annotations"][0]
    assert (first["image_id"], first["bbox"], first["area"]) == (1, [10, 20, 20.5, 40], 820)
    assert content["categories"] == [{"id": 1, "name": "malignant"}]


def test_others_coco_files_are_read(tmp_path: Path) -> None:
    found = read(write(tmp_path / "theirs.json", theirs()))
    assert dict(found.views()) == {
        Key("P1", "1", "lcc"): ViewPrediction("lcc", (Finding((1.0, 2.0, 4.0, 6.0), 0.5, 6.0),)),
        Key("2", "E", "rmlo"): ViewPrediction("rmlo", ()),
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"annotations": [{"image_id": 7, "bbox": [1, 2, 3, 4]}]}, "without a score: it is the truth"),
    ({"annotations": [{"image_id": 8, "bbox": [1, 2, 3, 4], "score": 1}]}, "the image 8, which it does not list"),
    ({"annotations": [{"image_id": 7, "bbox": [1, 2, 3], "score": 1}]}, "no COCO file of findings"),
    ({"annotations": [{"image_id": 7, "bbox": [1, 2, -3, 4], "score": 1}]}, "has a negative size"),
    ({"annotations": [{"image_id": 7, "bbox": [1, 2, 3, 4], "score": "high"}]}, "score"),
    ({"images": [{"id": 7, "view": "lcc"}]}, "its images need id, patient and view"),
    ({"images": [{"id": 7, "patient": "P1", "view": "XCCL"}]}, "none of lcc, lmlo, rcc and rmlo"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_a_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(write(tmp_path / "theirs.json", theirs(**changes)))


def test_convert_goes_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(PREDICTIONS, tmp_path / "a.json")
    chain = ["a.json", "b.coco.json", "c.csv", "d.coco.json", "e.json"]
    for before, after in pairwise(chain):
        assert main(["convert", str(tmp_path / before), "-o", str(tmp_path / after)]) == 0
    assert "3 findings of 3 views" in capsys.readouterr().out
    assert read(tmp_path / "b.coco.json") == PREDICTIONS
    boxes = [finding.box for _, view in read(tmp_path / "e.json").views() for finding in view.findings]
    assert boxes == [finding.box for _, view in PREDICTIONS.views() for finding in view.findings]
    assert main(["convert", str(tmp_path / "a.json"), "-o", str(tmp_path / "c.csv")]) == 1  # it is there
    assert main(["convert", str(tmp_path / "a.json"), "-o", str(tmp_path / "c.xml")]) == 1
    assert "must end with .csv" in capsys.readouterr().err
