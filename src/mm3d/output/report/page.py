"""The report page: one HTML file that holds style, program, findings and images, and loads nothing.

The policy of the page allows this program and this style, by their hashes, and nothing else. Whatever a title or a
problem contains, the browser treats it as text.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from mm3d.data.prepare.region import breast_region
from mm3d.output.predictions import Finding, choose_distinct
from mm3d.output.report.frames import EncodedView, encode
from mm3d.output.report.prior import PriorReport, read_prior
from mm3d.output.result import ExamResult, ViewResult
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

PAGE_BYTES = 24_000_000  # of the whole file, so that it can be mailed
TEXT_BYTES = 600_000  # of these, what everything but the images may need
# One script, in this order.
PROGRAM = (
    *("elements.js", "frames.js", "depth.js", "paint.js", "marks.js", "measure.js"),
    *("pane.js", "rail.js", "list.js", "hand.js", "main.js"),
)


def write_report(result: ExamResult, path: Path) -> None:
    """Write the page. A file that is already there is replaced only when the new one is complete."""
    with replacing(path) as partial:
        partial.write_text(make_page(result), encoding="utf-8")


def make_page(result: ExamResult) -> str:
    """The page as HTML."""
    budget = (PAGE_BYTES - TEXT_BYTES) * 3 // 4  # base64: 4 letters for 3 bytes
    prior = None if result.prior is None else read_prior(result.prior, budget // 2)
    encoded = encode(result.views, budget - (0 if prior is None else sum(view.size for view in prior.encoded)))
    style = _source("page.css")
    program = "".join(map(_source, PROGRAM))
    policy = (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(_title(result)),
        "style": style,
        "exam": _json(_content(result, encoded, prior)),
        "frames": "\n".join(map(_frames, [*encoded, *(prior.encoded if prior else ())])),
        "program": program,
    }
    # All at once, so that inserted text is not searched for further places.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def _source(name: str) -> str:
    return resources.files("mm3d.output.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _frames(encoded: EncodedView) -> str:
    """A block that the browser does not run, with one frame on each line."""
    lines = "\n".join(base64.b64encode(frame).decode() for frame in encoded.frames)
    return f'<script type="text/plain" class="frames">{lines}</script>'


def _title(result: ExamResult) -> str:
    return result.title or result.code or result.exam


def _content(result: ExamResult, encoded: Sequence[EncodedView], prior: PriorReport | None) -> dict[str, Any]:
    """The data that the page's program reads. Slices are 0-based here, and 1-based on the screen."""
    views = zip(result.views, encoded, number_lesions(result), strict=True)
    calibration = result.method.calibration
    return {
        "version": result.method.version,
        "title": _title(result),
        "score": result.score,
        "breasts": dict(result.breast_scores),
        "percents": {side: calibration.percent(score) for side, score in result.breast_scores.items()}
        if calibration
        else {},
        "suspicious": sorted(result.suspicious),
        "explanation": explain_scores(result),
        "threshold": result.threshold,
        "weights": result.method.weights,
        "intendedUse": result.method.intended_use,
        "warnings": list(result.warnings),
        "problems": [*(problem.reason for problem in result.problems), *result.warnings, *result.notes],
        "unread": [p.laterality + p.position for p in result.problems if p.laterality and p.position],
        "prior": None if prior is None else prior.summary,
        "views": [*(_view(*of_view) for of_view in views), *(prior.views if prior else ())],
    }


def _view(view: ViewResult, encoded: EncodedView, numbers: Sequence[int | None]) -> dict[str, Any]:
    slices, height, width = view.frames.shape
    return {
        "laterality": view.laterality,
        "position": view.position,
        "modality": view.kind or view.modality,  # what the screen calls the image
        "slices": slices,
        "height": height,
        "width": width,
        "frameHeight": encoded.height,
        "frameWidth": encoded.width,
        "region": _region(view),
        "background": _background(view),
        "prior": False,
        "score": view.score,
        "pixelSpacing": view.pixel_spacing,
        "sliceSpacing": view.slice_spacing,
        "findings": [
            {
                "number": number,
                "box": [round(float(edge), 1) for edge in finding.box],
                "score": finding.score,
                "slice": None if finding.slice is None else round(finding.slice),
                "weights": stored_weights(finding, slices),
            }
            for finding, number in zip(view.findings, numbers, strict=True)
            if number is not None
        ],
    }


