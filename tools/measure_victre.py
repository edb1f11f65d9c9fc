"""Is the mass of VICTRE's breast found? The table of docs/phantom.md, for any weights.

    python tools/measure_victre.py mammo VICTRE --scale full -o OUT

VICTRE is a folder with pcl_1.mhd, a breast with a mass, and pc_1_crop.mhd, the same without it. They are imaged as the
virtual trial is, at the size of the weights. OUT keeps the images: a second run with weights of that size is short.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mm3d import cli
from mm3d.data.inputs import InputName, modality_of, prepared_breasts
from mm3d.data.prepare.prepared import PreparedBreast
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.metrics.hits import iou
from mm3d.model import weights
from mm3d.output.predictions import Finding
from mm3d.predict.detect import load_model, predict_breast

INPUTS: dict[InputName, str] = {"ffdm": "mammogram", "slices": "slices of the volume", "volume": "volume"}
CONTRASTS = (1.0, 1.7)
HEADER = (
    "| weights, input | contrast | score on the mass | rank | its slice | visible | highest other score | healthy |"
)


def make_breast(anatomy: Path, contrast: float, given: argparse.Namespace, size: dict[str, int]) -> Path:
    folder = given.output / f"{anatomy.stem}-{given.scale}-{size['width']}-{contrast:g}-{given.seed}"
    words = [f"--{name}={size[name]}" for name in ("width", "length", "slices")]
    words += [
        f"--scale={given.scale}",
        f"--seed={given.seed}",
        f"--contrast={contrast}",
        "--format=prepared",
        "--jobs=1",
    ]
    if cli.main(["phantom", str(folder), "--anatomy", str(anatomy), *words]):
        raise SystemExit(f"{anatomy} could not be imaged; see above.")
    return folder


def describe(findings: tuple[Finding, ...], breast: PreparedBreast, healthy: tuple[Finding, ...]) -> str:
    """The cells of a row. Rank: of all findings of the view, the place of the best one on the mass."""
    (mass,) = breast.views[0].view.annotations or ()
    boxes = np.array([finding.box for finding in findings])
    on = iou(boxes, np.array(mass.box)) >= EvaluateSettings().iou
    ranks = np.flatnonzero(on)  # the highest score comes first
    best = findings[ranks[0]] if len(ranks) else None
    other = max((finding.score for finding, hit in zip(findings, on, strict=True) if not hit), default=0.0)
    cells = ("none", "", "") if best is None else (f"{best.score:.3f}", str(ranks[0] + 1), str(best.slice or ""))
    visible = "" if mass.first_slice is None else f"{mass.first_slice} to {mass.last_slice}"
    return " | ".join((*cells, visible, f"{other:.3f}", f"{healthy[0].score if healthy else 0.0:.3f}"))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", default="full", help="of the images, as for mm3d phantom (default: full)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (default: 0)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args(words)
    path = weights.find(arguments.weights)
    size, model = weights.read_header(path).provenance["prepare"], load_model(path)
    twin = make_breast(arguments.folder / "pc_1_crop.mhd", 1.0, arguments, size)
    print(HEADER + "\n" + "|---" * HEADER.count(" | ") + "|---|")
    for contrast in CONTRASTS:
        folder = make_breast(arguments.folder / "pcl_1.mhd", contrast, arguments, size)
        for name, shown in INPUTS.items():
            (breast,), (other,) = (prepared_breasts(one, None, modality_of(name)) for one in (folder, twin))
            found, healthy = (predict_breast(model, one, name).views[0].findings for one in (breast, other))
            row = describe(found, breast, healthy)
            print(f"| `{weights.name_of(path)}`, {shown} | {contrast:g} | {row} |", flush=True)


if __name__ == "__main__":
    main()
