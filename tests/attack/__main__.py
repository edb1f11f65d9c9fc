"""`make attack`: every attack at its full length, or a share of it, and the figures as JSON.

    python -m attack [--share 0.1] [--seed 0] [--only reading exams ...] [--write FILE]

The exit code is 1 if there is a fault.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from attack import canaries, exams, fuzz, kills, reading

ATTACKS = {  # at full length
    "reading": (reading.attack, 100_000),
    "exams": (exams.attack, 1_000),
    "kills": (kills.attack, 200),
    "canaries": (canaries.attack, 1),
    "fuzz": (fuzz.attack, 40_000),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="share of the full length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--write", type=Path, help="a JSON file for the figures, which is written after each attack")
    arguments = parser.parse_args()
    figures, faults = {}, 0
    for name in arguments.only:
        attack, count = ATTACKS[name]
        count = max(1, round(count * arguments.share))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = attack(count, arguments.seed, Path(folder))
        seconds = round(time.monotonic() - began)
        figures[name] = {"count": count, "seed": arguments.seed, "seconds": seconds} | tally.plain()
        faults += len(tally.faults)
        print(json.dumps({name: figures[name]}, indent=1), flush=True)
        if arguments.write:
            arguments.write.write_text(json.dumps(figures, indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
