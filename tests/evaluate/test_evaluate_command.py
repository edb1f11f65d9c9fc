"""`mm3d evaluate` from files to files, and what it refuses: a wrong row is named, not counted."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.counted_cohort import ROWS, recall, system, write_rows
from support.csv_files import append, rows_of

from mm3d.cli import main
from mm3d.evaluate.match import EvaluateSettings
from mm3d.shared.errors import InputError


def test_the_command_writes_figures_lists_and_pictures(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = write_rows(tmp_path / "mine.csv")
    other = write_rows(tmp_path / "theirs.csv", ROWS[:3])
    out = tmp_path / "deep" / "evaluation"
    arguments = ["--truth", str(cohort), "-o", str(out), "--replicates", "50", "--by", "density", "--at", "0.125"]
    assert main(["evaluate", str(file), str(other), *arguments]) == 0
    names = {"froc", "roc", "reliability"}
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == {"metrics.json", "per-finding.csv", "per-volume.csv", *pictures}
    for name in names:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    assert "mine" in (out / "froc.svg").read_text()
    found = json.loads((out / "metrics.json").read_text())
    assert found["settings"]["rates"] == [0.125]
    assert found["systems"][0]["recall"]["2D"]["finding"][0]["recall"] == pytest.approx(2 / 3)
    printed = capsys.readouterr().out
    for words in ("R@0.125 of findings, 3D", "AUC of breasts", "0.667", "Differences", "By density", "note: "):
        assert words in printed
    # Scores that are no probabilities have no reliability, and must not keep that of others.
    logits = write_rows(tmp_path / "logits.csv", [(*row[:4], 9 * row[4] - 5) for row in ROWS])
    assert main(["evaluate", str(logits), *arguments]) == 0
    assert not list(out.glob("reliability*"))
    assert main(["evaluate", str(file), str(other), *arguments]) == 0
    # The same again gives the same, to the byte.
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert main(["evaluate", str(file), str(other), *arguments]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_no_table_is_cut_in_a_narrow_terminal(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems that do not fit beside each other are in tables below each other."""
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"a-system-with-quite-a-long-name-{n}" for n in range(3)]
    files = [str(write_rows(tmp_path / f"{name}.csv")) for name in names]
    arguments = ["--truth", str(cohort), "-o", str(tmp_path / "out"), "--replicates", "20", "--by", "density"]
    assert main(["evaluate", *files, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "\\" not in printed
    lines = [line for line in printed.splitlines() if line.startswith("│ R@0.5 of findings, 2D")]
    assert len(lines) == 3
    assert all(re.search(r"[0-9.]+ \[[0-9.]+, [0-9.]+\]", line) for line in lines)
    assert max(map(len, printed.split("note: ")[0].splitlines())) <= 80


def test_the_lists_say_what_was_found_and_missed(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "evaluation"
    rows = [*ROWS, ("P4", "rcc", 510, 28, 0.6), ("P4", "rcc", 0, 28, 0.7)]
    file = write_rows(tmp_path / "p.csv", rows)
    assert main(["evaluate", str(file), "--truth", str(cohort), "-o", str(out), "--replicates", "20"]) == 0
    found = {(row["PatientID"], row["View"]): row for row in rows_of(out / "per-finding.csv")}
    assert len(found) == 4
    columns = ("malignant", "hit_2d", "hit_3d", "score", "rank", "proposal_slice", "slice_error")
    assert {key: tuple(row[column] for column in columns) for key, row in found.items()} == {
        ("P1", "lcc"): ("1", "1", "1", "0.9", "1", "20", "0"),
        ("P1", "lmlo"): ("1", "1", "0", "0.7", "1", "35", "15"),
        ("P2", "lcc"): ("0", "1", "1", "0.85", "1", "10", "0"),
        ("P4", "rcc"): ("1", "1", "1", "0.6", "2", "28", "2"),
    }
    volumes = {(row["PatientID"], row["View"]): row for row in rows_of(out / "per-volume.csv")}
    assert len(volumes) == 10
    assert (volumes["P3", "rcc"]["annotated"], volumes["P3", "rcc"]["in_froc"]) == ("0", "0")
    assert volumes["P1", "rcc"]["image_score"] == ""
    p4 = volumes["P4", "rcc"]
    assert (p4["malignant_findings_hit_3d"], p4["proposals"], p4["highest_false_positive_2d"]) == ("1", "3", "0.7")


def test_nothing_of_torch_is_needed(cohort: Path, tmp_path: Path) -> None:
    """A hospital that measures somebody else's detector waits for no model to be imported."""
    file = write_rows(tmp_path / "p.csv")
    program = (
        "import sys; from mm3d.cli import main\n"
        f"assert main(['evaluate', {str(file)!r}, '--truth', {str(cohort)!r}, '-o', {str(tmp_path / 'out')!r}]) == 0\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Bad input


def test_bad_input_is_one_sentence_and_exit_code_1(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_rows(tmp_path / "p.csv", [("P1", "lcc", 0, 20, float("nan"))])
    assert main(["evaluate", str(file), "--truth", str(cohort), "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error == f"mm3d: {file}, row 2: Score 'nan' is not a number; mend or remove the row.\n"
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").touch()
    assert main(["evaluate", str(file), "--truth", str(cohort), "-o", str(tmp_path / "out")]) == 1
    assert "is a file; give a folder with -o" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("P9,SP9,lcc", "the volume P9 SP9 lcc is not in cohort"),
        ("P1,SP1,rmlo", "the volume P1 SP1 rmlo is not in cohort"),
        ("P2,SP1,lcc", "study SP1 is of patient P1 in cohort, not of P2"),
    ],
)
def test_a_volume_that_the_cohort_lacks_is_named_by_row(cohort: Path, tmp_path: Path, row: str, reason: str) -> None:
    file = write_rows(tmp_path / "p.csv")
    append(file, f"{row},0,9,0,9,1,0,0.5")
    with pytest.raises(InputError) as caught:
        system(cohort, file)
    assert f"{file}, row 10: {reason}" in str(caught.value)
    skipped = system(cohort, file, skip_unknown=True)
    assert any("1 predicted volumes are not in the cohort" in note for note in skipped["notes"])
    assert skipped["recall"] == system(cohort, write_rows(tmp_path / "q.csv"))["recall"]


def test_a_repeat_is_its_own_volume_or_the_only_one_there_is(cohort: Path, tmp_path: Path) -> None:
    alone = write_rows(tmp_path / "p.csv", [("P1", "lcc2", 0, 20, 0.9)])
    assert recall(system(cohort, alone)) == pytest.approx([1 / 3, 1 / 3])
    two = write_rows(tmp_path / "p.csv", [("P1", "lcc", 0, 20, 0.9), ("P1", "lcc2", 0, 20, 0.9)])
    with pytest.raises(InputError, match=r"row 3: P1 SP1 lcc2 and a repeat of it are one volume"):
        system(cohort, two)


def test_predictions_that_meet_nothing_of_the_cohort_are_refused(cohort: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "p.csv", [row for row in ROWS if row[0] != "P5"])
    with pytest.raises(InputError, match="p has no prediction for a volume of cohort that is DBT and in split test"):
        system(cohort, train, split="test")


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": (-1.0,)},
        {"rates": (float("nan"),)},
        {"iou": 0.0},
        {"iou": 25.0},
        {"slice_tolerance": -1.0},
        {"specificities": (90.0,)},
        {"replicates": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    (setting,) = changes
    option = {"rates": "at", "slice_tolerance": "slice-tolerance", "specificities": "specificity"}.get(setting, setting)
    with pytest.raises(InputError, match=f"^--{option} "):
        EvaluateSettings(**changes)
