"""The cohorts of a configuration, read from their prepared folders."""

from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric
from rich.console import Console

from mm3d.data.inputs import Histogram, InputName, modality_of, prepared_breasts, training_histogram
from mm3d.data.prepare.prepared import PreparedBreast
from mm3d.evaluate.truth import Truth, read_truth
from mm3d.model.weights import find, read_header
from mm3d.predict.suspicion import project
from mm3d.shared.errors import InputError
from mm3d.train.config import CohortConfig, TrainConfig
from mm3d.train.data import TrainingBreast, choose


@dataclass(frozen=True)
class ValidationCohort:
    """Breasts to validate on, and the truth about them."""

    breasts: list[PreparedBreast]
    truth: Truth
    input: InputName
    histogram: Histogram | None
    split: str | None


def read_training(config: TrainConfig, folder: Path, fabric: Fabric, console: Console) -> list[TrainingBreast]:
    """The breasts of all training cohorts that the regime keeps."""
    pool = []
    for cohort in config.data.train:
        histogram = find_histogram(cohort, config)
        breasts = _read_breasts(cohort, config, folder, fabric)
        pool += [TrainingBreast(breast, cohort.input, histogram) for breast in breasts]
    unlabelled = sum(breast.prepared.breast.label is None for breast in pool)
    if unlabelled:
        console.print(f"{unlabelled} of {len(pool)} breasts have no label and are left out.", highlight=False)
    return choose(pool, config.data)


def read_validation(config: TrainConfig, folder: Path, fabric: Fabric) -> list[ValidationCohort]:
    """The validation cohorts with their truth. Together they need malignant and other breasts."""
    cohorts = [
        ValidationCohort(
            breasts=_read_breasts(cohort, config, folder, fabric),
            truth=read_truth(cohort.folder),
            input=cohort.input,
            histogram=find_histogram(cohort, config),
            split=cohort.split,
        )
        for cohort in config.data.validation
    ]
    labels = {breast.breast.label for cohort in cohorts for breast in cohort.breasts} - {None}
    if cohorts and ("malignant" not in labels or labels == {"malignant"}):
        wrong = "only malignant breasts" if "malignant" in labels else "no malignant breast"
        raise InputError(f"{config.data.validation[0].folder}: the validation cohorts have {wrong}; give both kinds.")
    return cohorts


def _read_breasts(cohort: CohortConfig, config: TrainConfig, folder: Path, fabric: Fabric) -> list[PreparedBreast]:
    """The breasts of a cohort. For input msp they have projections, which the ranks make together."""
    breasts = prepared_breasts(cohort.folder, cohort.split, modality_of(cohort.input))
    if cohort.input != "msp":
        return breasts
    weights = find_suspicion(cohort, config)
    project(breasts[fabric.global_rank :: fabric.world_size], weights, folder / "projections")
    fabric.barrier()
    return project(breasts, weights, folder / "projections")


def find_suspicion(cohort: CohortConfig, config: TrainConfig) -> Path:
    """The weights that make the projections of input msp: those of the cohort, or the start weights."""
    if cohort.suspicion is not None:
        return find(cohort.suspicion)
    if config.start_weights is not None:
        return Path(config.start_weights)
    raise InputError(
        f"{cohort.folder}: input msp needs the weights of a detector of slices; give them with suspicion, or start "
        "from weights."
    )


def find_histogram(cohort: CohortConfig, config: TrainConfig) -> Histogram | None:
    """The average histogram for input hm: that of the cohort's mammograms, or the one in the start weights."""
    if cohort.input != "hm":
        return None
    if cohort.mammograms is not None:
        return training_histogram(cohort.mammograms, config.data.train[0].split)
    if config.start_weights is not None:
        histogram = read_header(config.start_weights).provenance.get("histogram")
        if histogram:
            return tuple(histogram)
    raise InputError(
        f"{cohort.folder}: input hm needs the average histogram of mammograms; give a prepared folder that has some "
        "with mammograms."
    )
