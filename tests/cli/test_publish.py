"""`mm3d publish`: others judge weights by their card, and load them by their name."""

import json
from pathlib import Path

import pytest
from support.exams import write_weights

import mm3d
from mm3d.cli import main
from mm3d.model.weights import find


def publish(*arguments: object) -> int:
    return main(["publish", *map(str, arguments)])


def test_a_folder_for_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert publish("dbt", "-o", out, "--licence", "apache-2.0", "--title", "Tiny volumes") == 0
    assert "licence" not in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert (out / "model.safetensors").read_bytes() == find("dbt").read_bytes()
    assert json.loads((out / "config.json").read_text())["mm3d"]["fusion"] == "weighted"
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: mm3d\n")
    for said in (
        "\nlicense: apache-2.0\n---\n# Tiny volumes\n",
        "Not a medical device; not for clinical use.",
        "- breasts: 1400\n- of these malignant: 150\n- of these with boxes: 60\n",
        "- R@0.25: 0.63 ± 0.03 (standard error)\n",
        "- size of views: 192 x 96 pixels, 8 slices\n",
        "- These breasts are synthetic: nothing measured on them is a clinical result.\n",
    ):
        assert said in card
    assert mm3d.load(out).method.weights == "out/model"
    figures = (tmp_path / "mammo", "--licence", "apache-2.0")
    assert publish("mammo", "-o", *figures) == 0
    films = "films of other patients, by the same training on four fifths of all"
    assert f"- R@0.25, {films}: 0.63 (0.53 to 0.72, 95%)" in (tmp_path / "mammo" / "README.md").read_text()


def test_nothing_is_replaced_or_left_unsaid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = write_weights(tmp_path / "mine" / "tiny.safetensors")
    assert publish(weights, "-o", tmp_path / "out") == 0  # a header that says little
    assert "note: The card names no licence" in capsys.readouterr().out
    assert "license" not in (tmp_path / "out" / "README.md").read_text()
    assert "The header of the file says nothing of it." in (tmp_path / "out" / "README.md").read_text()
    assert publish(weights, "-o", tmp_path / "out") == 1
    assert "out has a model.safetensors" in capsys.readouterr().err
    assert publish(weights, "-o", weights.parent) == 1
    assert "is the folder of the weights" in capsys.readouterr().err
    assert publish(weights, "-o", weights) == 1
    assert "is a file" in capsys.readouterr().err
