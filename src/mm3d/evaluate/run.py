"""`mm3d evaluate`: predictions files and a cohort in, metrics, lists and figures out."""

import json
import math
from pathlib import Path
from typing import Any

from mm3d import __version__
from mm3d.evaluate.lists import write_lists
from mm3d.evaluate.match import EvaluateSettings, match_predictions
from mm3d.evaluate.measure import System, compare, measure
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.show import print_tables
from mm3d.evaluate.truth import read_truth
from mm3d.output import predictions
from mm3d.shared.config import to_dict
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial, replacing

VERSION = 1  # of metrics.json


def run(files: list[Path], truth_folder: Path, output: Path, settings: EvaluateSettings) -> int:
    """Evaluate, write and print; returns the exit code."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder with -o.")
    remove_partial(output)
    console = Console()
    with console.status("evaluating"):
        result, systems = evaluate(files, truth_folder, settings)
        with replacing(output / "metrics.json") as partial:
            partial.write_text(json.dumps(_plain(result), indent=1, allow_nan=False), encoding="utf-8")
        write_lists([system.matched for system in systems], output)
        from mm3d.evaluate.figures import draw_figures  # matplotlib takes a second to import

        figures = draw_figures(systems, output)
    print_tables(console, result)
    written = ", ".join(["metrics.json", "per-finding.csv", "per-volume.csv", *figures])
    say(console, f"Wrote {output}: {written}.")
    return 0


def evaluate(files: list[Path], truth_folder: Path, settings: EvaluateSettings) -> tuple[dict[str, Any], list[System]]:
    """Measure and compare predictions files; returns the content of metrics.json, and the systems."""
    names = name_systems(files)
    truth = read_truth(truth_folder)
    draws = bootstrap.draw(len(truth.in_split(settings.split).patients), settings.replicates, settings.seed)
    pairs = zip(names, files, strict=True)
    matched = [match_predictions(name, predictions.read(file), truth, settings) for name, file in pairs]
    systems = [measure(one, draws) for one in matched]  # when all files are known to be good
    result = {
        "version": VERSION,
        "mm3d": __version__,
        "truth": {"folder": str(truth_folder), "name": truth.name, "notes": list(truth.notes)},
        "settings": to_dict(settings),
        "systems": [{"file": str(file)} | system.result for file, system in zip(files, systems, strict=True)],
        "comparisons": compare(systems),
    }
    return result, systems


def name_systems(files: list[Path]) -> list[str]:
    """The name of each file, with as many folders before it as it takes to tell the files apart."""
    if len({file.resolve() for file in files}) < len(files):
        raise InputError("a predictions file is given twice; give each once.")
    for folders in range(1, 1 + max(len(file.resolve().parts) for file in files)):
        names = ["/".join(file.resolve().with_suffix("").parts[-folders:]) for file in files]
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]


def _plain(value: Any) -> Any:
    """The value for JSON, which has neither NaN nor infinity: they become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
