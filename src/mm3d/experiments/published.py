"""What the paper reports: From 2D to 3D Without Extra Baggage (Truong Vu et al., ML4H 2025), by table and label.

R@0.25, R@0.5 and AUC with their standard errors, on its own 6,803 test breasts. `3D` is the recall whose hits are also
on the right slice. The labels are those of the study files. Where the paper has no number there is none here.
"""

from dataclasses import dataclass
from typing import Literal

from mm3d.experiments.spec import INFERENCE_ONLY, RunSpec, StudySpec


@dataclass(frozen=True)
class Published:
    """A row of a published table; (value, standard error or None)."""

    recall_25: tuple[float, float | None] | None = None
    recall_50: tuple[float, float | None] | None = None
    auc: tuple[float, float | None] | None = None
    recall_25_3d: tuple[float, float | None] | None = None
    recall_50_3d: tuple[float, float | None] | None = None
    memory_gb: float | None = None
    hours: float | None = None


# Table 2, inference-only performance.
INFERENCE = {
    "M&M": Published((0.61, 0.025), (0.67, 0.025), (0.89, 0.009)),
    "MIP": Published((0.14, 0.018), (0.16, 0.019), (0.65, 0.012)),
    "HM": Published((0.33, 0.024), (0.41, 0.026), (0.77, 0.010)),
    "Buda": Published(None, None, (0.84, 0.009), (0.45, 0.026), (0.49, 0.026)),
    "M&M-3D": Published((0.53, 0.025), (0.57, 0.025), (0.85, 0.008), (0.46, 0.026), (0.48, 0.026)),
}

# Table 3, fine-tuned performance.
FINETUNED = {
    "M&M": Published((0.62, 0.027), (0.69, 0.026), (0.89, 0.008)),
    "MIP": Published((0.52, 0.026), (0.60, 0.025), (0.86, 0.008)),
    "HM": Published((0.53, 0.027), (0.60, 0.026), (0.87, 0.008)),
    "Buda*": Published(None, None, (0.92, 0.006), (0.68, 0.025), (0.74, 0.023)),
    "Buda": Published(None, None, (0.92, 0.006), (0.68, 0.023), (0.73, 0.023)),
    "M&M-3D*": Published(None, None, (0.94, 0.005), (0.73, 0.023), (0.79, 0.021)),
    "M&M-3D": Published((0.80, 0.020), (0.84, 0.019), (0.95, 0.004), (0.77, 0.021), (0.82, 0.019)),
}

# Tables 8 and 9 (appendix B): R@0.25, by the 3D rule, and AUC against the share of the data.
DATA = {
    ("TimeSform", 0.1): Published(auc=(0.90, None), recall_25_3d=(0.51, None)),
    ("TimeSform", 0.4): Published(auc=(0.93, None), recall_25_3d=(0.65, None)),
    ("TimeSform", 1.0): Published(auc=(0.95, None), recall_25_3d=(0.74, None)),
    ("QuerySummary", 0.1): Published(auc=(0.88, None), recall_25_3d=(0.51, None)),
    ("QuerySummary", 0.4): Published(auc=(0.94, None), recall_25_3d=(0.70, None)),
    ("QuerySummary", 1.0): Published(auc=(0.95, None), recall_25_3d=(0.77, None)),
    ("MLP-Regress", 0.1): Published(auc=(0.83, None), recall_25_3d=(0.41, None)),
    ("MLP-Regress", 0.4): Published(auc=(0.94, None), recall_25_3d=(0.63, None)),
    ("MLP-Regress", 1.0): Published(auc=(0.95, None), recall_25_3d=(0.69, None)),
    ("M&M-3D", 0.1): Published(auc=(0.91, None), recall_25_3d=(0.61, None)),
    ("M&M-3D", 0.4): Published(auc=(0.94, None), recall_25_3d=(0.71, None)),
    ("M&M-3D", 1.0): Published(auc=(0.95, None), recall_25_3d=(0.77, None)),
}

