"""INbreast: 410 mammograms of 115 exams, with outlines of the findings in property lists.

Malignant means BI-RADS 4 to 6, benign 2 or 3, negative 1. An outline on a malignant image is malignant if its name is
that of a lesion. Single calcifications are marked by one or two points: they have no extent, so there is no box for
them. An image without an XML file is annotated as having no finding.
"""

import plistlib
from pathlib import Path

from mm3d.data.datasets.assemble import POSITIONS, SIDES, CohortBuilder, Entry, decode, find_file, read_rows, reporting
from mm3d.data.records import Annotation, Cohort, Label, View
from mm3d.shared.errors import InputError

COLUMNS = ("Patient ID", "Laterality", "View", "Acquisition date", "File Name", "ACR", "Bi-Rads")
LABELS: dict[str, Label] = {
    "1": "negative", "2": "benign", "3": "benign", "5": "malignant", "6": "malignant",
    "4": "malignant", "4a": "malignant", "4b": "malignant", "4c": "malignant",
}  # fmt: skip
LESIONS = {
    "mass", "calcification", "calcifications", "cluster", "distortion", "asymmetry", "spiculated region",
    "assymetry", "espiculated region",  # as some files spell them
}  # fmt: skip


def read(folder: Path) -> Cohort:
    cohort = CohortBuilder("INbreast", ["Malignant means BI-RADS 4 to 6."])
    rows = read_rows(find_file(folder, "INbreast.csv"), COLUMNS, delimiter=";")
    images = {path.name.split("_")[0]: path for path in sorted(folder.rglob("AllDICOMs/*.dcm"))}
    outlines = {path.stem: path for path in folder.rglob("AllXML/*.xml")}
    if not outlines:  # otherwise every image would count as having no finding
        raise InputError(f"{folder} has no AllXML with XML files; they are part of the dataset's download.")
    for row in rows:
        number = row["File Name"].removesuffix(".dcm")
        with reporting(cohort.problems, number):
            side, position = decode(row, "Laterality", SIDES), decode(row, "View", POSITIONS)
            label = decode(row | {"Bi-Rads": row["Bi-Rads"].lower()}, "Bi-Rads", LABELS)
            if number not in images:
                raise InputError("Its file in AllDICOMs is missing.")
            parts = images[number].stem.split("_")  # number, hash of the patient, MG, side, CC or ML, ANON
            if len(parts) < 5 or parts[3] != side or not position.startswith(parts[4]):
                raise InputError(f"The table says {side} {position}, but its file is {images[number].name}.")
            annotations = cohort.try_annotations(number, _annotations, outlines.get(number), label)
            patient = parts[1] if row["Patient ID"] in ("", "removed") else row["Patient ID"]
            view = View(number, side, position, "FFDM", (images[number],), annotations)
            attributes = {"birads": row["Bi-Rads"], "density": row["ACR"]}
            cohort.entries.append(Entry(patient, row["Acquisition date"], view, label, attributes=attributes))
    return cohort.assemble()


def _annotations(path: Path | None, label: Label) -> tuple[Annotation, ...] | None:
    """The outlines with an extent, as boxes; None for a malignant image on which there are only points."""
    if path is None:
        return ()
    try:
        rois = [roi for image in plistlib.loads(path.read_bytes())["Images"] for roi in image["ROIs"]]
    except Exception as error:  # plistlib raises whatever its parsers raise
        raise InputError(f"{path.name} cannot be read ({error!r})") from error
    annotations, points_only = [], False
    for roi in rois:
        kind = str(roi.get("Name", ""))
        if kind.lower().startswith("pectoral"):
            continue
        points = [tuple(map(float, point.strip("() ").split(","))) for point in roi["Point_px"]]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        if len(points) < 3 or min(xs) == max(xs) or min(ys) == max(ys):
            points_only = True
            continue
        malignant = label == "malignant" and kind.strip().lower() in LESIONS
        annotations.append(Annotation((min(xs), min(ys), max(xs), max(ys)), malignant, kind=kind))
    if label == "malignant" and points_only and not annotations:
        return None
    return tuple(annotations)
