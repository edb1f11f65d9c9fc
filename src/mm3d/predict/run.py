"""`mm3d predict`: weights and a prepared folder in, predictions.json and predictions.csv out."""

from pathlib import Path

import torch
from rich.console import Console

from mm3d import __version__
from mm3d.batches import prepared_breasts
from mm3d.console import progress
from mm3d.errors import InputError
from mm3d.inputs import Histogram, InputName, modality_of
from mm3d.model import weights
from mm3d.model.config import EngineName
from mm3d.predict.detect import PredictSettings, predict_breast
from mm3d.predict.suspicion import project
from mm3d.predictions import Predictions, write_dbtex, write_json


def run(
    folder: Path,
    output: Path,
    weights_path: Path,
    name: InputName | None,
    split: str | None,
    settings: PredictSettings,
    engine: EngineName = "torch",
) -> int:
    """Predict every breast of a prepared folder. Returns the exit code."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder with -o.")
    path = weights.find(weights_path)
    header = weights.read_header(path)
    chosen: InputName = name or header.provenance.get("input", "volume")
    histogram: Histogram | None = tuple(header.provenance.get("histogram", ())) or None
    breasts = prepared_breasts(folder, split, modality_of(chosen))
    model = weights.load(path).for_inference(engine)
    model.to("cuda" if engine == "torch" and torch.cuda.is_available() else "cpu")
    console = Console()
    if chosen == "msp":
        slices = weights.find(header.provenance.get("suspicion", path))
        with progress(console, "projecting", len(breasts)) as advance:
            breasts = project(breasts, slices, output / "projections", advance)
    found = []
    with progress(console, "predicting", len(breasts)) as advance:
        for breast in breasts:
            found.append(predict_breast(model, breast, chosen, histogram, settings))
            advance()
    about = {"name": "mm3d", "version": __version__, "weights": str(path), "input": chosen, "use": header.intended_use}
    predictions = Predictions(tuple(found), about)
    write_json(predictions, output / "predictions.json")
    write_dbtex(predictions, output / "predictions.csv")
    console.print(
        f"Wrote {output}: predictions.json, predictions.csv ({len(breasts)} breasts, input {chosen}).",
        soft_wrap=True,
        highlight=False,
    )
    return 0
