"""The breast's region: what is cut off here no detector can find again."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.csv_files import rows_of
from support.dicom_files import breast

from mm3d.data.prepare.region import breast_region, chest_wall


def test_markers_text_clips_and_the_paddle_do_not_widen_the_region() -> None:
    image = breast(1200, 1000).astype(np.int32)
    plain = breast_region(image)
    image[60:140, 800:960] = 1000  # a lead marker with letters
    image[80:120, 830:930:8] = 0
    image[1100:1130, 700:980] = 900  # burnt-in text
    image[:, 760:763] = 500  # the paddle's edge
    image[900, 700:1000] = 1023  # a scratch
    image[595:600, 300:310] = 1023  # a clip in the breast
    assert breast_region(image) == pytest.approx(plain, abs=25)
    assert plain[0] == 0
    assert 560 < plain[2] < 680


def test_an_image_full_of_breast_is_kept_whole() -> None:
    image = 300 + np.random.default_rng(0).integers(0, 200, (500, 400))
    assert breast_region(image) == (0, 0, 400, 500)


def test_the_crop_keeps_every_real_finding_and_removes_two_fifths_of_the_image(real_data: Path) -> None:
    folder = real_data / "bcs-dbt" / "annotated-slices"
    removed = []
    rows = rows_of(folder / "manifest.csv")
    for row in rows:
        image = np.asarray(Image.open(folder / row["jpg"]).convert("L"))
        x1, y1, x2, y2 = breast_region(image)
        x, y, width, height = (int(row[name]) for name in ("X", "Y", "Width", "Height"))
        assert x1 <= x, row
        assert y1 <= y, row
        assert x + width <= x2, row
        assert y + height <= y2, row
        assert chest_wall(image) == row["View"][0].upper()
        removed.append(1 - (x2 - x1) * (y2 - y1) / image.size)
    assert len(rows) > 50
    assert np.mean(removed) >= 0.4
