"""Metadata as the catalogue keeps it: JSON that SQLite can read, of bounded length."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tessera.errors import UsageError, printable
from tessera.storage import parse_json

MAX_METADATA_BYTES = 16384  # a page of the catalogue; every page of a browser shows a hundred of them


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Equal mappings give equal text, and filters find keys as they are written.

    Numbers that are none (NaN, infinity) are refused: no JSON has them, and one in one image would break every filter.
    """
    try:
        text = json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is one
        shown = printable(str(dict(metadata)))[:80]
        raise UsageError(
            f"The metadata {shown} cannot be stored: {error}. Give texts, finite numbers, true, false or lists of such."
        ) from error
    if size > MAX_METADATA_BYTES:
        raise UsageError(f"The metadata of one image takes {size:,} bytes; at most {MAX_METADATA_BYTES:,} are kept.")
    return text


def readable_metadata(stored: bytes) -> str:
    """What an older catalogue kept, without the numbers that are none; nothing where it cannot be read at all.

    Registered with SQLite as `tessera_metadata`.
    """
    try:
        found = parse_json(stored)
    except ValueError:
        return "{}"
    kept = {key: _finite(value) for key, value in found.items()} if isinstance(found, dict) else {}
    kept = {key: value for key, value in kept.items() if value is not None}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
