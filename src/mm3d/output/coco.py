"""Findings as COCO files, which many detectors write and many programs show.

Each image is a view, with the fields `patient`, `exam`, `view` (lcc, or the view with a `side`) and `modality`, as in
the COCO files that `mm3d prepare images` reads. Each annotation is a finding: it has a `score`, and may have `slice`,
`depth` and `slice_weights`, as in our JSON. Scores of views and breasts are the fields `score` and `breast_score` of
the images.

Both directions are from plain data to plain data: `predictions.py` makes records of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm3d.data.records import Key, is_view
from mm3d.shared.config import show
from mm3d.shared.errors import InputError

CATEGORY = {"id": 1, "name": "malignant"}
KEPT = ("slice", "depth", "slice_weights")  # of a finding, under the names of our JSON

Size = tuple[int, int]  # width and height in pixels


def is_coco(content: Any) -> bool:
    """Whether the content of a JSON file is a COCO file."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content


def from_coco(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of our JSON from that of a COCO file of findings."""
    try:
        findings: dict[Any, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
        for entry in content["annotations"]:
            if entry["image_id"] not in findings:
                raise InputError(
                    f"{path} has a finding on the image {show(entry['image_id'])}, which it does not list."
                )
            findings[entry["image_id"]].append(_read_finding(entry, path))
        breasts: dict[tuple[str, str, str], dict[str, Any]] = {}
        for image in content["images"]:
            key = (str(image["patient"]), str(image.get("exam", "1")), _read_view(image, path))
            side = key[2][0].upper()
            new: dict[str, Any] = {"patient": key[0], "exam": key[1], "laterality": side, "views": []}
            breast = breasts.setdefault((key[0], key[1], side), new)
            breast.update({"score": image["breast_score"]} if "breast_score" in image else {})
            view = {"view": key[2], "modality": image.get("modality", "DBT"), "findings": findings[image["id"]]}
            breast["views"].append(view | ({"score": image["score"]} if "score" in image else {}))
        model = content["info"].get("mm3d", {}) if isinstance(content.get("info"), dict) else {}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is no COCO file of findings ({error!r}); its images need id, patient and view, and its "
            "annotations image_id, bbox and score."
        ) from error
    return {"version": 1, "breasts": list(breasts.values()), "model": model}


def _read_view(image: Mapping[str, Any], path: Path) -> str:
    name = f"{str(image.get('side', ''))[:1]}{image['view']}".lower()
    for view in (str(image["view"]).lower(), name):
        if is_view(view):
            return view
    raise InputError(f"{path}: the view {show(image['view'])} of an image is none of lcc, lmlo, rcc and rmlo.")


def _read_finding(entry: Mapping[str, Any], path: Path) -> dict[str, Any]:
    if "score" not in entry:
        raise InputError(
            f"{path} has annotations without a score: it is the truth, and no file of findings; bring it in with 'mm3d "
            "prepare images --table'."
        )
    x, y, width, height = (float(number) for number in entry["bbox"])
    kept = {name: entry[name] for name in KEPT if entry.get(name) is not None}
    return {"box": [x, y, x + width, y + height], "score": entry["score"], **kept}


def to_coco(content: Mapping[str, Any], sizes: Mapping[Key, Size]) -> dict[str, Any]:
    """A COCO file from the content of our JSON. `sizes` are those of the views, by patient, exam, view and modality; a
    view without one has no width and height."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for breast in content["breasts"]:
        for view in breast["views"]:
            key = Key(breast["patient"], breast["exam"], view["view"], view["modality"])
            number = len(images) + 1
            image = {"id": number, "file_name": " ".join(key)}
            image |= dict(zip(("patient", "exam", "view", "modality"), key, strict=True))
            image |= {"score": view["score"]} if view.get("score") is not None else {}
            image |= {"breast_score": breast["score"]} if breast.get("score") is not None else {}
            images.append(image | dict(zip(("width", "height"), sizes.get(key, ()), strict=False)))
            for finding in view["findings"]:
                annotations.append(_write_finding(finding, len(annotations) + 1, number))
    info = {"description": "Findings of a detector, not annotations of radiologists.", "mm3d": content["model"]}
    return {"info": info, "images": images, "annotations": annotations, "categories": [CATEGORY]}


def _write_finding(finding: Mapping[str, Any], number: int, image: int) -> dict[str, Any]:
    x1, y1, x2, y2 = finding["box"]
    box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0, "score": finding["score"]}
    kept = {name: finding[name] for name in KEPT if finding.get(name) is not None}
    return {"id": number, "image_id": image, "category_id": CATEGORY["id"], **box, **kept}
