"""The cohorts of a configuration: their prepared folders are read, and the breasts of the regime are chosen."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_fabric import Fabric

from mm3d.data.inputs import Histogram, modality_of, prepared_breasts, training_histogram
from mm3d.evaluate.truth import Truth, read_truth
from mm3d.model.weights import find, read_header
from mm3d.predict.detect import project
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.train.config import CohortConfig, DataConfig, TrainConfig
from mm3d.train.data import TrainingBreast


@dataclass(frozen=True)
class ValidationCohort:
    """Breasts to validate on, and the truth about them."""

    config: CohortConfig
    breasts: list[TrainingBreast]
    truth: Truth


def read_training(config: TrainConfig, folder: Path, fabric: Fabric, console: Console) -> list[TrainingBreast]:
    """The breasts of all training cohorts that the regime keeps."""
    pool = [breast for cohort in config.data.train for breast in _read_breasts(cohort, config, folder, fabric)]
    unlabelled = sum(breast.prepared.breast.label is None for breast in pool)
    if unlabelled:
        say(console, f"{unlabelled} of {len(pool)} breasts have no label and are left out.")
    return choose(pool, config.data)


def choose(pool: Sequence[TrainingBreast], config: DataConfig) -> list[TrainingBreast]:
    """The breasts of a regime: `fraction`, then `annotated_fraction`, then `drop_unannotated_malignant`."""
    labelled = [breast for breast in pool if breast.prepared.breast.label is not None]
    kept = _take_share(labelled, _stratum, config.fraction, f"{config.seed} breasts")
    with_boxes = [breast for breast in kept if breast.malignant and breast.prepared.annotated]
    boxed = {id(b) for b in _take_share(with_boxes, lambda _: "", config.annotated_fraction, f"{config.seed} boxes")}
    chosen = [replace(breast, boxed=id(breast) in boxed) if breast.malignant else breast for breast in kept]
    if config.drop_unannotated_malignant:
        chosen = [breast for breast in chosen if not breast.malignant or breast.boxed]
    malignant = sum(breast.malignant for breast in chosen)
    if not malignant:
        raise InputError(
            "There is no malignant breast to train on: the cohorts of data.train have none with a label, or the regime "
            "(fraction, drop_unannotated_malignant) left none; give a cohort that has some."
        )
    if config.sampling == "balanced" and malignant == len(chosen):
        raise InputError(
            "All training breasts are malignant, so nothing can be balanced; add others, or set data.sampling natural."
        )
    return chosen


def _stratum(breast: TrainingBreast) -> str:
    """Fractions keep the mix of inputs, of labels, and of annotated and other malignant breasts."""
    label = breast.prepared.breast.label
    return f"{breast.input} {label} {breast.prepared.annotated if label == 'malignant' else ''}"


def _take_share(
    breasts: list[TrainingBreast], group: Callable[[TrainingBreast], str], share: float, salt: str
) -> list[TrainingBreast]:
    """The first breasts of each group, in the order of hashes of their names: a larger share contains a smaller one.
    Each group keeps at least one breast, unless the share is 0."""
    groups: dict[str, list[TrainingBreast]] = {}
    for breast in breasts:
        groups.setdefault(group(breast), []).append(breast)
    kept = set()
    for members in groups.values():
        ranked = sorted(members, key=lambda breast: hashlib.sha256(f"{salt} {breast.name}".encode()).digest())
        count = max(round(share * len(members)), 1) if share > 0 else 0
        kept |= {id(breast) for breast in ranked[:count]}
    return [breast for breast in breasts if id(breast) in kept]


def read_validation(config: TrainConfig, folder: Path, fabric: Fabric) -> list[ValidationCohort]:
    """The validation cohorts with their truth. Together they need malignant and other breasts."""
    cohorts = [
        ValidationCohort(cohort, _read_breasts(cohort, config, folder, fabric), read_truth(cohort.folder))
        for cohort in config.data.validation
    ]
    labels = {breast.prepared.breast.label for cohort in cohorts for breast in cohort.breasts} - {None}
    if cohorts and ("malignant" not in labels or labels == {"malignant"}):
        wrong = "only malignant breasts" if "malignant" in labels else "no malignant breast"
        raise InputError(f"{config.data.validation[0].folder}: the validation cohorts have {wrong}; give both kinds.")
    return cohorts


def _read_breasts(cohort: CohortConfig, config: TrainConfig, folder: Path, fabric: Fabric) -> list[TrainingBreast]:
    """The breasts of a cohort. For input msp they have projections, which the ranks make together."""
    breasts = prepared_breasts(cohort.folder, cohort.split, modality_of(cohort.input))
    if cohort.input == "msp":
        weights = find_suspicion(cohort, config)
        project(breasts[fabric.global_rank :: fabric.world_size], weights, folder / "projections")
        fabric.barrier()
        breasts = project(breasts, weights, folder / "projections")
    histogram = find_histogram(cohort, config)
    return [TrainingBreast(breast, cohort.input, histogram) for breast in breasts]


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
