"""Configuration: a misspelt setting that is silently ignored costs its user a training."""

import json
from dataclasses import dataclass
from typing import Literal

import pytest

from mm3d.model.config import BACKBONES, PRESETS, BackboneConfig, ModelConfig
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class Inner:
    colour: Literal["red", "green"] = "red"


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.1
    steps: tuple[int, ...] = (1, 2)
    limit: int | None = None
    on: bool = False
    inner: Inner = Inner()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_survives_json(preset: str) -> None:
    config = PRESETS[preset]
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(config))), preset) == config


def test_values_take_the_type_of_their_field() -> None:
    made = from_dict(Outer, {"name": "a", "rate": 1, "steps": [3], "inner": {"colour": "green"}, "limit": 4}, "here")
    assert made == Outer("a", 1.0, (3,), 4, False, Inner("green"))
    assert from_dict(Outer, {"name": "a", "limit": None}, "here").limit is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "a", "ratio": 1}, "here: unknown setting 'ratio'; did you mean 'rate'?"),
        ({"name": "a", "zzz": 1}, "here: unknown setting 'zzz'; known settings: name, rate, steps, limit, on, inner."),
        ({}, "here: the setting 'name' is missing; add it."),
        ({"name": 3}, "here: 'name' must be of type str, not 3."),
        ({"name": "a", "rate": "fast"}, "here: 'rate' must be of type float, not 'fast'."),
        ({"name": "a", "limit": True}, "here: 'limit' must be of type int, not True."),
        ({"name": "a", "steps": 3}, "here: 'steps' must be a list, not 3."),
        ({"name": "a", "inner": {"colour": "blue"}}, "here: 'inner': 'colour' must be one of red, green, not 'blue'."),
        ({"name": "a", "inner": {"color": "red"}}, "here: 'inner': unknown setting 'color'; did you mean 'colour'?"),
        ([], "here must be a table of settings, not []."),
    ],
)
def test_every_mistake_is_named(data: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        from_dict(Outer, data, "here")
    assert str(error.value) == message


def test_a_misspelt_choice_is_refused_when_made_in_python_too() -> None:
    with pytest.raises(InputError, match="'fusion' must be one of weighted"):
        ModelConfig(fusion="wieghted")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'backbone'"):
        ModelConfig(backbone="resnet50")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"channels": 30, "attention_heads": 8}, "channels = 30 must be a multiple of attention_heads = 8"),
        ({"proposals": 0}, "proposals = 0 must be from 1 to"),
        ({"heads": -1}, "heads = -1 must be from 1 to"),
        ({"chunk": -1}, "chunk = -1 must be 0"),
        ({"backbone": {"widths": [1, 2]}}, "resnet needs 4 widths and 4 depths"),
        ({"backbone": {"widths": [30, 30, 30, 30], "norm": "group", "stem": 30}}, "must be multiples of 8"),
    ],
)
def test_models_that_cannot_be_built_are_refused_when_configured(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=f"^here: .*{said}"):
        from_dict(ModelConfig, changes, "here")


def test_every_field_says_what_it_is_for() -> None:
    """The sentences under the fields are the documentation; a field without one is a riddle."""
    import ast
    import inspect

    for cls in (ModelConfig, BackboneConfig):
        body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign):
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert documented, f"{cls.__name__}.{ast.unparse(statement.target)}"


def test_the_named_backbones_are_those_of_their_papers() -> None:
    assert BACKBONES["resnet50"].depths == (3, 4, 6, 3)
    assert BACKBONES["resnet101"].depths == (3, 4, 23, 3)
    assert BACKBONES["pvt_v2_b2_li"].widths == (64, 128, 320, 512)
