"""Conditions on metadata: `label=tower`, `year>=1990`; several must all hold.

A picture without the key meets no condition on it, `!=` included. Metadata from a CSV is text, so values compare as
numbers where both sides are numbers (`year>=1990` finds "2004"), else as text, which orders dates as written by ISO.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.errors import UsageError

Where = str | Iterable[str] | Mapping[str, Any]

_CONDITION = re.compile(r"(?P<key>[^<>=!]+?)\s*(?P<operator>>=|<=|!=|==|=|>|<)\s*(?P<value>.*)", re.DOTALL)
_OPERATORS = ("=", "!=", ">=", "<=", ">", "<")


@dataclass(frozen=True)
class Condition:
    key: str
    operator: str
    value: str


def parse_where(where: Where | None) -> tuple[Condition, ...]:
    """Conditions from `"year>=1990"`, from several such, or from a mapping of keys to the values they must equal."""
    if where is None:
        return ()
    if isinstance(where, str):
        return (parse_condition(where),)
    if isinstance(where, Mapping):
        return tuple(_checked(Condition(str(key), "=", _text(value))) for key, value in where.items())
    return tuple(parse_condition(text) for text in where)


def parse_condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"The filter '{text}' has no comparison. Write KEY=VALUE, or with {', '.join(_OPERATORS[1:])}."
        )
    operator = "=" if match["operator"] == "==" else match["operator"]
    return _checked(Condition(match["key"].strip(), operator, match["value"].strip()))


def to_sql(conditions: Iterable[Condition]) -> tuple[str, list[Any]]:
    """A boolean SQL expression over the column `metadata`, and its parameters."""
    clauses, parameters = ["1"], []
    for condition in conditions:
        clause, values = _clause(condition)
        clauses.append(clause)
        parameters.extend(values)
    return " AND ".join(clauses), parameters


def number(value: Any) -> float | None:
    """The number that a metadata value spells, or None. Registered with SQLite as `tessera_number`."""
    if value is None or isinstance(value, bytes):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return None if math.isnan(found) else found


def _clause(condition: Condition) -> tuple[str, list[Any]]:
    found, kind = "json_extract(metadata, ?)", "json_type(metadata, ?)"
    path = f'$."{condition.key}"'
    as_number = number(condition.value)
    if condition.operator in ("=", "!="):
        # JSON's true is 1 to json_extract. Numbers are equal however they are spelt: 1990.0 finds "1990".
        equal = f"(CAST({found} AS TEXT) = ? OR {kind} = ?)"
        boolean = condition.value if condition.value in ("true", "false") else "none"
        values: list[Any] = [path, condition.value, path, boolean]
        if as_number is not None:
            equal = f"({equal} OR tessera_number({found}) IS ?)"
            values += [path, as_number]
        if condition.operator == "=":
            return equal, values
        return f"({kind} IS NOT NULL AND NOT {equal})", [path, *values]
    if as_number is not None:
        return f"tessera_number({found}) {condition.operator} ?", [path, as_number]
    return f"CAST({found} AS TEXT) {condition.operator} ?", [path, condition.value]


def _checked(condition: Condition) -> Condition:
    if not condition.key or any(character in '"\\' or not character.isprintable() for character in condition.key):
        raise UsageError(
            f"'{condition.key}' cannot be the key of a filter: a quote or a backslash is in it, or nothing."
        )
    return condition


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
