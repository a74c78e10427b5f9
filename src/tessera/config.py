"""Frozen dataclasses from plain mappings and back, with a fingerprint.

A configuration lives beside the class it configures; this module only reads and writes them. Unknown keys are
refused with the nearest known one, because a misspelt key that is dropped in silence costs a training run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tessera.errors import ConfigError, unknown_name

T = TypeVar("T")


def find_config(folder: str, name: str) -> Path:
    """The file that a user names: a path as it is, or the name of one in `folder`, here or packaged.

    folder: `recipes` or `systems`. `table1/c-token-r50`, `c-token-r50` and `recipes/table1/c-token-r50.toml` are the
    same packaged recipe.
    """
    given = Path(name)
    if given.is_file():
        return given
    kind = folder.removesuffix("s")
    wanted = Path(given.as_posix().removeprefix(f"{folder}/").removesuffix(".toml") + ".toml")
    roots = [Path(folder), Path(__file__).parent / folder]
    for root in roots:
        matches = sorted(path for path in root.rglob(wanted.name) if path.parts[-len(wanted.parts) :] == wanted.parts)
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ConfigError(f"{kind} '{name}' could be any of {', '.join(map(str, matches))}: give the path.")
    known = {path.relative_to(root).with_suffix("").as_posix() for root in roots for path in root.rglob("*.toml")}
    raise ConfigError(unknown_name(kind, name, known))


def from_mapping(cls: type[T], values: Mapping[str, Any], *, where: str = "") -> T:
    """Build the frozen dataclass `cls` from a mapping, nested dataclasses included.

    where: the dotted path that error messages give for a key.
    """
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise ConfigError(unknown_name("key", f"{where}{key}", (f"{where}{name}" for name in names)))
    built = {key: _coerce(hints[key], value, f"{where}{key}") for key, value in values.items()}
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in built
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where or cls.__name__ + ' '}needs {', '.join(missing)}: no value was given.")
    return cls(**built)


def to_mapping(config: Any) -> dict[str, Any]:
    """The plain mapping of a dataclass, fit for JSON."""
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    assert isinstance(plain, dict)
    return plain


def fingerprint(*parts: Any) -> str:
    """A short hash of dataclasses, mappings and plain values; equal content gives equal fingerprints."""
    plain = [to_mapping(part) if dataclasses.is_dataclass(part) else part for part in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _coerce(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        failures = []
        for argument in arguments:
            if argument is type(None):
                continue
            try:
                return _coerce(argument, value, where)
            except ConfigError as error:
                failures.append(str(error))
        raise ConfigError(failures[-1])
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(unknown_name(where, str(value), (str(argument) for argument in arguments)))
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if dataclasses.is_dataclass(value):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a table of keys, not {value!r}.")
        return from_mapping(hint, value, where=f"{where}.")
    if origin is tuple:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise ConfigError(f"{where} must be a list, not {value!r}.")
        items = list(value)
        kinds = [arguments[0]] * len(items) if len(arguments) == 2 and arguments[1] is Ellipsis else list(arguments)
        if len(kinds) != len(items):
            raise ConfigError(f"{where} must have {len(kinds)} values, not {len(items)}.")
        return tuple(
            _coerce(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a table of keys, not {value!r}.")
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint in (int, float) and isinstance(value, bool))):
        raise ConfigError(f"{where} must be of type {hint.__name__}, not {value!r}.")
    return value
