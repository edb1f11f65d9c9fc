"""Put weights that a run of real-ffdm.toml made into the package as `mammo`, with their figures and operating point.

    python tools/ship_films.py runs/real-ffdm --films films/alone/metrics.json --slices slices/alone/metrics.json

--films and --slices are what `mm3d evaluate --at 0.25 --at 0.5 --at 1 --at 2` wrote of them: on the validation films,
and on real DBT slices. `tools/measure_real.py` writes both. Weights are stored with 16 bits, which halves the file:
measure what was stored. With --prepared, the films' average histogram goes along, for `mm3d predict --input hm`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from mm3d.data.inputs import training_histogram
from mm3d.model import weights

TARGET = Path(__file__).resolve().parent.parent / "src" / "mm3d" / "shipped" / "mammo.safetensors"
SOURCE = "films of CBIS-DDSM (DOI 10.7937/K9/TCIA.2016.7O02S9CY, CC BY 3.0)"
FILMS = "films of other patients, by the same training on four fifths of all"
USE = (
    f"{weights.RESEARCH_ONLY} Trained on digitised films of the 1990s, which differ from what a modern detector shows, "
    "and on no normal breasts."
)


def figures(path: Path) -> dict[str, Any]:
    """Recall with its interval at each rate, and AUC, of an evaluation of one system."""
    (system,) = json.loads(path.read_text(encoding="utf-8"))["systems"]
    rows = system["recall"]["2D"]["finding"]
    found = {
        f"recall@{row['fp_per_volume']:g}": [round(x, 4) for x in (row["recall"], *row["interval"])] for row in rows
    }
    area = system["auc"]["breast"]
    return found | {"auc": [round(x, 4) for x in (area["auc"], *area["interval"])]}


def operating_point(path: Path) -> dict[str, Any]:
    """The threshold at 0.25 false positives per image."""
    (system,) = json.loads(path.read_text(encoding="utf-8"))["systems"]
    point = next(one for one in system["operating_points"] if one.get("wanted") == {"fp_per_volume": 0.25})
    images = system["recall"]["2D"]["finding"][0]["volumes"]
    return {
        "threshold": round(point["threshold"], 6),
        "source": f"0.25 false positives per image on {images} films of CBIS-DDSM",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--films", type=Path, required=True)
    parser.add_argument("--slices", type=Path, required=True)
    parser.add_argument("--prepared", type=Path, help="the prepared films of the training")
    parser.add_argument("--target", type=Path, default=TARGET)
    arguments = parser.parse_args()
    path = weights.find(arguments.weights)
    provenance = weights.read_header(path).provenance | {
        "source": SOURCE,
        "figures": {FILMS: figures(arguments.films), "DBT slices": figures(arguments.slices)},
        "operating_point": operating_point(arguments.films),
    }
    if arguments.prepared is not None:
        provenance["histogram"] = list(training_histogram(arguments.prepared, "train"))
    weights.save(weights.load(path).half(), arguments.target, provenance, USE)
    print(f"Wrote {arguments.target}: {arguments.target.stat().st_size / 1e6:.1f} MB.")


if __name__ == "__main__":
    main()
