"""Dataclasses to and from plain dictionaries (JSON, TOML), with errors that say which key is wrong."""

import difflib
import functools
import types
from collections.abc import Container
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mm3d.shared.errors import InputError

T = TypeVar("T")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)  # slow, and a file of predictions has ten thousands of one class


def to_dict(config: Any) -> dict[str, Any]:
    """The dataclass as a dictionary that JSON and TOML can hold."""
    return asdict(config, dict_factory=lambda pairs: {key: _plain(value) for key, value in pairs})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """Build `cls` from `data`; `where` names the place (a file, a section) in the error messages."""
    if not isinstance(data, dict):
        raise InputError(f"{where} must be a table of settings, not {data!r}.")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known settings: {', '.join(known)}."
            raise InputError(f"{where}: unknown setting '{key}'; {hint}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{where}: the setting '{name}' is missing; add it.")
    hints = _hints(cls)  # type: ignore[arg-type]  # mypy does not know that classes have a hash
    values = {key: _convert(hints[key], value, f"{where}: '{key}'") for key, value in data.items()}
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def difference(there: Any, now: Any, free: Container[str] = (), where: str = "") -> str:
    """The first setting in which two tables differ, such as "loop.steps = 2, not 3"; empty if they do not. Settings in
    `free` may differ."""
    if _nested(there) and type(there) is type(now):
        there, now = (dict(enumerate(table)) if isinstance(table, list) else table for table in (there, now))
        for name in sorted({*there, *now}):
            if found := difference(there.get(name), now.get(name), free, f"{where}.{name}".lstrip(".")):
                return found
        return ""
    return "" if there == now or where in free else f"{where} = {there}, not {now}"


def _nested(value: Any) -> bool:
    """Whether settings have names of their own: a table, or a list of tables."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def check(config: Any) -> None:
    """Check a dataclass that was made directly, as `from_dict` checks a table. For `__post_init__`."""
    hints = _hints(type(config))  # type: ignore[arg-type]
    for field in fields(config):
        value = getattr(config, field.name)
        if not is_dataclass(value):
            _convert(hints[field.name], value, f"{type(config).__name__}: '{field.name}'")


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Check `value` against a field's type; lists become tuples, integers become floats, tables dataclasses."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        return from_dict(hint, value, where)  # type: ignore[arg-type]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(arg for arg in args if arg is not type(None)), value, where)
    if origin is Literal:
        if value not in args:
            raise InputError(f"{where} must be one of {', '.join(map(str, args))}, not {value!r}.")
        return value
    if hint is Path:
        return value if isinstance(value, Path) else Path(_convert(str, value, where))
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be a table, not {value!r}.")
        return {key: _convert(args[1], item, where) for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{where} must be a list, not {value!r}.")
        return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where} must be of type {hint.__name__}, not {value!r}.")
    return value
