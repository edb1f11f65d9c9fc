"""BCS-DBT in small: tables and files of a patient, as the archive gives them."""

from pathlib import Path

from support.csv_files import rows_of, write_csv
from support.downloads import touch

from mm3d.data.datasets import tables
from mm3d.data.records import Cohort, View

ONE_HOT = {grade: ",".join(str(int(grade == other)) for other in tables.GRADES) for grade in tables.GRADES}
ROOT = "Breast-Cancer-Screening-DBT"


def series_uid(tail: str) -> str:
    return f"1.2.826.0.1.3680043.8.498.9{tail:0>20}"


def paths_row(patient: str, view: str, tail: str, study: str = "S1") -> str:
    """A row of the file-paths; the series UID ends with the tail."""
    descriptive = f"{ROOT}/{patient}/01-01-2000-{study}-MAMMO-11111/{tail[:2]}.000000-{tail[-5:]}/1-1.dcm"
    return f"{patient},{study},{view},{descriptive},{ROOT}/{patient}/{series_uid('11111')}/{series_uid(tail)}/1-1.dcm"


def place(folder: Path, row: str, column: int = 4) -> Path:
    """An empty file where the fifth column (classic) or the fourth (descriptive) of a row says."""
    return touch(folder / row.split(",")[column])


def download(
    folder: Path, views: dict[str, str], boxes: tuple[str, ...] = (), split: str = "train", patient: str = "DBT-P00001"
) -> None:
    """Tables and empty files of one patient: each view with its label."""
    rows = [paths_row(patient, view, f"{number:05}") for number, view in enumerate(views, 10)]
    write_csv(folder / f"BCS-DBT-file-paths-{split}-v2.csv", tables.FILE_PATHS, *rows)
    labels = [f"{patient},S1,{view},{ONE_HOT.get(label, label)}" for view, label in views.items() if label]
    write_csv(folder / f"BCS-DBT-labels-{split}-v2.csv", tables.LABELS, *labels)
    write_csv(folder / f"BCS-DBT-boxes-{split}-v2.csv", tables.BOXES, *(f"{patient},S1,{box}" for box in boxes))
    for row in rows:
        place(folder, row)


def tables_of(folder: Path, rows: list[str]) -> None:
    """The file-paths and the labels of views that are all normal; no file."""
    write_csv(folder / "BCS-DBT-file-paths-train-v2.csv", tables.FILE_PATHS, *rows)
    labels = [",".join(row.split(",")[:3]) + f",{ONE_HOT['Normal']}" for row in rows]
    write_csv(folder / "BCS-DBT-labels-train-v2.csv", tables.LABELS, *labels)


def by_name(cohort: Cohort) -> dict[str, View]:
    return {view.name.removeprefix("DBT-P00001 S1 "): view for view in cohort.views()}


def reasons(cohort: Cohort) -> dict[str, str]:
    return {problem.subject.removeprefix("DBT-P00001 S1 "): problem.reason for problem in cohort.problems}


def lay_out_trial(trial: Path, folder: Path, split_of: dict[str, str]) -> None:
    """The volumes of a virtual trial as a download of BCS-DBT: `split_of` has the split of each patient."""
    kinds = {"file-paths": tables.FILE_PATHS, "labels": tables.LABELS, "boxes": tables.BOXES}
    for kind, columns in kinds.items():
        rows = [row for row in rows_of(trial / f"{kind}.csv") if row["Modality"] == "DBT"]
        if kind == "file-paths":
            for number, row in enumerate(rows):
                path = paths_row(row["PatientID"], row["View"], f"{number:05}", row["StudyUID"]).split(",")
                target = folder / path[4]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(trial / row["classic_path"])
                row["descriptive_path"], row["classic_path"] = path[3:]
        for split in set(split_of.values()):
            own = [row for row in rows if split_of[row["PatientID"]] == split]
            lines = (",".join(row[column] for column in columns) for row in own)
            write_csv(folder / f"BCS-DBT-{kind}-{split}-v2.csv", columns, *lines)
