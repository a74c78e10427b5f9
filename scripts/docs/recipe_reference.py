"""The keys of a recipe, from the dataclasses that read it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from markup import code, page, prose, split_fields, table

from tessera.train.recipe import FREE_KEYS, Recipe

INTRODUCTION = """
A recipe is a TOML file; a key below stands in the table that its heading names, or is set by `--set table.key=value`.
What a recipe does not say comes from its `base`, and what no base says has the default below. A key that does not exist
is refused. Keys in italics change no number of a run: `--resume` takes other values for them.
"""


def make_page() -> str:
    hints = typing.get_type_hints(Recipe)
    sections = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    plain = [field for field in dataclasses.fields(Recipe) if field.name not in sections]
    parts = [_section("At the top", Recipe, plain, "")]
    parts += [_section(name, kind, dataclasses.fields(kind), f"{name}.") for name, kind in sections.items()]
    return page("Recipe keys", INTRODUCTION, parts)


def _section(title: str, kind: Any, fields: Sequence[dataclasses.Field[Any]], prefix: str) -> str:
    hints = typing.get_type_hints(kind)
    general, said = split_fields(prose(kind), [field.name for field in fields])
    rows = []
    for field in fields:
        free = f"{prefix}{field.name}" in FREE_KEYS or prefix.rstrip(".") in FREE_KEYS
        name = f"*{code(field.name)}*" if free else code(field.name)
        rows.append([name, _type(hints[field.name]), _default(field), said.get(field.name, "")])
    parts = [f"## {title}", general, table(("key", "type", "default", "what it is"), rows)]
    return "\n\n".join(part for part in parts if part)


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(code(value) for value in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"list of {_type(typing.get_args(hint)[0])}"
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "dict": "table of keys"}
    kind = typing.get_origin(hint) or hint
    return names.get(getattr(kind, "__name__", ""), str(hint))


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else None
    if value is None or value == "":
        return ""
    return code(str(value).lower() if isinstance(value, bool) else value)
