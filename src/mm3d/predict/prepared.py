"""Predict a prepared folder: predictions.json and predictions.csv, for `mm3d evaluate`."""

from pathlib import Path

from rich.console import Console

from mm3d import __version__
from mm3d.data.batches import prepared_breasts
from mm3d.data.inputs import modality_of
from mm3d.model import weights
from mm3d.output.predictions import Predictions, write_dbtex, write_json
from mm3d.predict.detect import predict_breast
from mm3d.predict.setup import Options, choose_input, load_model
from mm3d.predict.suspicion import project
from mm3d.shared.console import say, show_progress


def predict_prepared(folder: Path, output: Path, options: Options) -> int:
    """Predict every breast of a prepared folder. Returns the exit code."""
    path = weights.find(options.weights)
    header = weights.read_header(path)
    chosen, histogram = choose_input(options, header)
    breasts = prepared_breasts(folder, options.split, modality_of(chosen))
    model = load_model(path, options.chunk, options.engine)
    console = Console()
    say(console, f"Weights {weights.name_of(path)}: {header.intended_use}")
    if chosen == "msp":
        slices = weights.find(header.provenance.get("suspicion", path))
        with show_progress(console, "projecting", len(breasts)) as advance:
            breasts = project(breasts, slices, output / "projections", advance)
    predicted = []
    with show_progress(console, "predicting", len(breasts)) as advance:
        for breast in breasts:
            predicted.append(predict_breast(model, breast, chosen, histogram, options.settings))
            advance()
    about = {"name": "mm3d", "version": __version__, "weights": str(path), "input": chosen, "use": header.intended_use}
    predictions = Predictions(tuple(predicted), about)
    write_json(predictions, output / "predictions.json")
    write_dbtex(predictions, output / "predictions.csv")
    say(console, f"Wrote {output}: predictions.json, predictions.csv ({len(breasts)} breasts, input {chosen}).")
    return 0
