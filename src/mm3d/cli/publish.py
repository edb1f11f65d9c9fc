"""`mm3d publish`: a folder in the layout of Hugging Face's hub, from a weights file."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm3d import __version__
from mm3d.model.hub import FILE
from mm3d.model.weights import INT8, WeightsHeader, find, name_of, read_header
from mm3d.shared.config import to_dict
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import refuse_files, replacing, save_json

CARD, CONFIG = "README.md", "config.json"
HEAD = """---
library_name: mm3d
pipeline_tag: object-detection
tags:
- mammography
- breast-tomosynthesis
- medical
{licence}---
"""
BODY = """# {title}

A detector of breast cancer in {images}, for mm3d {version} or newer.

**Intended use.** {intended_use}

```python
import mm3d

model = mm3d.load("hf://OWNER/NAME")  # the name that this repository has on the hub
exam = model.predict("exam_folder/")
```

On the command line: `mm3d predict exam_folder/ -o found/ --weights hf://OWNER/NAME`.

## The model

{model}

## Training

{training}

## Figures

{figures}

## Limits

{limits}

All settings of the training are in the header of `{file}`: `mm3d info {file} --json` prints them.
"""
NAMES = {  # of figures, for people
    "recall": "R",
    "recall3d": "R with the right slice ",
    "auc": "AUC",
    "auc_max": "AUC of the highest finding",
    "slice_visible": "share of findings whose slice shows the lesion",
}


def publish(weights: Path, output: Path, title: str | None, licence: str | None) -> int:
    """Write the folder. Returns the exit code."""
    path = find(weights)
    header = read_header(path)
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder with -o.")
    refuse_files(output, (FILE, CARD, CONFIG), "this run of 'mm3d publish'")
    if output.resolve() == path.resolve().parent:
        raise InputError(f"{output} is the folder of the weights; give another one with -o.")
    with replacing(output / FILE) as partial:
        shutil.copyfile(path, partial)
    save_json(output / CONFIG, {"library_name": "mm3d", "mm3d": to_dict(header.config)})
    with replacing(output / CARD) as partial:
        partial.write_text(write_card(header, title or name_of(path), licence), encoding="utf-8")
    console = Console()
    say(console, f"Wrote {output}: {FILE}, {CARD}, {CONFIG}. Read {output / CARD}, and complete what it cannot know.")
    if licence is None:
        say(console, "note: The card names no licence, without which nobody may use the weights; give --licence.")
    say(console, f"Then: hf upload OWNER/NAME {output}")
    return 0


def write_card(header: WeightsHeader, title: str, licence: str | None) -> str:
    """The model card, in Markdown, from the header of a weights file."""
    provenance = header.provenance
    flat = provenance.get("input") == "ffdm"
    notes = [f"- {note}" for note in provenance.get("notes", ())]
    return HEAD.format(licence=f"license: {licence}\n" if licence else "") + BODY.format(
        title=title,
        images="mammograms" if flat else "digital breast tomosynthesis and mammograms",
        version=provenance.get("mm3d", __version__),
        intended_use=header.intended_use,
        model=_list(_describe_model(header)),
        training=_list(_describe_training(provenance)),
        figures=_list(_describe_figures(provenance)),
        limits="\n".join([*notes, "- Not a medical device. Scores are not probabilities of cancer."]),
        file=FILE,
    )


def _list(lines: Mapping[str, Any]) -> str:
    given = [f"- {name}: {value}" for name, value in lines.items() if value not in (None, "")]
    return "\n".join(given) or "The header of the file says nothing of it."


def _describe_model(header: WeightsHeader) -> dict[str, Any]:
    config, prepare = header.config, header.provenance.get("prepare", {})
    size = " x ".join(str(prepare[name]) for name in ("length", "width") if name in prepare)
    return {
        "backbone": config.backbone.name or config.backbone.family,
        "fusion of slices": config.fusion,
        "proposals": config.proposals,
        "heads": config.heads,
        "size of views": f"{size} pixels, {prepare.get('slices', '?')} slices" if size else None,
        "number format": header.precision,
    }


def _describe_training(provenance: Mapping[str, Any]) -> dict[str, Any]:
    start = provenance.get("start")
    return {
        "images": provenance.get("source"),
        "breasts": provenance.get("breasts"),
        "of these malignant": provenance.get("malignant"),
        "of these with boxes": provenance.get("malignant_with_boxes"),
        "input": provenance.get("input"),
        "steps": provenance.get("step"),
        "started from": Path(str(start["file"])).name if isinstance(start, dict) and "file" in start else start,
        "imported from": provenance.get("imported_from"),
    }


def _describe_figures(provenance: Mapping[str, Any]) -> dict[str, Any]:
    lines: dict[str, Any] = {}
    if study := provenance.get("study"):
        own = study.get("figures", {})
        for name, value in own.items():
            if not name.endswith("_se") and value is not None:
                error = own.get(f"{name}_se")
                lines[_name(name)] = f"{value:.2f}" + (f" ± {error:.2f} (standard error)" if error else "")
        lines["measured on"] = f"the test cohort of study {study.get('study')}. {study.get('note', '')}".strip()
    for cohort, figures in provenance.get("figures", {}).items():
        for name, (value, low, high) in figures.items():
            lines[f"{_name(name)}, {cohort}"] = f"{value:.2f} ({low:.2f} to {high:.2f}, 95%)"
    if INT8 in provenance:
        lines["int8 beside float32"] = f"`{json.dumps(provenance[INT8].get('accuracy'))}`"
    if isinstance(point := provenance.get("operating_point"), dict):
        lines["operating point"] = f"{point.get('threshold')} ({point.get('source')})"
    return lines


def _name(figure: str) -> str:
    rule, at, rate = figure.partition("@")
    return f"{NAMES.get(rule, rule)}{at}{rate}"
