"""The cohorts of a configuration, read from their prepared folders."""

from pathlib import Path

from lightning_fabric import Fabric
from rich.console import Console

from mm3d.data.batches import PreparedBreast, prepared_breasts, training_histogram
from mm3d.data.inputs import Histogram, modality_of
from mm3d.evaluate.truth import read_truth
from mm3d.model.weights import find, read_header
from mm3d.predict.suspicion import project
from mm3d.shared.errors import InputError
from mm3d.train.config import DENSE, RANDOM, CohortConfig, TrainConfig
from mm3d.train.data import TrainingBreast, choose
from mm3d.train.validate import ValidationCohort


def read_training(config: TrainConfig, folder: Path, fabric: Fabric, console: Console) -> list[TrainingBreast]:
    """The breasts that the regime leaves, over all training cohorts."""
    pool = []
    for cohort in config.data.train:
        histogram = histogram_of(cohort, config)
        pool += [TrainingBreast(breast, cohort.input, histogram) for breast in _breasts(cohort, config, folder, fabric)]
    unknown = sum(breast.prepared.breast.label is None for breast in pool)
    if unknown and fabric.is_global_zero:
        console.print(f"{unknown} of {len(pool)} breasts have no label and are left out.", highlight=False)
    return choose(pool, config.data)


def read_validation(config: TrainConfig, folder: Path, fabric: Fabric) -> list[ValidationCohort]:
    """The validation cohorts with their truth; they must be able to tell what decides."""
    cohorts = []
    for cohort in config.data.validation:
        truth = read_truth(cohort.folder)
        cohorts.append(
            ValidationCohort(
                breasts=_breasts(cohort, config, folder, fabric),
                truth=truth,
                input=cohort.input,
                histogram=histogram_of(cohort, config),
                split=cohort.split,
            )
        )
    breasts = [breast for cohort in cohorts for breast in cohort.breasts]
    labels = {breast.breast.label == "malignant" for breast in breasts if breast.breast.label is not None}
    if cohorts and labels != {True, False}:
        wrong = "no malignant breast" if True not in labels else "malignant breasts only"
        raise InputError(f"{config.data.validation[0].folder}: the validation cohorts have {wrong}; give both kinds.")
    return cohorts


def _breasts(cohort: CohortConfig, config: TrainConfig, folder: Path, fabric: Fabric) -> list[PreparedBreast]:
    """A cohort's breasts; for input msp with their projections, which ranks share the work of."""
    breasts = prepared_breasts(cohort.folder, cohort.split, modality_of(cohort.input))
    if cohort.input != "msp":
        return breasts
    weights = suspicion_of(cohort, config)
    project(breasts[fabric.global_rank :: fabric.world_size], weights, folder / "projections")
    fabric.barrier()
    return project(breasts, weights, folder / "projections")


def suspicion_of(cohort: CohortConfig, config: TrainConfig) -> Path:
    """The weights that input msp is projected with: those given, or the start weights."""
    if cohort.suspicion is not None:
        return find(cohort.suspicion)
    if config.start not in (RANDOM, DENSE):
        return Path(config.start)
    raise InputError(
        f"{cohort.folder}: input msp needs the weights of a detector of slices; give them with suspicion, or start "
        "from weights."
    )


def histogram_of(cohort: CohortConfig, config: TrainConfig) -> Histogram | None:
    """The average histogram that input hm needs: of the mammograms given, or what the start weights carry."""
    if cohort.input != "hm":
        return None
    if cohort.mammograms is not None:
        return training_histogram(cohort.mammograms, config.data.train[0].split)
    if config.start not in (RANDOM, DENSE):
        carried = read_header(config.start).provenance.get("histogram")
        if carried:
            return tuple(carried)
    raise InputError(
        f"{cohort.folder}: input hm needs the average histogram of mammograms; name a prepared folder "
        "that has them with mammograms."
    )
