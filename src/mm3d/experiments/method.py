"""What a study did, in words and tables, from its own file: cohorts, recipe, rules."""

from typing import Any

from mm3d.evaluate.settings import EvaluateSettings
from mm3d.experiments.cohorts import needed, slices_of
from mm3d.experiments.plan import duration
from mm3d.experiments.spec import StudySpec
from mm3d.experiments.statistics import REPLICATES, Metric, Statistics

# The methods by their labels in study files; what else a study compares, its own sections say.
METHODS = {
    "M&M": "the two-view detector of mammograms (FFDM), where everything starts",
    "MIP": "M&M on the volume's maximum intensity projection",
    "HM": "the same, its histogram matched to the average mammogram's",
    "MSP": "M&M on the maximum suspicion projection: every place from the slice that M&M suspects most there",
    "Buda": "M&M on every slice by itself; in one place the highest score counts",
    "M&M-3D": "all slices together, the paper's method without new parameters: w, the softmax of the slices' "
    "malignancy logits, weights the mean of their features, and its highest tells the slice",
    "MeanPool": "M&M-3D with the plain mean of the slices",
    "MaxPool": "M&M-3D with their maximum, channel by channel",
    "TimeSform": "heavier variant, with new parameters: attention over all slices' RoI features",
    "QuerySummary": "heavier variant: a learned query attends over the slices",
    "MLP-Regress": "heavier variant: an MLP over all slices, which also regresses the slice",
}


def methods(study: StudySpec) -> str:
    """The names that the page uses."""
    labels = dict.fromkeys(run.label for run in study.runs)
    named = "\n".join(f"- **{label}**: {METHODS[label]}." for label in labels if label in METHODS)
    paper = (
        "The paper is *From 2D to 3D Without Extra Baggage* (Truong Vu et al., ML4H 2025). The names are the paper's, "
        "and so are figures in brackets."
    )
    return f"## The methods\n\n{paper}\n\n{named}"


def method(statistics: Statistics) -> str:
    """The section on how it was done."""
    study, results = statistics.study, statistics.results
    commits = sorted({result.commit for result in results.values() if result.commit})
    spent = sum(sum(result.seconds.values()) for result in results.values())
    cohort = statistics.cohort
    labels = ", ".join(f"{cohort.labels.count(label)} {label}" for label in dict.fromkeys(cohort.labels))
    findings = " and ".join(f"{len(marks.findings)} in {name}" for name, marks in sorted(cohort.marks.items()))
    lines = [
        "## How it was done",
        f"Tested on {len(cohort.names):,} breasts ({labels}). A cancer counts as a finding in each view that shows it: "
        f"{findings}.",
        "\n".join(
            [
                "| cohort | source | breasts | seed | P(malignant) | P(benign) | slices |",
                "|---|---|---|---|---|---|---|",
            ]
        )
        + "".join(f"\n{_cohort_row(statistics, name)}" for name in needed(study, study.runs)),
        f"Images: {_told(study.trial | {'width': study.width, 'length': study.length})}.",
        *study.remarks,
        "Every method has the same recipe: the same number of breasts seen, rates, augmentation and seeds; none was "
        "tuned by itself. The weights of the last step count: nothing is chosen on a validation cohort, so there is "
        "none. Fine-tuning starts from one set of FFDM weights. Seeds change the order of breasts, augmentation, and "
        "what starts at random. Which breasts a share of the data has, and which boxes one of the annotations, is the "
        "same for all seeds and methods: what another choice would change is not measured.",
        "\n".join(
            f"- **{name}**: {_told(study.training | {})}; {_told(stage)}" for name, stage in study.stages.items()
        ),
        "R@X is the recall of malignant findings at X false positives per volume, which is one view (or mammogram); "
        f"found is what a box overlaps with an intersection over union of at least {EvaluateSettings().iou:g}, and by "
        "the 3D rule the predicted slice is also one on which the finding is visible. Figures are means over seeds. "
        f"Standard errors: bootstrap over patients ({REPLICATES:,} replicates, the same draws for all), and the spread "
        "of seeds, pooled over all runs of a stage that have several; of runs that train nothing, and of a stage with "
        "one seed, the patients' share alone. Paired tests: the same, of the difference. "
        f"{_patients_share(statistics)}`docs/evaluation.md` has the rules.",
        f"Training and prediction took {duration(spent)} on one core; commits: {', '.join(commits) or 'not known'}.",
    ]
    return "\n\n".join(lines)


def _patients_share(statistics: Statistics) -> str:
    """Whether the test cohort is large enough, in a sentence; empty without fine-tuned runs."""
    parts = []
    metrics: tuple[tuple[Metric, str], ...] = (("recall@0.25", "R@0.25"), ("recall3d@0.25", "R@0.25 in 3D"))
    for metric, name in metrics:
        runs = [run.name for run in statistics.study.runs if "finetuned" in run.tables]
        errors = [statistics.patients_error(run, metric) for run in runs if statistics.values(run, metric)]
        if errors:
            parts.append(f"{min(errors):.3f} to {max(errors):.3f} for {name}")
    if not parts:
        return ""
    return (
        "The patients' share of the standard errors, which a larger test cohort would make smaller, is "
        f"{' and '.join(parts)} in section 2. "
    )


def _cohort_row(statistics: Statistics, name: str) -> str:
    study = statistics.study
    cohort = study.cohorts[name]
    if cohort.of:
        part = f", {cohort.split}" if cohort.split else ""
        return f"| {name} | {cohort.of}{part} | | | | | {slices_of(study, name)} |"
    if cohort.source == "bcs-dbt":
        return f"| {name} | BCS-DBT | | | | | {cohort.slices} |"
    benign = f"{cohort.benign:.0%}" if cohort.source == "phantom" else ""
    shares = f"{cohort.malignant:.0%} | {benign}"
    return f"| {name} | {cohort.source} | {cohort.breasts:,} | {cohort.seed} | {shares} | {cohort.slices} |"


def _told(settings: dict[str, Any], prefix: str = "") -> str:
    """Settings on a line."""
    told = []
    for name, value in settings.items():
        told.append(_told(value, f"{prefix}{name}.") if isinstance(value, dict) else f"{prefix}{name} {value}")
    return ", ".join(told)
