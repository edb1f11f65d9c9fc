"""Three readers of files that nobody vouches for, fuzzed with hypothesis: each answers with a result or one sentence.

atheris was compared with it, in the same time on the same inputs (docs/reliability.md has the figures).
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack.tally import LONGEST, Tally
from attack.trial import write_files
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from support.exams import write_weights

from mm3d.data.dicom.header import read_header
from mm3d.model.weights import read_header as read_weights_header
from mm3d.output.predictions import read
from mm3d.shared.errors import InputError

Outcome = str  # the sentence without names and numbers, or "read"
NUMBERS = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
PREDICTIONS = {
    "version": 1,
    "model": {"name": "a model"},
    "breasts": [
        {
            "patient": "P1",
            "exam": "E1",
            "laterality": "L",
            "score": 0.5,
            "views": [
                {
                    "view": "lcc",
                    "modality": "DBT",
                    "score": 0.5,
                    "findings": [
                        {"box": [1.0, 2.0, 3.0, 4.0], "score": 0.5, "slice": 2.0, "slice_weights": [0.5, 0.5]}
                    ],
                }
            ],
        }
    ],
}


def read_one(reader: Callable[[Path], Any], path: Path, content: bytes) -> Outcome:
    """Give a reader a file. Anything but a result or an InputError is let through."""
    path.write_bytes(content)
    try:
        reader(path)
    except InputError as error:
        return NUMBERS.sub("0", re.sub(r"'[^']*'|\([^)]*\)", "''", str(error).replace(str(path), "")))[:80]
    return "read"


def make_seeds(folder: Path) -> dict[str, tuple[Callable[[Path], Any], str, list[bytes]]]:
    """For each reader: the suffix of its files, and whole files."""
    dicom = [path.read_bytes() for path in write_files(folder / "files").values()]
    weights = write_weights(folder / "weights.safetensors").read_bytes()
    predictions = json.dumps(PREDICTIONS).encode()
    table = b"PatientID,StudyUID,View,X,Width,Y,Height,Z,Depth,Score\nP1,E1,lcc,1,2,3,4,5,1,0.5\n"
    return {
        "header": (read_header, ".dcm", dicom),
        "weights": (
            read_weights_header,
            ".safetensors",
            [weights[: 8 + int.from_bytes(weights[:8], "little")], weights],
        ),
        "predictions": (read, ".json", [predictions]),
        "predictions as a table": (read, ".csv", [table]),
    }


def attack(count: int, seed: int, folder: Path) -> Tally:
    """Give each reader `count` files in all."""
    tally = Tally()
    seeds = make_seeds(folder)
    for name in seeds:
        _attack_reader(name, *seeds[name], count // len(seeds), seed, folder, tally)
    return tally


def _attack_reader(
    name: str,
    reader: Callable[[Path], Any],
    suffix: str,
    whole: list[bytes],
    count: int,
    seed: int,
    folder: Path,
    tally: Tally,
) -> None:
    path = folder / f"fuzzed{suffix}"
    answers: set[Outcome] = set()

    @hypothesis_seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(name, whole))
    def try_one(content: bytes) -> None:
        began = time.perf_counter()
        try:
            answers.add(read_one(reader, path, content))
        except Exception as error:
            tally.faults.append(f"{name}: {type(error).__name__}: {str(error)[:200]}; {content[:200]!r}")
        tally.measure("seconds for a file", time.perf_counter() - began, LONGEST, name)
        tally.counts[f"{name}: files"] += 1

    try_one()
    tally.counts[f"{name}: different answers"] = len(answers)


@st.composite
def mutated(draw: st.DrawFn, name: str, whole: list[bytes]) -> bytes:
    """A whole file with some changes: bytes of a header, or values of a table."""
    content = draw(st.sampled_from(whole))
    if name == "predictions" and draw(st.integers(0, 3)):
        return json.dumps(_change_value(draw, json.loads(content))).encode()
    if name == "weights" and draw(st.integers(0, 3)):
        return _change_weights(draw, content)
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(changed), 6000)))
        new = draw(
            st.binary(max_size=12) | st.sampled_from([b"\xff" * 4, b"\0" * 8, b"SQ", b"UN", b'"', b"{", b"9" * 400])
        )
        gone = draw(st.integers(0, 12) | st.just(len(new)))
        changed[at : at + gone] = new
    return bytes(changed[: draw(st.integers(0, len(changed)))] if draw(st.integers(0, 9)) == 0 else changed)


def _change_weights(draw: st.DrawFn, content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    own = json.loads(table["__metadata__"]["mm3d"])
    table["__metadata__"]["mm3d"] = json.dumps(_change_value(draw, own))
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def _change_value(draw: st.DrawFn, content: Any) -> Any:
    """Replace a value anywhere in a table, remove it, or add one."""
    place, parent = content, None
    key: Any = None
    while isinstance(place, dict | list) and place and (parent is None or draw(st.integers(0, 4))):
        parent = place
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place = place[key]
    value = draw(ANYTHING)
    if parent is None:
        return value
    if isinstance(parent, dict) and draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            del parent[key]
        else:
            parent[draw(st.text(max_size=5))] = value
    else:
        parent[key] = value
    return content


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.integers(10**5, 10**400)
    | st.sampled_from(["L", "lcc", "DBT", "volume", "resnet", -1, 0, 10**6, 1e308, "\x1b[2J", "=1+1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
