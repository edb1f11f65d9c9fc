"""`mm3d evaluate`: files of predictions and a cohort in, figures, lists and pictures out."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mm3d import __version__
from mm3d.evaluate.compare import comparisons
from mm3d.evaluate.joined import in_split, join, patients_of
from mm3d.evaluate.lists import write_lists
from mm3d.evaluate.measure import Measured, measure
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.subgroups import subgroups
from mm3d.evaluate.tell import tell
from mm3d.evaluate.truth import read_truth
from mm3d.output import predictions
from mm3d.shared.config import to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

VERSION = 1  # of metrics.json


def run(files: list[Path], truth_folder: Path, output: Path, settings: EvaluateSettings) -> int:
    """Evaluate, write and print. Returns the exit code."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder with -o.")
    console = Console()
    with console.status("evaluating"):
        result, systems, weights = evaluate(files, truth_folder, settings)
        with replacing(output / "metrics.json") as partial:
            partial.write_text(json.dumps(_plain(result), indent=1, allow_nan=False), encoding="utf-8")
        write_lists(systems, output)
        from mm3d.evaluate.figures import draw_figures  # matplotlib takes a second to import

        pictures = draw_figures(systems, weights, settings, output)
    tell(console, result, settings)
    written = ", ".join(["metrics.json", "per-finding.csv", "per-volume.csv", *pictures])
    console.print(f"Wrote {output}: {written}.", soft_wrap=True, highlight=False, markup=False)
    return 0


def evaluate(
    files: list[Path], truth_folder: Path, settings: EvaluateSettings
) -> tuple[dict[str, Any], list[Measured], bootstrap.Weights]:
    """The content of metrics.json, what it was computed from, and the draws of the bootstrap."""
    names = names_of(files)
    truth = read_truth(truth_folder)
    patients = patients_of(in_split(truth, settings.split))
    joined = [join(name, predictions.read(file), truth, settings) for name, file in zip(names, files, strict=True)]
    weights = bootstrap.draw(len(patients), settings.replicates, settings.seed)
    systems = []
    for file, one in zip(files, joined, strict=True):
        measured = measure(one, weights, settings)
        parts = {column: subgroups(measured.judged, column, weights, settings) for column in settings.by}
        extended = {"file": str(file)} | measured.result | {"subgroups": parts}
        systems.append(replace(measured, result=extended))
    result = {
        "version": VERSION,
        "mm3d": __version__,
        "truth": {"folder": str(truth_folder), "name": truth.name, "notes": list(truth.notes)},
        "settings": to_dict(settings),
        "systems": [system.result for system in systems],
        "comparisons": comparisons(systems, settings),
    }
    return result, systems, weights


def names_of(files: list[Path]) -> list[str]:
    """What to call each system: its file's name, with as many folders before it as tell it from the others."""
    if len({file.resolve() for file in files}) < len(files):
        raise InputError("a file of predictions is given twice; give each once.")
    for folders in range(1, 1 + max(len(file.resolve().parts) for file in files)):
        names = ["/".join(file.resolve().with_suffix("").parts[-folders:]) for file in files]
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
