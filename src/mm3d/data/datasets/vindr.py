"""VinDr-Mammo: 5,000 exams of four views, read twice, with a box for each finding.

There is no pathology. A breast, or a finding, is called malignant at BI-RADS 4 or 5 and benign at 2 or 3; a breast of
BI-RADS 1 is negative. Every view was searched for findings, so a view of `['No Finding']` is annotated as having none.
"""

import ast
from collections import defaultdict
from pathlib import Path

from mm3d.data.datasets.assemble import POSITIONS, SIDES, CohortBuilder, Entry, decode, find_file, read_rows, reporting
from mm3d.data.records import Annotation, Cohort, Label, View
from mm3d.shared.errors import InputError

IMAGES = "breast-level_annotations.csv"
IMAGE_COLUMNS = (
    "study_id", "image_id", "laterality", "view_position", "height", "width", "breast_birads", "breast_density",
    "split",
)  # fmt: skip
FINDING_COLUMNS = ("image_id", "finding_categories", "finding_birads", "xmin", "ymin", "xmax", "ymax")
BIRADS = {f"BI-RADS {number}": number for number in range(1, 6)}
LABELS: dict[int, Label] = {1: "negative", 2: "benign", 3: "benign", 4: "malignant", 5: "malignant"}
SPLITS = {"training": "train", "test": "test"}


def read(folder: Path) -> Cohort:
    cohort = CohortBuilder("VinDr-Mammo", ["Malignant means BI-RADS 4 or 5: there is no pathology."])
    root = find_file(folder, IMAGES).parent
    boxes: dict[str, list[dict[str, str]]] = defaultdict(list)
    for box in read_rows(root / "finding_annotations.csv", FINDING_COLUMNS):
        boxes[box["image_id"]].append(box)
    for row in read_rows(root / IMAGES, IMAGE_COLUMNS):
        name, study = row["image_id"], row["study_id"]
        with reporting(cohort.problems, name):
            side, position = decode(row, "laterality", SIDES), decode(row, "view_position", POSITIONS)
            birads, split = decode(row, "breast_birads", BIRADS), decode(row, "split", SPLITS)
            files = [root / "images" / study / f"{name}{suffix}" for suffix in (".dicom", ".dcm")]
            file = next((path for path in files if path.is_file()), None)
            if file is None:
                raise InputError(f"Its file {files[0]} is missing.")
            annotations = cohort.try_annotations(name, _annotations, boxes[name], row, birads)
            view = View(name, side, position, "FFDM", (file,), annotations)
            attributes = {"birads": str(birads), "density": row["breast_density"].removeprefix("DENSITY ")}
            cohort.entries.append(Entry(study, study, view, LABELS[birads], split, attributes))
    return cohort.assemble()


def _annotations(boxes: list[dict[str, str]], image: dict[str, str], breast: int) -> tuple[Annotation, ...]:
    """The annotations of one image; a box without a BI-RADS of its own takes the breast's."""
    if not boxes:
        raise InputError("finding_annotations.csv has no row for it")
    annotations = []
    for box in boxes:
        categories = ast.literal_eval(box["finding_categories"])
        if categories == ["No Finding"]:
            if len(boxes) > 1:
                raise InputError("it has 'No Finding' next to other rows")
            return ()
        birads = decode(box, "finding_birads", BIRADS) if box["finding_birads"] else breast
        x1, y1, x2, y2 = (float(box[key]) for key in ("xmin", "ymin", "xmax", "ymax"))
        # Some boxes reach a fraction of a pixel over the border.
        corners = (max(x1, 0.0), max(y1, 0.0), min(x2, float(image["width"])), min(y2, float(image["height"])))
        annotations.append(Annotation(corners, LABELS[birads] == "malignant", kind=", ".join(categories)))
    return tuple(annotations)
