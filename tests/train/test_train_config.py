"""A training uses the settings that the user wrote, and a wrong setting is reported before anything is trained."""

import os
import warnings
from pathlib import Path

import pytest
from support.examples import build

from mm3d.cli import main
from mm3d.model.config import BACKBONES, PRESETS
from mm3d.shared.errors import InputError
from mm3d.train.config import CONFIGS, OptimiserConfig, read_config
from mm3d.train.run import learning_rate, make_fabric
from mm3d.train.state import make_optimiser

TEXT = """
[model]
preset = "mini"
backbone = "resnet18"
heads = 2

[[data.train]]
folder = "prepared"
input = "ffdm"

[optimiser]
learning_rate = 1e-3
"""


def write(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def test_the_command_line_goes_over_the_file(tmp_path: Path) -> None:
    config = read_config(
        write(tmp_path),
        [
            "--loop.steps",
            "7",
            "--optimiser.learning_rate=1e-5",
            "--data.train.0.folder",
            "other/place",
            "--model.fusion",
            "max",
        ],
    )
    assert config.loop.steps == 7
    assert config.optimiser.learning_rate == 1e-5
    assert config.data.train[0].folder == Path("other/place")
    assert config.model.fusion == "max"
    assert config.model.heads == 2
    assert config.model.backbone == BACKBONES["resnet18"]
    assert config.model.proposals == PRESETS["mini"].proposals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--loop.step", "7"], "unknown setting 'step'; did you mean 'steps'"),
        (["--optimizer.learning_rate", "1"], "unknown setting 'optimizer'; did you mean 'optimiser'"),
        (["--data.train.1.folder", "x"], "data.train is a list of 1; count them from 0"),
        (["--loop.steps", "many"], "'steps' must be of type int, not 'many'"),
        (["--loop.steps", "0"], "steps = 0 must be at least 1"),
        (["--loop.steps"], "--loop.steps has no value"),
        (["loop.steps", "3"], "'loop.steps' is not a setting; write --section.key value"),
        (["--model.preset", "huge"], "preset must be one of tiny, mini, paper"),
        (["--model.backbone", "vgg"], "backbone must be one of small"),
        (["--augment.rotate", "720"], "rotate = 720.0 must be from 0 to 180"),
        (["--start", "x.safetensors"], "x.safetensors does not exist"),
        (["--data.train.0.input", "ct"], "'input' must be one of volume, slices, mip, hm, msp, ffdm"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_config(write(tmp_path), settings)
    assert message in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.toml does not exist; give a configuration, or one of .* ffdm.toml"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="is not TOML"):
        read_config(write(tmp_path, "[model"))
    with pytest.raises(InputError, match=r"data.train has no cohort"):
        read_config(write(tmp_path, "[data]\ntrain = []"))
    with pytest.raises(InputError, match="the setting 'data' is missing"):
        read_config(write(tmp_path, ""))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_the_configurations_that_come_along_are_right(path: Path) -> None:
    # Start weights are a run of the user's, or a download, and the model is theirs.
    start = {
        "dbt": ["--model.preset", "mini"],
        "real-ffdm": ["--start", "dense"],
        "real-ffdm-large": ["--start", "mammo"],
    }
    own = start.get(path.stem, [])
    config = read_config(Path(path.name), own)  # by its bare name, as users give it
    expected = PRESETS["paper"] if path.stem.endswith("-paper") else PRESETS["mini"]
    assert config.model.proposals == (
        144 if path.stem in ("real-ffdm", "real-ffdm-large", "bcs-dbt") else expected.proposals
    )
    if path.stem.endswith("-paper"):
        assert (config.optimiser.learning_rate, config.optimiser.weight_decay) == (2.5e-5, 1e-4)
        assert (config.augment.horizontal_flip, config.augment.vertical_flip) == (0.5, 0.5)


def test_a_training_does_not_speak_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where srun is installed, Lightning told everybody at every start to use it."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = read_config(write(tmp_path))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        make_fabric(config).launch()
    assert [str(one.message) for one in heard] == []


def test_a_model_that_nobody_chose_is_not_trained() -> None:
    """It would be the model of the paper, trained for days from random weights."""
    with pytest.raises(InputError, match=r"dbt.toml has no \[model\], and there are no start weights .* give --start"):
        read_config(Path("dbt.toml"))


def test_unknown_options_of_other_commands_are_still_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["info", "--model.preset=mini"])
    assert raised.value.code == 2
    assert "unrecognized arguments: --model.preset=mini" in capsys.readouterr().err


def test_the_learning_rate_over_the_steps() -> None:
    cosine = OptimiserConfig(learning_rate=1.0, schedule="cosine", warmup=10, final=0.1)
    rates = [learning_rate(step, 110, cosine) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1, abs=0.001)
    falling = OptimiserConfig(learning_rate=1.0, schedule="step")
    assert [learning_rate(step, 90, falling) for step in (0, 59, 60, 79, 80, 89)] == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    assert learning_rate(5, 10, OptimiserConfig(learning_rate=0.3)) == 0.3
    model = build()
    optimiser = make_optimiser(model, OptimiserConfig(backbone_factor=0.25, body_factor=0.5))
    factors = {id(parameter): group["factor"] for group in optimiser.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        expected = 0.125 if name.startswith("backbone.body.") else 0.25 if name.startswith("backbone.") else 1.0
        assert factors[id(parameter)] == expected, name
