"""What a view of the virtual trial costs at each scale, and how that grows with its voxels."""

import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from timing import Row, in_its_own_process

CORES = os.cpu_count() or 1
# Breasts of a trial that are rendered for the figure, after one that warms up; full ones take minutes each.
BREASTS = {"tiny": range(2, 22), "mini": range(2, 22), "full": range(3, 4)}
PRODUCED = 24  # breasts for the rate of production


@dataclass(frozen=True)
class Cost:
    seconds: float  # per view, with its mammogram and its volume
    voxels: float


def rows() -> list[Row]:
    found = in_its_own_process(__file__)
    costs = {scale: Cost(*found[scale]) for scale in BREASTS}
    growth = math.log(costs["full"].seconds / costs["mini"].seconds) / math.log(
        costs["full"].voxels / costs["mini"].voxels
    )
    wanted = {"tiny": "below 0.3 s", "mini": "at most 1.5 s", "full": ""}
    table = [
        Row(
            f"Virtual trial, {scale}: a view with mammogram and volume, one core",
            f"{cost.seconds:.2f} s",
            wanted[scale],
            f"{cost.voxels / 1e6:.1f} million voxels between the plates; mean of {len(BREASTS[scale])} breasts",
        )
        for scale, cost in costs.items()
    ]
    hours = 1000 * found["breast"] / 3600
    return [
        *table,
        Row("The same, exponent of the time in the number of voxels, mini to full", f"{growth:.2f}", "near 1", ""),
        Row(
            f"Virtual trial, mini: 1,000 breasts as prepared views on {CORES} cores",
            f"{60 * hours:.0f} minutes",
            "below 60",
            f"from {PRODUCED} breasts by `mm3d phantom --format prepared`",
        ),
    ]


def measure() -> dict[str, object]:
    from mm3d.phantom.run import PREPARED, make_trial
    from mm3d.phantom.trial import Trial, make_phantoms, render_breast

    found: dict[str, object] = {}
    for scale, indices in BREASTS.items():
        trial = Trial(seed=1, breasts=1, scale=scale)
        voxels = 0
        if scale != "full":
            render_breast(trial, 0)
        start = time.perf_counter()
        for index in indices:
            render_breast(trial, index)
        seconds = time.perf_counter() - start
        for index in indices:
            voxels += sum(phantom.volume.size for phantom in make_phantoms(trial, index))
        views = 2 * len(indices)
        found[scale] = (seconds / views, voxels / views)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(seed=1, breasts=PRODUCED, scale="mini")
        start = time.perf_counter()
        make_trial(trial, Path(folder) / "trial", PREPARED["mini"], CORES)
        found["breast"] = (time.perf_counter() - start) / PRODUCED
    return found


if __name__ == "__main__":
    import json

    print(json.dumps(measure()))
