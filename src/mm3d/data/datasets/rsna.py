"""RSNA Screening Mammography Breast Cancer Detection 2022: labels of breasts, no boxes.

A breast with `cancer` is malignant (proven by biopsy), one with a biopsy and no cancer is benign, and any other is
negative. In a negative view there is nothing to annotate; the other views are not annotated.
"""

from collections import Counter
from pathlib import Path

from mm3d.data.datasets.assemble import (
    POSITIONS,
    SEVERITY,
    SIDES,
    Entry,
    assemble,
    describe_left_out,
    find_file,
    read_rows,
)
from mm3d.data.records import Cohort, Label, Problem, View

COLUMNS = (
    "site_id", "patient_id", "image_id", "laterality", "view", "cancer", "biopsy", "BIRADS", "implant", "density",
    "machine_id",
)  # fmt: skip


def read(folder: Path) -> Cohort:
    table = find_file(folder, "train.csv")
    rows = read_rows(table, COLUMNS)
    # A label is that of the breast, not of the row: a negative row of a malignant breast may show the cancer.
    labels: dict[tuple[str, str], Label] = {}
    for row in rows:
        breast = row["patient_id"], row["laterality"]
        labels[breast] = max(labels.get(breast, "negative"), _label(row), key=SEVERITY.__getitem__)
    entries, problems, left_out = [], [], Counter[str]()
    for row in rows:
        patient, name = row["patient_id"], f"{row['patient_id']}_{row['image_id']}"
        side, position = SIDES.get(row["laterality"]), POSITIONS.get(row["view"])
        file = table.parent / "train_images" / patient / f"{row['image_id']}.dcm"
        if position is None:
            left_out[f"view {row['view'] or 'not given'}"] += 1
        elif side is None or row["cancer"] not in ("0", "1") or row["biopsy"] not in ("0", "1"):
            code = f"{row['laterality']}, cancer {row['cancer']!r}, biopsy {row['biopsy']!r}"
            problems.append(Problem(name, f"Its row ({code}) has a side or label that is not known."))
        elif row["cancer"] == "1" and row["biopsy"] == "0":
            problems.append(Problem(name, "Its row says cancer without a biopsy."))
        elif not file.is_file():
            problems.append(Problem(name, f"Its file {file} is missing."))
        else:
            label = labels[patient, row["laterality"]]
            view = View(name, side, position, "FFDM", (file,), () if label == "negative" else None)
            attributes = {column: row[column] for column in ("density", "implant", "machine_id", "site_id")}
            attributes["birads"] = row["BIRADS"]  # of the screening, 0 to 2; empty for one of the two sites
            entries.append(Entry(patient, "1", view, label, attributes=attributes))
    notes = ["There are no boxes: malignant and benign breasts are not annotated."]
    return assemble("RSNA 2022", entries, problems, notes + describe_left_out(left_out))


def _label(row: dict[str, str]) -> Label:
    if row["cancer"] == "1":
        return "malignant"
    return "benign" if row["biopsy"] == "1" else "negative"
