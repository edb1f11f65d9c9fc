"""`mm3d info`: what a bug report needs."""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mm3d import __version__
from mm3d.model.weights import find, name_of, read_header, shipped
from mm3d.shared.printable import printable

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "scipy")


def gather_info(given: Sequence[Path] = ()) -> dict[str, Any]:
    """Versions, device, threads, and shipped and given weights as plain data. Only the headers of weights are read."""
    return {
        "mm3d": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "shipped_weights": [_describe_weights(path) for path in shipped()],
        "given_weights": [_describe_weights(find(path)) for path in given],
    }


def _describe_weights(path: Path) -> dict[str, Any]:
    header = read_header(path)
    return {
        "name": name_of(path),
        "path": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "slices": header.config.slices,
        "fusion": header.config.fusion,
        "precision": header.precision,
        "provenance": header.provenance,
        "intended_use": header.intended_use,
    }


def _describe_training(provenance: dict[str, Any]) -> str:
    """What weights were trained on, and how good they are in their study."""
    trained = f"trained on input {provenance.get('input', 'unknown')}"
    try:
        if "study" in provenance:
            study = provenance["study"]
            figures, source = study["figures"], f"{study['study']}, {study['run']}"
            recall, auc = figures["recall@0.25"], figures["auc"]
        else:  # with an interval behind each figure
            source, figures = next(iter(provenance["figures"].items()))
            recall, auc = figures["recall@0.25"][0], figures["auc"][0]
        return f"{trained}; R@0.25 {recall:.2f}, AUC {auc:.2f} ({source})"
    except (KeyError, IndexError, StopIteration, TypeError, ValueError):  # they bring no figures
        return trained


def _list_weights(described: list[dict[str, Any]]) -> str:
    lines = []
    for w in described:
        int8 = "int8, made of weights " if w["precision"] == "int8" else ""
        lines.append(f"{w['name']} ({w['megabytes']} MB): {int8}{_describe_training(w['provenance'])}")
        lines.append(f"    {w['intended_use']}")
    return "\n".join(lines)


def print_info(as_json: bool, weights: Sequence[Path] = ()) -> None:
    info = gather_info(weights)
    if as_json:
        print(json.dumps(info, indent=2))
        return
    rows = {
        "mm3d": info["mm3d"],
        "python": f"{info['python']} on {info['platform']}",
        "packages": ", ".join(f"{name} {number}" for name, number in info["packages"].items()),
        "device": ", ".join(info["gpus"]) or "cpu (no GPU found)",
        "threads": str(info["threads"]),
        "shipped weights": _list_weights(info["shipped_weights"]) or "none in this version",
    }
    if weights:
        rows["given weights"] = _list_weights(info["given_weights"])
    for name, text in rows.items():
        for number, line in enumerate(text.split("\n")):
            print(f"{'' if number else name:16}{printable(line)}")
