"""Cells of a CSV that a spreadsheet may open.

A text that begins as a formula does would be run there: a camera's name or a file's can be `=HYPERLINK(...)`. It gets
an apostrophe before it, which a spreadsheet does not show and `tessera index` takes away again.
"""

from __future__ import annotations

from typing import Any

_FORMULA_STARTS = frozenset("=+-@\t\r")


def guard_cell(value: Any) -> Any:
    """The value of a cell as it is written; numbers, also those that are texts, stay as they are."""
    if not isinstance(value, str) or value.lstrip("'")[:1] not in _FORMULA_STARTS or _is_number(value):
        return value
    return f"'{value}"


def unguard_cell(text: str) -> str:
    """The text that `guard_cell` was given."""
    return text[1:] if text.startswith("'") and guard_cell(text[1:]) == text else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
