"""EMBED Open Data (Emory): 2D screening and diagnostic mammograms, with boxes for some of the findings.

The clinical table has a row per finding, the metadata a row per file; they are joined by exam and side. A breast is
malignant if pathology says so (path_severity 0 invasive, 1 in situ). Any other pathology, or an assessment as BI-RADS 2
or 3, makes it benign; BI-RADS 1 makes it negative. With BI-RADS 0, 4, 5 or 6 and no pathology nobody knows
whether it is cancer (the answer may be in a later exam). Such breasts are left out, because no label would be true.
"""

import ast
from collections import defaultdict
from pathlib import Path

from mm3d.data.datasets.assemble import POSITIONS, SIDES, CohortBuilder, Entry, find_file, read_rows
from mm3d.data.records import Annotation, Cohort, Label, Problem, View
from mm3d.shared.errors import InputError

CLINICAL_COLUMNS = ("acc_anon", "side", "asses", "path_severity")
FILE_COLUMNS = (
    "empi_anon", "acc_anon", "anon_dicom_path", "FinalImageType", "ImageLateralityFinal", "ViewPosition", "spot_mag",
    "num_roi", "ROI_coords",
)  # fmt: skip
BIRADS = {"A": "0", "N": "1", "B": "2", "P": "3", "S": "4", "M": "5", "K": "6"}
NOTES = [
    "Malignant means malignant pathology of the same exam; any other pathology, or BI-RADS 2 or 3, means benign.",
    "A box does not say of which finding it is. On a malignant breast it is malignant, on any other benign.",
]


def read(folder: Path) -> Cohort:
    cohort = CohortBuilder("EMBED", NOTES)
    clinical = find_file(folder, "EMBED_OpenData_clinical.csv")
    breasts = _breasts(read_rows(clinical, CLINICAL_COLUMNS, optional=("bside", "tissueden")))
    files: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob("*.dcm")):
        files[path.name].append(path)
    table = find_file(folder, "EMBED_OpenData_metadata.csv")
    for row in read_rows(table, FILE_COLUMNS, optional=("Manufacturer",)):
        exam, side = row["acc_anon"], SIDES.get(row["ImageLateralityFinal"])
        position = POSITIONS.get(row["ViewPosition"])
        assessments, severities, density = breasts.get((exam, row["ImageLateralityFinal"]), (set(), set(), ""))
        label = _label(assessments, severities)
        name = f"{exam}_{Path(row['anon_dicom_path']).stem}"
        file = _locate(files, row["anon_dicom_path"])
        if row["FinalImageType"] != "2D":
            cohort.left_out["not 2D"] += 1
        elif row["spot_mag"] not in ("", "0", "0.0"):
            cohort.left_out["spot or magnification"] += 1
        elif side is None or position is None:
            cohort.left_out["neither CC nor MLO, or no side"] += 1
        elif label is None:
            cohort.left_out["no assessment of the breast, or BI-RADS 0, 4, 5 or 6 without pathology"] += 1
        elif file is None:
            cohort.problems.append(Problem(name, f"Its file {row['anon_dicom_path']} is missing."))
        else:
            annotations = cohort.try_annotations(name, _annotations, row, label)
            view = View(name, side, position, "FFDM", (file,), annotations)
            birads = "/".join(sorted({BIRADS[code] for code in assessments if code in BIRADS}))
            attributes = {"birads": birads, "density": density, "vendor": row.get("Manufacturer", "")}
            cohort.entries.append(Entry(row["empi_anon"], exam, view, label, attributes=attributes))
    return cohort.assemble()


def _breasts(rows: list[dict[str, str]]) -> dict[tuple[str, str], tuple[set[str], set[str], str]]:
    """Assessments, severities and density of each breast by exam and side."""
    breasts: dict[tuple[str, str], tuple[set[str], set[str], str]] = {}
    for row in rows:
        exam, sides = row["acc_anon"], row["side"] if row["side"] in ("L", "R") else "LR"  # B or nothing: both
        biopsied = row["bside"] if row.get("bside") in ("L", "R") else sides  # the pathology may be of one side only
        for side in "LR":
            assessments, severities, _ = breasts.get((exam, side), (set(), set(), ""))
            if side in sides and row["asses"]:
                assessments.add(row["asses"])
            if side in biopsied and row["path_severity"]:
                severities.add(row["path_severity"].removesuffix(".0"))
            breasts[exam, side] = assessments, severities, row.get("tissueden", "")
    return breasts


def _label(assessments: set[str], severities: set[str]) -> Label | None:
    if severities & {"0", "1"}:
        return "malignant"
    if severities and "K" not in assessments:
        return "benign"
    if assessments & set("ASMK"):
        return None
    if assessments & set("PB"):
        return "benign"
    return "negative" if "N" in assessments else None


def _locate(files: dict[str, list[Path]], written: str) -> Path | None:
    """The file whose path ends most like the one in the table, which begins with a folder of the authors' machine."""
    parts = Path(written).parts

    def shared(path: Path) -> int:
        pairs = list(zip(reversed(path.parts), reversed(parts), strict=False))
        return next((count for count, (here, there) in enumerate(pairs) if here != there), len(pairs))

    return max(files.get(Path(written).name, ()), key=shared, default=None)


def _annotations(row: dict[str, str], label: Label) -> tuple[Annotation, ...] | None:
    coordinates = ast.literal_eval(row["ROI_coords"] or "()")
    if coordinates and not isinstance(coordinates[0], (list, tuple)):  # a single box without the outer brackets
        coordinates = [coordinates]
    if len(coordinates) != int(float(row["num_roi"] or 0)):
        raise InputError(f"num_roi is {row['num_roi']}, but there are {len(coordinates)} boxes")
    if not coordinates:
        return () if label == "negative" else None
    return tuple(
        Annotation((float(x1), float(y1), float(x2), float(y2)), malignant=label == "malignant")
        for y1, x1, y2, x2 in coordinates  # in this order
    )
