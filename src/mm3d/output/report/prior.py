"""The prior exam in the report of a later one: its images and findings, read from its own report.

So nothing is kept in memory between exams, and an exam that was finished before serves as well.
"""

import base64
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm3d.output.report.frames import STEP, EncodedView, encode_frame
from mm3d.output.result import PriorExam
from mm3d.shared.errors import InputError

CONTENT = re.compile(r'<script type="application/json" id="exam">(.*?)</script>', re.DOTALL)
FRAMES = re.compile(r'<script type="text/plain" class="frames">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class PriorReport:
    """What a later report shows of an exam, as the page's program reads it."""

    summary: dict[str, Any]
    views: list[dict[str, Any]]
    encoded: list[EncodedView]


def read_prior(prior: PriorExam, budget: int) -> PriorReport:
    """Read the report of an exam, and make its frames small enough that all have at most `budget` bytes."""
    views, encoded = _read_page(prior.report)
    scale = 1.0
    original = encoded
    while sum(view.size for view in encoded) > budget:
        scale = min(scale * STEP, (budget / sum(view.size for view in original)) ** 0.5)
        encoded = [_shrink(view, scale) for view in original]
    for view, small in zip(views, encoded, strict=True):
        view |= {"prior": True, "frameHeight": small.height, "frameWidth": small.width}
    return PriorReport({"when": prior.when, "score": prior.score}, views, encoded)


def _read_page(path: Path) -> tuple[list[dict[str, Any]], list[EncodedView]]:
    """The own views of a report, without those of its prior exam, and their frames."""
    try:
        text = path.read_text(encoding="utf-8")
        content = CONTENT.search(text)
        assert content is not None
        views = [view for view in json.loads(content[1])["views"] if not view["prior"]]
        encoded = [
            EncodedView(view["frameHeight"], view["frameWidth"], tuple(map(base64.b64decode, block.split("\n"))))
            for view, block in zip(views, FRAMES.findall(text), strict=False)
        ]
        assert all(len(e.frames) == view["slices"] for e, view in zip(encoded, views, strict=True))
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(f"{path} is damaged, or no report of this version; predict its exam again.") from error
    return views, encoded


def _shrink(view: EncodedView, scale: float) -> EncodedView:
    frames = tuple(encode_frame(np.array(Image.open(io.BytesIO(frame))), scale) for frame in view.frames)
    return EncodedView(max(1, round(scale * view.height)), max(1, round(scale * view.width)), frames)
