"""Mammograms as JPEG, PNG or TIFF files: grey, with 8 or 16 bits, and without a header that says what they are."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mm3d.data.dicom.window import StoredImage, Window
from mm3d.data.records import Picture
from mm3d.shared.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff")
AS_SHOWN = Window(127.5, 255.0, "LINEAR_EXACT")  # 8 bits were made for a screen: 0 is black, 255 white
COLOUR = 24  # a larger difference between red, green and blue is not from compression
COLOURED = 0.005  # share of such pixels from which a picture is not grey


def read_picture(path: Path, picture: Picture) -> tuple[StoredImage, NDArray[np.integer]]:
    """A picture's pixels (rows, columns), and how they are stored."""
    try:
        with Image.open(path) as file:
            pages = getattr(file, "n_frames", 1)
            mode = file.mode
            pixels = np.asarray(file.convert("RGB") if mode in ("RGBA", "P", "PA", "LA") else file)
    except Exception as error:  # Pillow's decoders raise whatever they like
        raise InputError(f"{path} cannot be read as a picture; it is damaged, or no JPEG, PNG or TIFF.") from error
    if pages > 1:
        raise InputError(f"{path} has {pages} pages; save the one that is a mammogram as a file of its own.")
    if pixels.ndim == 3:
        pixels = _grey(path, pixels)
    if pixels.dtype == np.int32 and pixels.min() >= 0 and pixels.max() < 65536:  # mode I: 16 bits in 32
        pixels = pixels.astype(np.uint16)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise InputError(f"{path} has pixels of Pillow's mode {mode}; save it with 8 or 16 bits of grey.")
    rows, columns = pixels.shape
    image = StoredImage(
        name=str(path),
        rows=rows,
        columns=columns,
        bits_stored=8 * pixels.itemsize,
        display=AS_SHOWN if pixels.itemsize == 1 else None,
        pixel_spacing=picture.pixel_spacing,
        slice_spacing=None,
        vendor="",
    )
    return image, pixels


def _grey(path: Path, colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The middle one of red, green and blue; a picture with colours is refused."""
    if colours.shape[2] != 3:
        raise InputError(f"{path} has {colours.shape[2]} channels; save it in grey.")
    difference = colours.max(axis=2).astype(np.int16) - colours.min(axis=2)
    if (difference > COLOUR).mean() > COLOURED:
        raise InputError(f"{path} is a colour picture; give the grey image without coloured marks.")
    return np.median(colours, axis=2).astype(np.uint8)
