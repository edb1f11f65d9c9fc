"""Dataclasses to and from plain tables (JSON, TOML), with error messages that name the wrong setting.

A message grows on its way up: each level puts its part of the place in front, such as a key or a number in a list.
"""

import difflib
import functools
import json
import reprlib
import tomllib
import types
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mm3d.shared.errors import InputError

T = TypeVar("T")
DEEPEST = 50  # how deep tables and lists of any content may be nested

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = _shortener.maxlong = 60


def parse_json(text: str) -> Any:
    """`json.loads` of a text that nobody vouches for: one that is nested without end is a ValueError, too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_toml(text: str) -> dict[str, Any]:
    """`tomllib.loads`, likewise."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than anything that mm3d writes, so that functions cannot follow it."""
    level = [value]
    for _ in range(DEEPEST):
        items = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [inner for item in items for inner in item]
        if not level:
            return False
    return True


def show(value: Any) -> str:
    """A wrong value for a message: shortened, because a file may have one of any length."""
    return _shortener.repr(value)


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """Build a dataclass from a table. `where` is what error messages call the table: a file, or a section of one."""
    try:
        return _convert(cls, data)
    except InputError as error:
        raise InputError(f"{where}{error}") from error


def to_dict(config: Any) -> dict[str, Any]:
    """Turn a dataclass into a table that JSON and TOML can hold."""
    return asdict(config, dict_factory=lambda pairs: {key: _plain(value) for key, value in pairs})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def check(config: Any) -> None:
    """Check the types of a dataclass that was made directly, for its `__post_init__`."""
    cls: Any = type(config)
    for name, hint in _hints(cls).items():
        try:
            _convert(hint, getattr(config, name))
        except InputError as error:
            raise InputError(f"{cls.__name__}: '{name}'{error}") from error


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)  # slow, and a file may hold 20,000 objects of one class


def _convert(hint: Any, value: Any) -> Any:
    """Check a value against the type of its field; lists become tuples, integers floats, tables dataclasses."""
    if hint is Any:
        if is_deep(value):
            raise InputError(" is nested too deep.")
        return value
    if type(value) is hint:
        return value
    origin, args = _parts(hint)
    if origin in (Union, types.UnionType):  # X | None
        return None if value is None else _convert(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple:
        return _convert_list(args[0], value)
    if is_dataclass(hint):
        return _convert_table(hint, value)
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f" must be a table, not {show(value)}.")
        return {key: _convert(args[1], item) for key, item in value.items()}
    if origin is Literal:
        if value not in args:
            raise InputError(f" must be one of {', '.join(map(str, args))}, not {show(value)}.")
        return value
    if hint is Path:
        return value if isinstance(value, Path) else Path(_convert(str, value))
    if hint is float and type(value) is int and abs(value) < 2**1023:  # a larger one is no float
        return float(value)
    if not isinstance(value, hint) or isinstance(value, bool):
        raise InputError(f" must be of type {hint.__name__}, not {show(value)}.")
    return value


def _convert_list(hint: Any, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f" must be a list, not {show(value)}.")
    items: list[Any] = []
    try:
        for item in value:
            items.append(_convert(hint, item))
    except InputError as error:
        raise InputError(f"[{len(items)}]{error}") from error
    return tuple(items)


def _convert_table(cls: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise InputError(f" must be a table of settings, not {data!r}.")
    hints, values = _hints(cls), {}
    for key, value in data.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"known settings: {', '.join(hints)}."
            raise InputError(f": unknown setting '{key}'; {advice}")
        try:
            values[key] = _convert(hints[key], value)
        except InputError as error:
            raise InputError(f": '{key}'{error}") from error
    for field in fields(cls):
        if field.name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f": the setting '{field.name}' is missing; add it.")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f": {error}") from error
