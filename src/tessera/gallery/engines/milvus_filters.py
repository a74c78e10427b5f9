"""`--where` as an expression of Milvus: what SQLite says of a value is written down beside it, so that both agree.

SQLite compares metadata as numbers, dates or texts, whichever fit (`catalog.filters`). Milvus has no such functions, so
each value is stored in its forms: `text`, `number` where it spells one, `date` where it is one, `truth` for JSON's
true and false. A few keys have fields of their own; the rest lie in one JSON field, with every form, empty where a
value has none: servers differ in what the opposite of a missing value is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tessera.gallery.catalog.filters import AnyCondition, Condition, Near, number, spells_date
from tessera.gallery.catalog.records import Entry

METADATA = "metadata"
ALWAYS_TYPED = ("date", "width", "height", "bytes")
_MOST_NUMBER = 1e308
_NO_NUMBER = -1.7e308  # of a field; JSON just lacks it
_MARK = "="  # before every text of a field, so that "" is none


def typed_fields(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Names of the fields that these keys need, and whether each is a `text`, a `number` or a `date`, a text too."""
    return [(f"{form}_{i}", form) for i in range(len(keys)) for form in ("text", "number", "date")]


def encode_values(entry: Entry, keys: Sequence[str]) -> dict[str, Any]:
    """What the fields hold of an image's metadata."""
    row: dict[str, Any] = {}
    rest: dict[str, dict[str, Any]] = {}
    for i in range(len(keys)):
        row[f"text_{i}"], row[f"number_{i}"], row[f"date_{i}"] = "", _NO_NUMBER, ""
    places = {key: i for i, key in enumerate(keys)}
    for key, (text, value, kind) in entry.values.items():
        bounded = _NO_NUMBER if value is None else max(-_MOST_NUMBER, min(_MOST_NUMBER, float(value)))
        date = text.replace(" ", "T") if kind == "text" and spells_date(text) else ""
        truth = kind if kind in ("true", "false") else ""
        if key not in places:
            rest[key] = {"text": text, "number": bounded, "date": date, "truth": truth}
            continue
        i = places[key]
        row[f"text_{i}"], row[f"number_{i}"], row[f"date_{i}"] = _MARK + text, bounded, date
        if truth:
            rest[key] = {"truth": truth}
    row[METADATA] = rest
    return row


def to_expression(conditions: Iterable[AnyCondition], keys: Sequence[str]) -> str | None:
    """All conditions as one expression; None where it cannot say one of them: a place, a folder, a part of a text."""
    places = {key: i for i, key in enumerate(keys)}
    clauses = []
    for condition in conditions:
        clause = None if isinstance(condition, Near) else _clause(condition, places)
        if clause is None:
            return None
        clauses.append(f"({clause})")
    return " and ".join(clauses)


def _clause(condition: Condition, places: dict[str, int]) -> str | None:
    key, operator, value = condition.key, condition.operator, condition.value
    asked = number(value)
    if key == "folder" or operator == "~" or not _is_utf8(key + value):
        return None
    if asked is not None and abs(asked) > _MOST_NUMBER:
        return None
    dated = value.replace(" ", "T") if spells_date(value, alone=True) else None
    if operator in ("=", "!="):
        same = "==" if operator == "=" else "!="
        ways = [_text(key, places, same, value)]
        if asked is not None:
            ways.append(_number(key, places, same, asked))
        if dated is not None:
            like = f'{_date(key, places)} like "{dated}%"'
            ways.append(like if operator == "=" else f"not ({like})")
        if value in ("true", "false"):
            if key in places and operator == "!=":
                return None  # only those that are one have this form
            ways.append(f'{_form(key, "truth")} {same} "{value}"')
        return " or ".join(ways) if operator == "=" else " and ".join([_has(key, places), *ways])
    plain = _text(key, places, operator, value) if asked is None else _number(key, places, operator, asked)
    if dated is None:
        return plain
    date = _date(key, places)
    compared = {
        ">=": f'{date} >= "{dated}"',
        "<": f'({date} < "{dated}" and {date} > "")',
        "<=": f'(({date} < "{dated}" and {date} > "") or {date} like "{dated}%")',
        ">": f'({date} > "{dated}" and not ({date} like "{dated}%"))',
    }[operator]
    if asked is not None:
        return f"{compared} or {plain}"  # no date is a number
    return f'{compared} or (({plain}) and not ({date} > ""))'


def _has(key: str, places: dict[str, int]) -> str:
    return f'text_{places[key]} >= "{_MARK}"' if key in places else f'{_form(key, "text")} >= ""'


def _text(key: str, places: dict[str, int], operator: str, value: str) -> str:
    if key not in places:
        return f"{_form(key, 'text')} {operator} {_quoted(value)}"
    field = f"text_{places[key]}"
    compared = f"{field} {operator} {_quoted(_MARK + value)}"
    return f'({compared} and {field} >= "{_MARK}")' if operator in ("<", "<=") else compared


def _number(key: str, places: dict[str, int], operator: str, value: float) -> str:
    field = f"number_{places[key]}" if key in places else _form(key, "number")
    compared = f"{field} {operator} {value!r}"
    return f"({compared} and {field} >= {-_MOST_NUMBER!r})" if operator in ("<", "<=") else compared


def _date(key: str, places: dict[str, int]) -> str:
    return f"date_{places[key]}" if key in places else _form(key, "date")


def _form(key: str, form: str) -> str:
    return f'{METADATA}[{_quoted(key)}]["{form}"]'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
