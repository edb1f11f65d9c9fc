"""RSNA Screening Mammography Breast Cancer Detection 2022: labels of breasts, no boxes.

A breast with `cancer` is malignant (proven by biopsy), one with a biopsy and no cancer is benign, and any other is
negative. In a negative view there is nothing to annotate; the other views are not annotated.
"""

from pathlib import Path

from mm3d.data.datasets.assemble import POSITIONS, SIDES, CohortBuilder, Entry, decode, find_file, read_rows, reporting
from mm3d.data.records import Cohort, Label, View
from mm3d.shared.errors import InputError

COLUMNS = (
    "site_id", "patient_id", "image_id", "laterality", "view", "cancer", "biopsy", "BIRADS", "implant", "density",
    "machine_id",
)  # fmt: skip
YES = {"0": False, "1": True}


def read(folder: Path) -> Cohort:
    cohort = CohortBuilder("RSNA 2022", ["There are no boxes: malignant and benign breasts are not annotated."])
    table = find_file(folder, "train.csv")
    rows = read_rows(table, COLUMNS)
    # A label is that of the breast, not of the row: a negative row of a malignant breast may show the cancer.
    cancer, biopsied = (
        {(row["patient_id"], row["laterality"]) for row in rows if row[column] == "1"}
        for column in ("cancer", "biopsy")
    )
    for row in rows:
        patient, name = row["patient_id"], f"{row['patient_id']}_{row['image_id']}"
        if row["view"] not in POSITIONS:
            cohort.left_out[f"view {row['view'] or 'not given'}"] += 1
            continue
        with reporting(cohort.problems, name):
            side, position = decode(row, "laterality", SIDES), decode(row, "view", POSITIONS)
            has_cancer, has_biopsy = decode(row, "cancer", YES), decode(row, "biopsy", YES)
            if has_cancer and not has_biopsy:
                raise InputError("Its row says cancer without a biopsy.")
            file = table.parent / "train_images" / patient / f"{row['image_id']}.dcm"
            if not file.is_file():
                raise InputError(f"Its file {file} is missing.")
            breast = patient, row["laterality"]
            label: Label = "malignant" if breast in cancer else "benign" if breast in biopsied else "negative"
            view = View(name, side, position, "FFDM", (file,), () if label == "negative" else None)
            attributes = {column: row[column] for column in ("density", "implant", "machine_id", "site_id")}
            attributes["birads"] = row["BIRADS"]  # of the screening, 0 to 2; empty for one of the two sites
            cohort.entries.append(Entry(patient, "1", view, label, attributes=attributes))
    return cohort.assemble()
