"""One run of a study, in a process of its own: train, predict the test cohort, keep the scores.

    FOLDER/runs/<run>-seed<k>/
        config.json, log.jsonl, curves.png, last.safetensors    as `mm3d train` leaves them
        recipe.json                                             all that the weights depend on
        output.txt                                              what the process said

Of a training the weights of its last step count, for all methods alike: choosing the best validation would favour what
varies most. So nothing is validated, and its time goes into steps. Checkpoints are removed when the result is written.

The process works in the study's folder and names everything relative to it: results say nothing of the machine.
"""

import json
import math
import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mm3d import __version__
from mm3d.data.batches import prepared_breasts, training_histogram
from mm3d.data.inputs import Histogram
from mm3d.evaluate.match import highest_findings, match_predictions, score_breasts
from mm3d.evaluate.measure import System, measure
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.roc import delong
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.truth import read_truth
from mm3d.experiments.cohorts import part_of
from mm3d.experiments.results import JudgedCohort, Result, compact, judged_cohort, write_cohort, write_result
from mm3d.experiments.spec import INFERENCE_ONLY, RunSpec, StudySpec, config_for, recipe, start_of
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.output.predictions import Predictions
from mm3d.predict.detect import predict_breast
from mm3d.predict.suspicion import project
from mm3d.shared.config import difference, from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing
from mm3d.train.config import DENSE, RANDOM, TrainConfig
from mm3d.train.log import peak_memory, read_log
from mm3d.train.state import CHECKPOINTS

RUNS = "runs"
LAST = "last.safetensors"
RECIPE = "recipe.json"  # beside the weights: all that they depend on
OUTPUT = "output.txt"
PROJECTIONS = "projections"


@dataclass(frozen=True)
class Order:
    """What the process is told: one run of a study."""

    study: StudySpec
    run: str
    seed: int
    folder: Path  # the study's
    results: Path
    given: dict[str, str]  # start weights that the user gave, by name
    commit: str


def folder_of(run: str, seed: int) -> Path:
    """Of a run, relative to the study's."""
    return Path(RUNS, f"{run}-seed{seed}")


def weights_of(study: StudySpec, run: RunSpec, seed: int, given: dict[str, str]) -> Path:
    """The weights that a run is tested with, relative to the study's folder: its own, or those it starts from."""
    if run.stage != INFERENCE_ONLY:
        return folder_of(run.name, seed) / LAST
    return start_weights(study, run, seed, given)


def start_weights(study: StudySpec, run: RunSpec, seed: int, given: dict[str, str]) -> Path:
    start = start_of(study, run, seed)
    return Path(given[run.start]) if start is None else weights_of(study, *start, given)


def write_recipe(weights_path: Path, own: dict[str, Any]) -> None:
    """Say beside weights what they are made with."""
    with replacing(weights_path.with_name(RECIPE)) as partial:
        partial.write_text(json.dumps(own, indent=1), encoding="utf-8")


def check_weights(path: Path, wanted: dict[str, Any] | None) -> None:
    """Refuse weights that another study left in the folder under the same name."""
    while wanted is not None and wanted["run"]["stage"] == INFERENCE_ONLY:
        wanted = wanted["start"]
    beside = path.with_name(RECIPE)
    if wanted is None or not path.is_file() or not beside.is_file():
        return
    if found := difference(json.loads(beside.read_text(encoding="utf-8")), wanted):
        raise InputError(
            f"{path.parent} holds weights of another study ({found}); move that folder away, or give another one for "
            "this study with -o."
        )


def main() -> int:
    """In the process: the order comes in on the first line of standard input, which stays open while the study
    lives."""
    order = from_dict(Order, json.loads(sys.stdin.readline()), "the order")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        execute(order)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _end_with_parent() -> None:
    """A killed study must not leave runs behind that its next start would meet."""
    sys.stdin.read()
    os._exit(1)


def execute(order: Order) -> Path:
    """The whole run; returns the result's file."""
    os.chdir(order.folder)
    study, run = order.study, order.study.run(order.run)
    folder = folder_of(run.name, order.seed)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=120)
    own = recipe(study, run, order.seed)
    if start_of(study, run, order.seed) is not None:
        check_weights(start_weights(study, run, order.seed, order.given), own["start"])
    config, seconds, memory = None, 0.0, 0.0
    if run.stage != INFERENCE_ONLY:
        check_weights(folder / LAST, own)
        write_recipe(folder / LAST, own)
        config = training_of(study, run, order.seed, order.given)
        from mm3d.train.run import train  # Fabric takes seconds to import, and runs that train nothing are many

        train(config, folder, resume=True, console=console)
        seconds = seconds_of(folder, config)
        memory = max(line.get("memory_mb", 0.0) for line in [*read_log(folder / DENSE), *read_log(folder)])
    weights_path = weights_of(study, run, order.seed, order.given)
    model = model_of(run, weights_path)
    before = time.perf_counter()
    predictions = predict_cohort(study, run, model, weights_path, folder)
    predicted = time.perf_counter() - before
    measured, cohort = measure_run(study, run, predictions)
    write_cohort(cohort, order.results)
    result = Result(
        study=study.name,
        run=run.name,
        seed=order.seed,
        modality=run.modality,
        recipe=own,
        configuration=None if config is None else to_dict(config),
        figures=figures_of(measured),
        seconds={"train": round(seconds, 1), "predict": round(predicted, 1)},
        memory_mb=round(memory or peak_memory(), 1),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights=str(weights_path),
        commit=order.commit,
        mm3d=__version__,
        scores=compact(measured.matched),
    )
    path = write_result(result, order.results)
    clear(folder)
    return path


