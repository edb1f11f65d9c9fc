"""`mm3d study ship`: the best weights of a study into the package, with where they come from and how good they are."""

from pathlib import Path
from typing import Any

from rich.console import Console

from mm3d.experiments.results import OPERATING_RATE, JudgedCohort, Result, read_cohort, read_results, threshold_of
from mm3d.experiments.spec import INFERENCE_ONLY, RunSpec, StudySpec, read_study
from mm3d.experiments.work import check_weights
from mm3d.model import weights
from mm3d.shared.errors import InputError

SHIPPED = Path(weights.__file__).parent.parent / "shipped"
LARGEST = 10_000_000  # bytes of a file


def ship(name: str, results: Path, folder: Path, target: Path = SHIPPED) -> int:
    """Write ffdm.safetensors and dbt.safetensors to `target`. Returns the exit code."""
    study = read_study(name)
    found = read_results(study, results)
    cohort = read_cohort(results)
    for modality, file in (("FFDM", "ffdm.safetensors"), ("DBT", "dbt.safetensors")):
        best = choose(study, list(found.values()), modality)
        write_shipped(best, cohort, folder, target / file)
        Console().print(f"Wrote {target / file}: {best.run}, seed {best.seed}.", highlight=False, soft_wrap=True)
    return 0


def choose(study: StudySpec, results: list[Result], modality: str) -> Result:
    """The trained run with the highest mean of R@0.25 in 2D and AUC; of volumes M&M-3D of the usual depth only, because
    its weights take mammograms, too."""
    usual = [
        result
        for result in results
        if (run := study.run(result.run)).stage != INFERENCE_ONLY
        and result.modality == modality
        and run.input in ("ffdm", "volume")
        and run.fusion == "weighted"
        and run.test == RunSpec.test
    ]
    if not usual:
        raise InputError(f"there is no finished run of {modality} to ship; run the study first.")
    return max(usual, key=lambda result: (result.figures["recall@0.25"] or 0.0) + (result.figures["auc"] or 0.0))


def operating_point(result: Result, cohort: JudgedCohort) -> dict[str, Any]:
    """What `mm3d predict` marks with these weights."""
    images = len(cohort.marks[result.modality].volumes)
    return {
        "threshold": round(min(1.0, threshold_of(result, cohort)), 6),
        "source": f"{OPERATING_RATE:g} false positives per image on {images} images of synthetic breasts",
    }


def shipped_as(result: Result) -> Path | None:
    """The weights that come with mm3d, if they are this run's."""
    for path in weights.shipped():
        if weights.read_header(path).provenance.get("study", {}).items() >= _told(result).items():
            return path
    return None


def _told(result: Result) -> dict[str, Any]:
    """Which run weights are of."""
    return {"run": result.run, "seed": result.seed, "study": result.study, "commit": result.commit}


def write_shipped(result: Result, cohort: JudgedCohort, folder: Path, path: Path) -> None:
    """The weights with the run's figures and operating point in their header."""
    source = folder / result.weights
    check_weights(source, result.recipe)
    header = weights.read_header(source)
    chosen = "The best of the study's runs on the test cohort that the figures are of: they flatter it a little."
    provenance = header.provenance | {
        "study": _told(result) | {"figures": result.figures, "note": chosen},
        "operating_point": operating_point(result, cohort),
    }
    model = weights.load(source)
    weights.save(model, path, provenance, header.intended_use)
    if path.stat().st_size > LARGEST:
        size = path.stat().st_size
        path.unlink()
        raise InputError(f"{source} has {size / 1e6:.1f} MB, and the package has room for 10; ship a smaller model.")
