"""The table that a command shows of a cohort that it wrote."""

from collections import Counter
from collections.abc import Container

from rich.table import Table

from mm3d.data.records import Cohort


def summarise(cohort: Cohort, names: Container[str]) -> Table:
    """Count exams, breasts, views and findings, over the views of these names."""
    breasts = [breast for breast in cohort.breasts if any(view.name in names for view in breast.views)]
    views = [view for breast in breasts for view in breast.views if view.name in names]
    findings = [finding for view in views for finding in view.annotations or ()]
    labels = Counter(breast.label for breast in breasts)
    table = Table(title=cohort.name, show_header=False)
    rows = {
        "exams": len({(breast.patient, breast.exam) for breast in breasts}),
        "breasts": len(breasts),
        "  malignant": labels["malignant"],
        "  benign": labels["benign"],
        "  negative": labels["negative"],
        "  without a label": labels[None],
        "  malignant and annotated": sum(b.label == "malignant" and b.annotated for b in breasts),
        "views": len(views),
        "  annotated": sum(view.annotations is not None for view in views),
        "findings": len(findings),
        "  malignant findings": sum(finding.malignant for finding in findings),
    }
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    return table
