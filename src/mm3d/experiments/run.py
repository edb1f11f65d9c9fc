"""One run of a study: train, predict the test cohort, keep the scores.

    FOLDER/runs/<run>-seed<k>/
        config.json, log.jsonl, curves.png, last.safetensors    as `mm3d train` leaves them
        recipe.json                                             everything that the weights depend on
        output.txt                                              the output of the process

The weights of a training's last step count, for all methods alike: choosing the best of several validations would
favour what varies most. Only runs with a learning curve are validated, and nothing is chosen by it. Checkpoints are
removed when the result is written. All paths are relative to the study's folder, so results say nothing of the machine.
"""

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mm3d import __version__
from mm3d.data.inputs import Histogram, prepared_breasts, training_histogram
from mm3d.evaluate.match import highest_findings, match_predictions
from mm3d.evaluate.measure import System, measure
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.roc import delong
from mm3d.experiments.cohorts import part_of
from mm3d.experiments.results import Result, compact, judged_cohort, read_tested, write_cohort, write_result
from mm3d.experiments.spec import INFERENCE_ONLY, Job, Pool, RunSpec, StudySpec
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.output.predictions import Predictions
from mm3d.predict.detect import predict_breast, project
from mm3d.shared.config import to_dict
from mm3d.shared.console import Console
from mm3d.shared.files import check_folder, lock_folder, save_json
from mm3d.train.config import DENSE, RANDOM, TrainConfig, make_config
from mm3d.train.log import peak_memory, read_log
from mm3d.train.state import CHECKPOINTS

RUNS, LAST, RECIPE, OUTPUT, PROJECTIONS = "runs", "last.safetensors", "recipe.json", "output.txt", "projections"


def folder_of(job: Job) -> Path:
    return Path(RUNS, job.name)


def weights_of(study: StudySpec, job: Job, given: dict[str, str]) -> Path:
    """The weights that a job is tested with: its own, or those that it starts from."""
    return start_weights(study, job, given) if job.run.stage == INFERENCE_ONLY else folder_of(job) / LAST


def start_weights(study: StudySpec, job: Job, given: dict[str, str]) -> Path:
    start = study.start_of(job)
    return Path(given[job.run.start]) if start is None else weights_of(study, start, given)


def write_recipe(weights_path: Path, recipe: dict[str, Any]) -> None:
    """Write beside weights what they depend on."""
    save_json(weights_path.with_name(RECIPE), recipe)


def check_weights(path: Path, recipe: dict[str, Any] | None) -> None:
    """Refuse weights of the same name that another study left in the folder."""
    while recipe is not None and recipe["run"]["stage"] == INFERENCE_ONLY:
        recipe = recipe["start"]
    if recipe is not None:
        check_folder(path.parent, RECIPE, recipe, remedy="move that folder away, or give another one with -o")


def execute(study: StudySpec, job: Job, results: Path, given: dict[str, str], commit: str) -> Result:
    """Do the whole job in the study's folder, and write its result."""
    run, folder, recipe = job.run, folder_of(job), study.recipe(job)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        if study.start_of(job) is not None:
            check_weights(start_weights(study, job, given), recipe["start"])
        config = None
        if run.stage != INFERENCE_ONLY:
            check_weights(folder / LAST, recipe)
            write_recipe(folder / LAST, recipe)
            config = training_config(study, job, given)
            from mm3d.train.run import train  # Fabric takes seconds to import, and many runs train nothing

            train(config, folder, resume=True, console=Console(width=120))
        weights_path = weights_of(study, job, given)
        model = load_model(run, weights_path)
        before = time.perf_counter()
        predictions = predict_cohort(study, run, model, weights_path, folder)
        predicted = time.perf_counter() - before
        truth, settings = read_tested(study, run)
        draws = bootstrap.draw(len(truth.patients), settings.replicates, settings.seed)
        measured = measure(match_predictions(run.name, predictions, truth, settings), draws)
        write_cohort(judged_cohort(truth, settings), results)
        memory = [line.get("memory_mb", 0.0) for stage in (folder / DENSE, folder) for line in read_log(stage)]
        result = Result(
            study=study.name,
            run=run.name,
            seed=job.seed,
            modality=run.modality,
            recipe=recipe,
            configuration=None if config is None else to_dict(config),
            curve=learning_curve(folder),
            figures=figures_of(measured),
            seconds={"train": round(training_seconds(folder, config), 1), "predict": round(predicted, 1)},
            memory_mb=round(max(memory, default=0.0) or peak_memory(), 1),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            weights=str(weights_path),
            commit=commit,
            mm3d=__version__,
            scores=compact(measured.matched),
        )
        write_result(result, results)
        for unfinished in (CHECKPOINTS, f"{DENSE}/{CHECKPOINTS}", PROJECTIONS):  # what only an unfinished run needs
            shutil.rmtree(folder / unfinished, ignore_errors=True)
    return result


