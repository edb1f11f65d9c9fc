"""`mm3d study ship`: put the best weights of a study into the package, with their origin and figures."""

from pathlib import Path
from typing import Any

from mm3d.experiments.results import OPERATING_RATE, JudgedCohort, Result, read_cohort, read_results, threshold_of
from mm3d.experiments.run import check_weights
from mm3d.experiments.spec import INFERENCE_ONLY, RunSpec, StudySpec, read_study
from mm3d.model import weights
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError

SHIPPED = Path(weights.__file__).parent.parent / "shipped"
LARGEST = 10_000_000  # bytes of a file


def ship(name: str, results: Path, folder: Path, target: Path = SHIPPED) -> int:
    """Write ffdm.safetensors and dbt.safetensors to `target`. Returns the exit code."""
    study = read_study(name)
    finished = list(read_results(study, results).values())
    cohort = read_cohort(results)
    for modality in ("FFDM", "DBT"):
        path = target / f"{modality.lower()}.safetensors"
        best = choose(study, finished, modality)
        write_shipped(best, cohort, folder, path)
        say(Console(), f"Wrote {path}: {best.run}, seed {best.seed}.")
    return 0


def choose(study: StudySpec, results: list[Result], modality: str) -> Result:
    """The trained run with the highest mean of R@0.25 in 2D and AUC. Of volumes only M&M-3D with the usual number of
    slices is taken, because its weights take mammograms, too."""
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


def write_shipped(result: Result, cohort: JudgedCohort, folder: Path, path: Path) -> None:
    """Write the weights with the run's figures and operating point in their header."""
    source = folder / result.weights
    check_weights(source, result.recipe)
    header = weights.read_header(source)
    chosen = "The best of the study's runs on the test cohort that the figures are of: they flatter it a little."
    images = len(cohort.annotations[result.modality].volumes)
    provenance = header.provenance | {
        "study": _origin(result) | {"figures": result.figures, "note": chosen},
        "operating_point": {
            "threshold": round(min(1.0, threshold_of(result, cohort)), 6),
            "source": f"{OPERATING_RATE:g} false positives per image on {images} images of synthetic breasts",
        },
    }
    weights.save(weights.load(source), path, provenance, header.intended_use)
    if (size := path.stat().st_size) > LARGEST:
        path.unlink()
        raise InputError(f"{source} has {size / 1e6:.1f} MB, but the package has room for 10; ship a smaller model.")


def find_shipped(result: Result) -> Path | None:
    """The weights that come with mm3d, if they are this run's."""
    for path in weights.shipped():
        if weights.read_header(path).provenance.get("study", {}).items() >= _origin(result).items():
            return path
    return None


def _origin(result: Result) -> dict[str, Any]:
    """Which run weights are of."""
    return {"run": result.run, "seed": result.seed, "study": result.study, "commit": result.commit}
