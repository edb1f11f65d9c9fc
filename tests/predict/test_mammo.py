"""The weights that are trained on real films, on real slices of tomosynthesis, which no training has seen."""

import csv
import json
from pathlib import Path

from mm3d.cli import main
from mm3d.model import weights

COLUMNS = "file=jpg,patient=PatientID,exam=StudyUID,view=View,label=Class,x=X,y=Y,w=Width,h=Height"


def test_the_card_says_what_they_find_on_real_slices(real_data: Path, tmp_path: Path) -> None:
    """As docs/real.md says, in a user's commands."""
    slices = str(real_data / "bcs-dbt" / "annotated-slices")
    prepared, found, measured = (str(tmp_path / name) for name in ("prepared", "found", "measured"))
    size = ("--modality", "DBT", "--width", "384", "--length", "640")
    assert main(["prepare", "images", slices, *size, "--columns", COLUMNS, "-o", prepared]) == 0
    assert main(["predict", prepared, "--weights", "mammo", "--input", "volume", "-o", found]) == 0
    rates = [word for rate in ("0.25", "0.5", "1", "2") for word in ("--at", rate)]
    predictions = str(tmp_path / "found" / "predictions.json")
    assert main(["evaluate", predictions, "--truth", prepared, *rates, "--replicates", "10", "-o", measured]) == 0
    (system,) = json.loads((tmp_path / "measured" / "metrics.json").read_text())["systems"]
    rows = system["recall"]["2D"]["finding"]
    card = weights.read_header(weights.find("mammo")).provenance["figures"]["DBT slices"]
    one = 1 / rows[0]["count"]  # a processor that rounds differently may move a score past another
    for row in rows:
        assert abs(row["recall"] - card[f"recall@{row['fp_per_volume']:g}"][0]) < 1.01 * one
    with (real_data / "bcs-dbt" / "annotated-slices" / "manifest.csv").open() as file:
        assert rows[0]["count"] == sum(row["Class"] == "cancer" for row in csv.DictReader(file))
