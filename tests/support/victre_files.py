"""A small compressed breast as VICTRE writes it: labels in a MetaImage."""

import gzip
from pathlib import Path

import numpy as np

AIR, FAT_LABEL, SKIN_LABEL, GLAND_LABEL, PADDLE, LESION = 0, 1, 2, 29, 50, 200
SPACING = (1.0, 0.8, 1.25)  # mm, along z, y, x


def draw_breast(lesion: bool = True, shape: tuple[int, int, int] = (48, 100, 60)) -> np.ndarray:
    """(z, y, x) labels: a half disc of fat with a ball of gland between paddles of 4 voxels, and a mass in it."""
    z, y, x = (
        np.arange(n)[tuple(slice(None) if i == axis else None for i in range(3))] for axis, n in enumerate(shape)
    )
    reach = np.hypot((x + 0.5) / 50, (y - 50) / 42)
    labels = np.where(reach < 1, FAT_LABEL, AIR) * np.ones(shape, int)
    labels[(reach >= 0.96) & (reach < 1) & (z >= 0)] = SKIN_LABEL
    labels[np.sqrt((z - 24) ** 2 + (0.8 * (y - 50)) ** 2 + (1.25 * (x - 20)) ** 2) < 16] = GLAND_LABEL
    if lesion:
        labels[np.sqrt((z - 14) ** 2 + (0.8 * (y - 26)) ** 2 + (1.25 * (x - 22)) ** 2) < 5] = LESION
    labels[:4] = labels[-4:] = PADDLE
    return labels.astype(np.uint8)


def write_mhd(
    folder: Path, labels: np.ndarray, spacing: tuple[float, ...] = SPACING, packed: bool = False, **changes: str
) -> Path:
    """As VICTRE writes it: the header says .raw, also where the file was packed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {
        "ObjectType": "Image",
        "NDims": "3",
        "BinaryData": "True",
        "CompressedData": "False",
        "ElementSpacing": " ".join(map(str, spacing[::-1])),
        "DimSize": " ".join(map(str, labels.shape[::-1])),
        "ElementType": "MET_UCHAR",
        "ElementDataFile": "breast.raw",
    } | changes
    (folder / "breast.mhd").write_text("\n".join(f"{name} = {value}" for name, value in header.items()))
    content = labels.tobytes()
    if packed:
        (folder / "breast.raw.gz").write_bytes(gzip.compress(content))
    else:
        (folder / "breast.raw").write_bytes(content)
    return folder / "breast.mhd"