def training_of(study: StudySpec, run: RunSpec, seed: int, given: dict[str, str]) -> TrainConfig:
    """The configuration of a run's training."""
    start = run.start if run.start in (RANDOM, DENSE) else str(start_weights(study, run, seed, given))
    pools: list[dict[str, Any]] = []
    for pool in study.pools(run):
        part = part_of(study, pool.cohort)
        told: dict[str, Any] = {"folder": str(part.folder), "input": pool.input}
        if part.split is not None:
            told["split"] = part.split
        if pool.input == "hm":
            told["mammograms"] = str(part.folder)
        pools.append(told)
    return config_for(study, run, seed, start, pools, f"the run {run.name}")


def model_of(run: RunSpec, path: Path) -> Detector:
    """The weights as the run's model, whose fusion may be another if nothing was trained."""
    header = weights.read_header(path)
    model = Detector(replace(header.config, fusion=run.fusion)).eval()
    weights.start_from(model, path)
    return model


def predict_cohort(study: StudySpec, run: RunSpec, model: Detector, weights_path: Path, folder: Path) -> Predictions:
    """What the model says of every breast of the test cohort."""
    part = part_of(study, run.test)
    breasts = prepared_breasts(part.folder, part.split, run.modality)
    if run.input == "msp":  # which slice is suspicious, the same weights say: a detector of mammograms is one of slices
        suspicion = weights.read_header(weights_path).provenance.get("suspicion", weights_path)
        breasts = project(breasts, Path(suspicion), folder / PROJECTIONS)
    histogram = histogram_of(study, run, weights_path)
    ready = model.for_inference().to("cuda" if torch.cuda.is_available() else "cpu")
    return Predictions(tuple(predict_breast(ready, breast, run.input, histogram) for breast in breasts))


def histogram_of(study: StudySpec, run: RunSpec, weights_path: Path) -> Histogram | None:
    """For input hm, of the training cohort's mammograms; a training has left it in its weights."""
    if run.input != "hm":
        return None
    carried = weights.read_header(weights_path).provenance.get("histogram")
    if carried:
        return tuple(carried)
    part = part_of(study, run.train)
    return training_histogram(part.folder, part.split)


def measure_run(study: StudySpec, run: RunSpec, predictions: Predictions) -> tuple[System, JudgedCohort]:
    """Judged with the rules of `mm3d evaluate`; and who was tested."""
    part = part_of(study, run.test)
    settings = EvaluateSettings(modality=run.modality, leave_out_benign=study.leave_out_benign)
    truth = read_truth(part.folder).in_split(part.split)
    matched = match_predictions(run.name, predictions, truth, settings)
    draws = bootstrap.draw(len(truth.patients), settings.replicates, settings.seed)
    return measure(matched, draws), judged_cohort(truth, settings)


def figures_of(measured: System) -> dict[str, float | None]:
    """The figures of a run, by the names that `mm3d train` has for them; None where there is none."""
    figures: dict[str, float] = {}
    for rule, prefix in (("2D", "recall"), ("3D", "recall3d")):
        for one in measured.result["recall"].get(rule, {}).get("finding", ()):
            name = f"{prefix}@{one['fp_per_volume']:g}"
            figures |= {name: one["recall"], f"{name}_se": one["standard_error"]}
    matched = measured.matched
    highest = score_breasts(matched, scores=highest_findings(matched))
    for name, units in (("auc", matched.units["breast"]), ("auc_max", highest)):
        areas = delong(units.scores[None], units.positive)
        figures |= {name: float(areas.auc[0]), f"{name}_se": areas.standard_error()}
    if measured.result["depth"] is not None:
        figures["slice_visible"] = measured.result["depth"]["visible"]
    return {name: round(value, 5) if math.isfinite(value) else None for name, value in figures.items()}


def seconds_of(folder: Path, config: TrainConfig) -> float:
    """What the steps took, by the log: it knows of those before an interruption, too."""
    total = 0.0
    for stage, batch in ((folder / DENSE, config.dense.batch), (folder, config.loop.batch * config.loop.accumulate)):
        done = 0
        for line in read_log(stage):
            if "breasts_per_second" in line:
                total += (line["step"] - done) * batch / line["breasts_per_second"]
                done = line["step"]
    return total


def clear(folder: Path) -> None:
    """Remove what only an unfinished run needs; weights, log and curves stay."""
    for name in (CHECKPOINTS, f"{DENSE}/{CHECKPOINTS}", PROJECTIONS):
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
