"""One picture of an exam for viewers that show nothing else: a Secondary Capture with the views and their boxes.

No name or number of a patient is drawn.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from pydicom.uid import SecondaryCaptureImageStorage

from mm3d.output.result import ExamResult, ViewResult
from mm3d.output.sr.document import Sources, begin_object, read_sources, save_object

HEIGHT, GAP, LINE = 700, 12, 22  # pixels
COLOUR = (255, 170, 0)


def write_summary_image(result: ExamResult, path: Path) -> None:
    """Write the summary of an exam: each view on the slice of its highest finding, or its middle slice."""
    sources = read_sources(result)
    picture = np.asarray(_draw(sources))
    ds = begin_object(sources, SecondaryCaptureImageStorage, "OT")
    ds.ConversionType, ds.ImageType, ds.BurnedInAnnotation = "WSD", ["DERIVED", "SECONDARY"], "NO"
    ds.PatientOrientation = ds.Laterality = ""
    ds.Rows, ds.Columns = picture.shape[:2]
    ds.SamplesPerPixel, ds.PhotometricInterpretation, ds.PlanarConfiguration = 3, "RGB", 0
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 8, 8, 7, 0
    data = picture.tobytes()
    ds.PixelData = data + b"\0" * (len(data) % 2)
    ds["PixelData"].VR = "OB"
    save_object(ds, path)


def _draw(sources: Sources) -> Image.Image:
    result = sources.result
    views = [_draw_view(view, result.threshold) for view in result.views]
    width = max(760, sum(view.width + GAP for view in views) + GAP)
    picture = Image.new("RGB", (width, HEIGHT + 4 * LINE + 2 * GAP))
    draw = ImageDraw.Draw(picture)
    lines = ("mm3d: research only, not for diagnosis.", *(f"{part}." for part in sources.summary().split(". ")[:2]))
    for count, line in enumerate(lines):
        draw.text((GAP, GAP + count * LINE), line.replace("..", "."), fill=(255, 255, 255), font_size=16)
    x = GAP
    for view in views:
        picture.paste(view, (x, 4 * LINE + GAP))
        x += view.width + GAP
    return picture


def _draw_view(view: ViewResult, threshold: float) -> Image.Image:
    marked = view.marked(threshold)
    z = len(view.frames) // 2 if not marked or marked[0].slice is None else round(marked[0].slice)
    frame = Image.fromarray(np.asarray(view.frames[z])).convert("RGB")
    scale = HEIGHT / frame.height
    picture = frame.resize((max(1, round(frame.width * scale)), HEIGHT))
    draw = ImageDraw.Draw(picture)
    for finding in marked:
        if finding.slice is None or round(finding.slice) == z:
            x1, y1, x2, y2 = (scale * value for value in finding.box)
            draw.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=COLOUR, width=2)
            draw.text((x1, max(0.0, y1 - LINE)), f"{finding.score:.2f}", fill=COLOUR, font_size=16)
    where = f" slice {z + 1} of {len(view.frames)}" if len(view.frames) > 1 else ""
    draw.text((4, 4), f"{view.name}{where}", fill=(255, 255, 255), font_size=16)
    return picture