def explain_scores(result: ExamResult) -> str:
    """The sentence that says why a breast's score and its marks may disagree; a second one if there are percentages."""
    what = "counts every suspicion in it, also those too low to be marked"
    if result.method.predict.get("scores") == "max":
        what = "is that of its highest finding, whether it is marked or not"
    point = result.method.operating_point.breast
    amber = "a finding in it is marked" if point is None else f"it reaches its own operating point of {point:.2g}"
    text = f"The score of a breast {what}; it is amber if {amber}."
    if result.method.calibration is not None:
        source = result.method.calibration.source
        text += f" Percentages are the share of breasts of such a score that had cancer ({source})."
    return text


def number_lesions(result: ExamResult) -> list[list[int | None]]:
    """For each view, a number for each of its findings: 1 for the lesion with the highest score in the exam, and so on;
    None for those that are not shown, because a higher one of their view is the same lesion.

    The findings of a breast with the same `lesion` are one lesion. Its score is the highest of theirs.
    """
    scores: dict[tuple[object, ...], float] = {}
    lesions: list[dict[int, tuple[object, ...]]] = []  # for each view, by the number of the finding
    for v, view in enumerate(result.views):
        lesions.append({})
        for n in sorted(choose_distinct(view.findings)):
            finding = view.findings[n]
            lesion = (v, n, "single") if finding.lesion is None else (view.laterality, finding.lesion)
            lesions[-1][n] = lesion
            scores[lesion] = max(finding.score, scores.get(lesion, 0.0))
    order = sorted(scores, key=lambda lesion: -scores[lesion])  # equal scores stay in the order of the views
    numbers = {lesion: number for number, lesion in enumerate(order, 1)}
    counts = (len(view.findings) for view in result.views)
    return [
        [numbers[view[n]] if n in view else None for n in range(count)]
        for view, count in zip(lesions, counts, strict=True)
    ]


def stored_weights(finding: Finding, slices: int) -> list[float] | None:
    """The weights of the model's slices as weights of the stored ones, with sum 1 and 4 digits: each stored slice has
    the weight of the model's slice that it belongs to (`Geometry.slice_to_model`)."""
    if finding.slice_weights is None:
        return None
    own = len(finding.slice_weights)
    stored = np.array(finding.slice_weights)[(2 * np.arange(slices) + 1) * own // (2 * slices)]
    return [float(f"{w:.4g}") for w in stored / stored.sum()]


def _region(view: ViewResult) -> list[float]:
    """x1, y1, x2, y2 of what a view shows when it opens: the breast up to the chest wall, and all boxes."""
    slices, height, width = view.frames.shape
    try:
        x1, y1, x2, y2 = breast_region(np.array(view.frames[slices // 2]))
    except InputError:  # an empty image is shown whole
        x1, y1, x2, y2 = 0, 0, width, height
    x1, x2 = (0, x2) if view.laterality == "L" else (x1, width)
    left, top, right, bottom = zip((x1, y1, x2, y2), *(finding.box for finding in view.findings), strict=True)
    return [max(0.0, min(left)), max(0.0, min(top)), min(float(width), max(right)), min(float(height), max(bottom))]


def _background(view: ViewResult) -> int:
    """The grey of the air: the most frequent one along the edge that is not the chest wall's."""
    frame = view.frames[len(view.frames) // 2]
    edge = frame[:, -1 if view.laterality == "L" else 0]
    return int(np.bincount(edge).argmax())
