"""The short part of `make attack`: the same attacks with another number of files. docs/reliability.md says what is
promised; a fault is a promise that is broken."""

from collections.abc import Callable
from pathlib import Path

import pytest
from attack import canaries, exams, fuzz, kills, reading
from attack.tally import Tally

Attack = Callable[[int, int, Path], Tally]
SHORT: dict[str, tuple[Attack, int]] = {
    "reading": (reading.attack, 120),
    "exams": (exams.attack, 6),
    "canaries": (canaries.attack, 1),
    "fuzz": (fuzz.attack, 400),
}


@pytest.mark.parametrize("name", SHORT)
def test_no_promise_is_broken(tmp_path: Path, name: str) -> None:
    attack, count = SHORT[name]
    tally = attack(count, 7, tmp_path)
    assert tally.counts
    assert not tally.faults, "\n".join(tally.faults)


def test_a_killed_prediction_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    """The other commands are killed in the tests of their rooms."""
    tally = Tally()
    command = next(one for one in kills.make_commands(tmp_path / "given") if one.name == "predict")
    kills.attack_command(command, tmp_path, 4, 7, tally)
    assert tally.counts["predict: identical afterwards"] == 2, tally
    assert not tally.faults, "\n".join(tally.faults)