# Table 10: R@0.25, by the 3D rule, against the share of malignant breasts that are annotated.
ANNOTATIONS = {
    ("TimeSform", 0.02): Published(recall_25_3d=(0.69, None)),
    ("TimeSform", 0.16): Published(recall_25_3d=(0.73, None)),
    ("TimeSform", 0.4): Published(recall_25_3d=(0.74, None)),
    ("QuerySummary", 0.02): Published(recall_25_3d=(0.64, None)),
    ("QuerySummary", 0.16): Published(recall_25_3d=(0.74, None)),
    ("QuerySummary", 0.4): Published(recall_25_3d=(0.77, None)),
    ("MLP-Regress", 0.02): Published(recall_25_3d=(0.44, None)),
    ("MLP-Regress", 0.16): Published(recall_25_3d=(0.63, None)),
    ("MLP-Regress", 0.4): Published(recall_25_3d=(0.69, None)),
    ("M&M-3D", 0.02): Published(recall_25_3d=(0.74, None)),
    ("M&M-3D", 0.16): Published(recall_25_3d=(0.77, None)),
    ("M&M-3D", 0.4): Published(recall_25_3d=(0.77, None)),
}

# What its figures are of, unless a row says otherwise.
SETTING = (
    "The paper's volumes have 16 slices of up to 1100 x 2200 pixels, and its training set 2,311 malignant breasts, 955 "
    "of them with boxes."
)

# Figure 6 has no numbers; the text has these.
START = (
    "In the paper FFDM weights are ahead of COCO weights with 10% of the data by 0.11 in R@0.25 and 0.03 in AUC; with "
    "2% of the annotations R@0.25 falls by 0.03 from FFDM weights and by 0.09 from COCO weights."
)

# Table 4, z resolution: memory in GB of GPU, time in hours. Recall by the 3D rule, as in Table 3.
SLICES = {
    8: Published(None, None, (0.94, 0.005), (0.69, 0.022), (0.76, 0.020), 42, 11),
    16: Published(None, None, (0.95, 0.004), (0.77, 0.021), (0.82, 0.019), 84, 12),
    32: Published(None, None, (0.95, 0.004), (0.79, 0.021), (0.83, 0.019), 168, 12),
}

# Table 5, fusion. Recall by the 3D rule.
FUSION = {
    "MeanPool": Published(None, None, (0.95, 0.004), (0.72, 0.021), (0.76, 0.020)),
    "MaxPool": Published(None, None, (0.95, 0.005), (0.77, 0.021), (0.81, 0.021)),
    "M&M-3D": Published(None, None, (0.95, 0.004), (0.77, 0.021), (0.82, 0.019)),
}

# Tables 6 and 7 (appendix A): BCS-DBT's test set, benign volumes left out, by the share of DBT data.
BCS_DBT = {
    0.0: Published((0.52, None), (0.56, None), (0.91, None)),
    0.1: Published((0.67, None), (0.79, None), (0.93, None)),
    1.0: Published((0.83, None), (0.85, None), (0.97, None)),
}

Field = Literal["recall_25", "recall_50", "auc", "recall_25_3d", "recall_50_3d"]
FIELD_OF: dict[str, Field] = {
    "recall@0.25": "recall_25",
    "recall@0.5": "recall_50",
    "auc": "auc",
    "recall3d@0.25": "recall_25_3d",
    "recall3d@0.5": "recall_50_3d",
}


def published(study: StudySpec, table: str, run: RunSpec) -> Published | None:
    """What the paper has for a row of a table; on BCS-DBT it has M&M-3D only."""
    if study.published == "bcs-dbt":
        share = 0.0 if run.stage == INFERENCE_ONLY else run.data
        plain = run.label == "M&M-3D" and run.annotated == RunSpec.annotated
        return BCS_DBT.get(share) if plain and table in ("inference", "finetuned", "data") else None
    if table == "data":
        return DATA.get((run.label, run.data))
    if table == "annotations":
        return ANNOTATIONS.get((run.label, run.annotated))
    return {"inference": INFERENCE, "finetuned": FINETUNED, "fusion": FUSION}.get(table, {}).get(run.label)


def cell(row: Published | None, metric: str) -> str:
    """A published figure for a table, or nothing."""
    value = None if row is None else getattr(row, FIELD_OF[metric])
    return "" if value is None else f"{value[0]:.2f}"