def training_config(study: StudySpec, job: Job, given: dict[str, str]) -> TrainConfig:
    """The whole configuration of a job's training."""
    run, settings = job.run, study.settings(job.run)
    pools = study.pools(run)
    mammograms = {"mammograms": str(part_of(study, run.train)[0])} if run.input == "hm" else {}
    validation = [Pool(study.validation, run.input)] if run.curve and job.seed == run.seeds[0] else []
    data = settings.get("data", {}) | {
        "train": [pool_settings(study, pool) | mammograms for pool in pools],
        "validation": [pool_settings(study, pool) | mammograms for pool in validation],
        "fraction": run.data,
        "annotated_fraction": run.annotated,
        "drop_unannotated_malignant": run.drop_unannotated,
    }
    start = run.start if run.start in (RANDOM, DENSE) else str(start_weights(study, job, given))
    model = settings.get("model", {}) | {"fusion": run.fusion}
    if start not in (RANDOM, DENSE):
        model.pop("preset", None)  # the model is that of the start weights
    loop = settings.get("loop", {}) | {"seed": job.seed}
    return make_config(settings | {"data": data, "model": model, "loop": loop, "start": start}, f"the run {run.name}")


def pool_settings(study: StudySpec, pool: Pool) -> dict[str, Any]:
    """A cohort as the configuration of a training has it."""
    folder, split = part_of(study, pool.cohort)
    return {"folder": str(folder), "input": pool.input} | ({} if split is None else {"split": split})


def learning_curve(folder: Path) -> tuple[dict[str, float | None], ...]:
    """The figures of each validation of a training, and its step."""
    return tuple({"step": line["step"]} | line["validation"] for line in read_log(folder) if "validation" in line)


def load_model(run: RunSpec, path: Path) -> Detector:
    """Load weights as the run's model. Its fusion may differ from theirs if nothing was trained."""
    model = Detector(replace(weights.read_header(path).config, fusion=run.fusion)).eval()
    weights.start_from(model, path)
    return model


def predict_cohort(study: StudySpec, run: RunSpec, model: Detector, weights_path: Path, folder: Path) -> Predictions:
    """Predict every breast of the test cohort."""
    breasts = prepared_breasts(*part_of(study, run.test), run.modality)
    if run.input == "msp":  # the same weights say which slice is suspicious: a detector of mammograms is one of slices
        suspicion = weights.read_header(weights_path).provenance.get("suspicion", weights_path)
        breasts = project(breasts, Path(suspicion), folder / PROJECTIONS)
    histogram = load_histogram(study, run, weights_path)
    ready = model.for_inference().to("cuda" if torch.cuda.is_available() else "cpu")
    return Predictions(tuple(predict_breast(ready, breast, run.input, histogram) for breast in breasts))


def load_histogram(study: StudySpec, run: RunSpec, weights_path: Path) -> Histogram | None:
    """For input hm, the histogram of the training cohort's mammograms. A training has left it in its weights."""
    if run.input != "hm":
        return None
    carried = weights.read_header(weights_path).provenance.get("histogram")
    return tuple(carried) if carried else training_histogram(*part_of(study, run.train))


def figures_of(measured: System) -> dict[str, float | None]:
    """The figures of a run, by the names that `mm3d train` has for them. None where there is none."""
    figures: dict[str, float] = {}
    for rule, prefix in (("2D", "recall"), ("3D", "recall3d")):
        for one in measured.result["recall"].get(rule, {}).get("finding", ()):
            name = f"{prefix}@{one['fp_per_volume']:g}"
            figures |= {name: one["recall"], f"{name}_se": one["standard_error"]}
    matched = measured.matched
    breasts = matched.units["breast"]
    for name, scores in (("auc", breasts.scores), ("auc_max", highest_findings(matched)[breasts.number])):
        areas = delong(scores[None], breasts.positive)
        figures |= {name: float(areas.values[0]), f"{name}_se": areas.standard_error()}
    if measured.result["depth"] is not None:
        figures["slice_visible"] = measured.result["depth"]["visible"]
    return {name: round(value, 5) if math.isfinite(value) else None for name, value in figures.items()}


def training_seconds(folder: Path, config: TrainConfig | None) -> float:
    """How long the steps took, by the log, which also has those before an interruption."""
    if config is None:
        return 0.0
    total = 0.0
    for stage, batch in ((folder / DENSE, config.dense.batch), (folder, config.loop.batch * config.loop.accumulate)):
        done = 0
        for line in read_log(stage):
            if "breasts_per_second" in line:
                total += (line["step"] - done) * batch / line["breasts_per_second"]
                done = line["step"]
    return total
