"""Pictures of a trial for people: the same finding in the mammogram, in its slice, beside its slice, and in the MIP."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from mm3d.data.records import Annotation
from mm3d.phantom.lesions import KINDS
from mm3d.phantom.rendered import RenderedBreast, RenderedView
from mm3d.phantom.trial import Trial, draw_case, render_breast

OFF = 10.0  # mm beside its slice
WINDOW = 64.0  # mm of breast around a finding
HEIGHT, GAP, CAPTION = 220, 4, 16  # pixels of the montage
COLUMNS = ("mammogram", "most visible slice", f"{OFF:g} mm beside it", "maximum of all slices")
MALIGNANT, BENIGN, GREY = (255, 96, 64), (96, 200, 120), (200, 200, 200)


def montage(trial: Trial, most: int = 6) -> Image.Image:
    """A row for the trial's first finding of each kind: the whole view, then the finding enlarged."""
    rows = []
    for kind, index in list(_telling(trial).items())[:most]:
        breast = render_breast(trial, index)
        flats, deeps = breast.views[::2], breast.views[1::2]  # CC and MLO
        for flat, deep in zip(flats, deeps, strict=True):
            finding = next((finding for finding in deep.findings if finding.kind == kind), None)
            if finding:
                rows.append(_row(breast, flat, deep, finding))
                break
    if not rows:
        return Image.new("RGB", (4 * HEIGHT, CAPTION))
    width = max(row.width for row in rows)
    whole = Image.new("RGB", (width, CAPTION + sum(row.height + GAP for row in rows)))
    top = CAPTION
    for row in rows:
        whole.paste(row, (0, top))
        top += row.height + GAP
    return whole


def _telling(trial: Trial) -> dict[str, int]:
    """The first breast with each kind of finding, the malignant kinds first."""
    found: dict[str, int] = {}
    for index in range(trial.breasts):
        for lesion in draw_case(trial, index)[1]:
            found.setdefault(lesion.kind.name, index)
    return {kind: found[kind] for kind in KINDS if kind in found}


def _row(breast: RenderedBreast, flat: RenderedView, deep: RenderedView, finding: Annotation) -> Image.Image:
    best, spacing = finding.slice or 0, deep.slice_spacing or 1.0
    beside = best + round(OFF / spacing)
    if beside >= len(deep.pixels):
        beside = max(0, best - round(OFF / spacing))
    shallow, full = 2**flat.bits - 1, 2**deep.bits - 1
    pictures = [
        flat.pixels[0] / shallow,
        deep.pixels[best] / full,
        deep.pixels[beside] / full,
        deep.pixels.max(axis=0) / full,
    ]
    tiles = [_tile(picture, finding, deep, window) for window in (None, WINDOW) for picture in pictures]
    row = Image.new("RGB", (sum(tile.width + GAP for tile in tiles), HEIGHT + CAPTION))
    left = 0
    for tile, name in zip(tiles, COLUMNS * 2, strict=True):
        row.paste(tile, (left, CAPTION))
        ImageDraw.Draw(row).text((left + 2, 2), name, fill=GREY, font=ImageFont.load_default(10))
        left += tile.width + GAP
    name = f"{finding.kind}, density {breast.attributes['density']}, {deep.laterality}{deep.position}"
    visible = f"visible {(finding.first_slice or 0) + 1}-{(finding.last_slice or 0) + 1}"
    told = f"{name}, slice {best + 1} of {len(deep.pixels)}, {visible}"
    ImageDraw.Draw(row).text((4, HEIGHT + CAPTION - 14), told, fill=GREY, font=ImageFont.load_default(11))
    return row


def _tile(picture: NDArray[np.floating], finding: Annotation, view: RenderedView, window: float | None) -> Image.Image:
    """A picture HEIGHT pixels high: the whole view with the box, or `window` mm around the finding."""
    rows, columns = picture.shape
    x1, y1, x2, y2 = finding.box
    box = (0, 0, columns, rows)
    if window:
        half = max(window / view.pixel_spacing, 1.3 * (x2 - x1), 1.3 * (y2 - y1)) / 2
        x, y = ((x1 + x2) / 2, (y1 + y2) / 2)
        box = (round(x - half), round(y - half), round(x + half), round(y + half))
    whole = Image.fromarray(np.rint(picture * 255).astype(np.uint8)).crop(box)
    scale = HEIGHT / whole.height
    tile = whole.resize((max(1, round(whole.width * scale)), HEIGHT), Image.Resampling.BICUBIC).convert("RGB")
    if not window:
        corners = [(value - offset) * scale for value, offset in zip(finding.box, (*box[:2], *box[:2]), strict=True)]
        ImageDraw.Draw(tile).rectangle(corners, outline=MALIGNANT if finding.malignant else BENIGN)
    return tile
