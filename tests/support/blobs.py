"""Prepared folders of breasts that are easy to learn: noise, and in malignant ones a bright blob in each view."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mm3d.data.prepare.geometry import Geometry, PrepareSettings
from mm3d.data.prepare.prepared import ViewFile, finish_view, write_cohort
from mm3d.data.records import Annotation, Breast, Cohort, Label, Modality, Position, View

SLICES, H, W = 4, 64, 48
STORED = 12  # slices of the volume before it was pooled


def write_blobs(
    folder: Path,
    breasts: int = 8,
    seed: int = 0,
    malignant: int = 2,
    annotated: int = 10**6,
    split: str = "",
    slices: int = SLICES,
    notes: tuple[str, ...] = (),
) -> Path:
    """Both modalities. Every `malignant`-th breast is malignant (0: none); the first `annotated` of them have boxes."""
    random = np.random.default_rng(seed)
    keys, made, boxed = {}, [], 0
    for number in range(breasts):
        label: Label = "malignant" if malignant and number % malignant == 0 else "negative"
        views = []
        boxed += label == "malignant"
        for position in ("CC", "MLO"):
            centre = random.uniform(12, W - 12), random.uniform(12, H - 12), int(random.integers(STORED))
            for modality in ("FFDM", "DBT"):
                view, key = _write_view(
                    folder, number, position, modality, label, centre, boxed <= annotated, random, slices
                )
                views.append(view)
                keys[view.name] = key
        made.append(Breast(f"P{seed}-{number:03d}", "E", "L", label, tuple(views), split))
    write_cohort(folder, Cohort(folder.name, tuple(made), notes=notes), keys, [])
    return folder


def _write_view(
    folder: Path,
    number: int,
    position: Position,
    modality: Modality,
    label: Label,
    centre: tuple[float, float, int],
    annotated: bool,
    random: np.random.Generator,
    slices: int,
) -> tuple[View, str]:
    own, stored = (1, 1) if modality == "FFDM" else (slices, STORED)
    geometry = Geometry(
        crop=(10, 20, 10 + W, 20 + H), mirrored=False, height=H, width=W, stored_slices=stored, slices=own
    )
    image = 0.1 + 0.2 * random.random((own, H, W))
    cx, cy, z = centre
    radius = 7.0
    findings: tuple[Annotation, ...] | None = ()
    if label == "malignant":
        y, x = np.mgrid[:H, :W] + 0.5
        blob = 0.7 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * (radius / 2) ** 2))
        for s in range(own):
            image[s] += blob * 0.3 ** abs(s - geometry.slice_to_model(min(z, stored - 1)))
        box = geometry.box_to_stored((cx - radius, cy - radius, cx + radius, cy + radius))
        depth: dict[str, Any] = {} if modality == "FFDM" else {"slice": z}
        findings = (Annotation(box, True, **depth),) if annotated else None
    name = f"{folder.name} {number} {position} {modality}"
    key = f"{number:04d}{position}{modality}".lower()
    file = ViewFile(geometry, False, 0.1, 1.0, "", PrepareSettings(W, H, slices))
    (folder / "views").mkdir(parents=True, exist_ok=True)
    partial = folder / "views" / f".{key}.npy"
    np.save(partial, np.round(np.clip(image, 0, 1) * 65535).astype(np.uint16))
    finish_view(folder, key, partial, file)
    return View(name, "L", position, modality, (Path(f"{key}.dcm"),), findings), key


def settings(folder: Path, **sections: Any) -> dict[str, Any]:
    """A configuration that trains a tiny model for some steps, as plain data; sections go over it."""
    plain: dict[str, Any] = {
        "model": {"preset": "tiny"},
        "data": {"train": [{"folder": str(folder), "input": "ffdm"}]},
        "augment": {"shift": 0.05, "gamma": 0.2},
        "optimiser": {"learning_rate": 1e-3},
        "loop": {"steps": 8, "batch": 2, "save_every": 2, "log_every": 1, "threads": 1},
        "validate": {"every": 1000},
    }
    for name, values in sections.items():
        plain[name] = (plain.get(name, {}) | values) if isinstance(values, dict) else values
    return plain


def write_settings(path: Path, plain: dict[str, Any]) -> Path:
    path.write_text(json.dumps(plain))
    return path
