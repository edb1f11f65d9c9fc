"""The report as one HTML file: page, style, program, findings and images in it, nothing fetched from anywhere.

The page's own policy lets only this program and this style run, by their hashes, and nothing load: whatever a title or
a problem says, it is text.
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

from mm3d import __version__
from mm3d.data.prepare.region import breast_region
from mm3d.output.report.exam import ShownExam, ShownView, numbered
from mm3d.output.report.frames import Encoded, encode
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

PAGE_BYTES = 24_000_000  # all of the file: mail and browsers take it
TEXT_BYTES = 600_000  # what all but the images may need of it
PROGRAM = ("frames.js", "pane.js", "rail.js", "list.js", "main.js")  # one script, in this order


def write_report(exam: ShownExam, path: Path) -> None:
    """Write the page; a file already there is replaced only when the new one is complete."""
    encoded = encode(exam.views, (PAGE_BYTES - TEXT_BYTES) * 3 // 4)  # base64: 4 letters for 3 bytes
    page = report_page(exam, encoded)
    with replacing(path) as partial:
        partial.write_text(page, encoding="utf-8")


def report_page(exam: ShownExam, encoded: Sequence[Encoded]) -> str:
    """The HTML of an exam whose frames are encoded already, one `Encoded` for each view."""
    style = _source("page.css")
    program = "".join(map(_source, PROGRAM))
    policy = (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(exam.title),
        "style": style,
        "exam": _json(_content(exam, encoded)),
        "frames": "\n".join(map(_frames, encoded)),
        "program": program,
    }
    # In one pass, so that what is put in is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def _source(name: str) -> str:
    return resources.files("mm3d.output.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _frames(encoded: Encoded) -> str:
    """A block that the browser does not run, a frame to a line."""
    lines = "\n".join(base64.b64encode(frame).decode() for frame in encoded.frames)
    return f'<script type="text/plain" class="frames">{lines}</script>'


def _content(exam: ShownExam, encoded: Sequence[Encoded]) -> dict[str, Any]:
    """What the program is told; slices are 0-based here, and 1-based where people read them."""
    views = zip(exam.views, encoded, numbered(exam), strict=True)
    return {
        "version": __version__,
        "title": exam.title,
        "score": exam.score,
        "breasts": dict(exam.breast_scores),
        "threshold": exam.threshold,
        "weights": exam.weights_name,
        "intendedUse": exam.intended_use,
        "problems": list(exam.problems),
        "unread": [laterality + position for laterality, position in exam.unread],
        "views": [_view(view, frames, numbers) for view, frames, numbers in views],
    }


def _view(view: ShownView, encoded: Encoded, numbers: Sequence[int]) -> dict[str, Any]:
    slices, height, width = view.shape
    return {
        "laterality": view.laterality,
        "position": view.position,
        "modality": view.modality,
        "slices": slices,
        "height": height,
        "width": width,
        "frameHeight": encoded.height,
        "frameWidth": encoded.width,
        "region": _region(view),
        "score": view.score,
        "pixelSpacing": view.pixel_spacing,
        "sliceSpacing": view.slice_spacing,
        "findings": [
            {
                "number": number,
                "box": [round(float(edge), 1) for edge in finding.box],
                "score": finding.score,
                "slice": finding.slice,
                "weights": finding.weights and [float(f"{w:.4g}") for w in finding.weights],
            }
            for finding, number in zip(view.findings, numbers, strict=True)
        ],
    }


def _region(view: ShownView) -> list[float]:
    """x1, y1, x2, y2 of what a view shows when it opens: the breast up to the chest wall, and all boxes."""
    slices, height, width = view.shape
    try:
        x1, y1, x2, y2 = breast_region(view.frame(slices // 2))
    except InputError:  # an empty image is shown whole
        x1, y1, x2, y2 = 0, 0, width, height
    x1, x2 = (0, x2) if view.laterality == "L" else (x1, width)
    boxes = [(x1, y1, x2, y2), *(finding.box for finding in view.findings)]
    left, top, right, bottom = zip(*boxes, strict=True)
    return [max(0.0, min(left)), max(0.0, min(top)), min(float(width), max(right)), min(float(height), max(bottom))]
