"""`mm3d info`: what a bug report needs."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mm3d import __version__
from mm3d.model.weights import read_header, shipped

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "scipy")


def gather_info() -> dict[str, Any]:
    """Versions, device, threads and shipped weights as plain data. Only the headers of the weights are read."""
    return {
        "mm3d": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "shipped_weights": [_describe_weights(path) for path in shipped()],
    }


def _describe_weights(path: Path) -> dict[str, Any]:
    header = read_header(path)
    return {
        "name": path.stem,
        "path": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "slices": header.config.slices,
        "fusion": header.config.fusion,
        "provenance": header.provenance,
        "intended_use": header.intended_use,
    }


def _describe_training(provenance: dict[str, Any]) -> str:
    """What weights were trained on, and how good they are in their study."""
    trained = f"trained on input {provenance.get('input', 'unknown')}"
    study = provenance.get("study")
    if study is None:
        return trained
    figures = study["figures"]
    return (
        f"{trained}; R@0.25 {figures['recall@0.25']:.2f}, AUC {figures['auc']:.2f} ({study['study']}, {study['run']})"
    )


def print_info(as_json: bool) -> None:
    info = gather_info()
    if as_json:
        print(json.dumps(info, indent=2))
        return
    weights = [
        f"{w['name']} ({w['megabytes']} MB): {_describe_training(w['provenance'])}\n    {w['intended_use']}"
        for w in info["shipped_weights"]
    ]
    rows = {
        "mm3d": info["mm3d"],
        "python": f"{info['python']} on {info['platform']}",
        "packages": ", ".join(f"{name} {number}" for name, number in info["packages"].items()),
        "device": ", ".join(info["gpus"]) or "cpu (no GPU found)",
        "threads": str(info["threads"]),
        "shipped weights": "\n".join(weights) or "none in this version",
    }
    for name, text in rows.items():
        print(f"{name:16}{text.replace(chr(10), chr(10) + ' ' * 16)}")
