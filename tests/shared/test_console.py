"""What a file says must not be able to change what a terminal shows."""

import io
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from support.examples import build

from mm3d.cli import main
from mm3d.model import weights
from mm3d.shared.console import Console, describe_time, say, show_progress
from mm3d.shared.printable import printable

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b1A\rnothing \u202ewrong\u2028[red]found[/red] :smile: \udce9\nproblem: none"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x9b1A\rnothing \u202ewrong\u2028[red]found[/red] :smile: \udce9 problem: none"


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable(SHOWN) == SHOWN
    assert printable("Größe 3 × 4 – 乳房\u00a0µm") == "Größe 3 × 4 – 乳房\u00a0µm"


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_tables_and_bars_are_clean(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, width=300, force_terminal=terminal, color_system=None)
    say(console, HOSTILE)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)
    with show_progress(console, "reading", 1) as advance:
        advance()
    console.print(Text(HOSTILE))
    said = out.getvalue()
    assert said.startswith(f"{SHOWN}\n")
    assert said.count(SHOWN) == 4
    for sequence in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\u2028", "\udce9"):
        assert sequence not in said
    assert terminal or "\x1b" not in said


def test_a_cell_that_does_not_fit_keeps_its_lines() -> None:
    out = io.StringIO()
    table = Table("a")
    table.add_row("one two three four five")
    Console(file=out, width=12).print(table)
    assert "one two" in out.getvalue()
    assert len(out.getvalue().splitlines()) > 5


def test_texts_in_weights_reach_the_terminal_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(build(), path, {"input": HOSTILE.replace("\udce9", "")}, HOSTILE.replace("\udce9", ""))
    assert main(["info", str(path)]) == 0
    assert main(["info", str(tmp_path / "\x1b[2J.safetensors")]) == 1
    said = capsys.readouterr()
    assert r"nothing \u202ewrong" in said.out
    assert r"\x1b[2J.safetensors" in said.err
    assert "\x1b" not in said.out + said.err


def test_progress_in_a_file_is_lines_and_not_a_bar() -> None:
    """A bar shared its line with whatever else was printed, and a log of 1,000 exams needs no 1,000 lines."""
    for total, lines in ((1, 1), (4, 4), (1000, 10)):
        out = io.StringIO()
        console = Console(file=out, width=60)
        with show_progress(console, "reading", total) as advance:
            for _ in range(total):
                advance()
        said = out.getvalue().splitlines()
        assert len(said) == lines
        assert said[-1] == f"reading: {total} of {total}"
        assert all(line.startswith("reading: ") and "left" in line for line in said[:-1])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "1 second"),
        (1.4, "1 second"),
        (80, "80 seconds"),
        (100, "2 minutes"),
        (5000, "83 minutes"),
        (9000, "2 hours"),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert describe_time(seconds) == said


def test_a_pipe_stays_a_pipe_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter sets FORCE_COLOR for the commands of its cells, and a bar would fill the notebook."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not Console(file=io.StringIO()).is_terminal
