"""Queries and their hits as one picture, or as a page: for an e-mail, a notebook, a quick look."""

from __future__ import annotations

import base64
import html
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from tessera.data.images import load_photo
from tessera.errors import ImageError, UsageError, printable
from tessera.storage import atomic_path, write_atomically

if TYPE_CHECKING:
    from tessera.gallery.results import SearchResult

_TILE, _GAP = 192, 8
_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
_MOST_ROWS = 200


def draw_sheet(rows: Sequence[tuple[Any, Sequence[str]]], output: Path) -> None:
    """A row for each query: the query in a frame, then its hits. A picture that cannot be read is a grey tile."""
    form = _FORMATS.get(output.suffix.lower())
    if form is None:
        raise UsageError(f"{output} is no picture's name: use one of {', '.join(_FORMATS)}.")
    rows = rows[:_MOST_ROWS]
    columns = 1 + max((len(hits) for _, hits in rows), default=0)
    pitch = _TILE + _GAP
    sheet = Image.new("RGB", (columns * pitch + 2 * _GAP, max(1, len(rows)) * pitch + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for y, (query, hits) in enumerate(rows):
        for x, picture in enumerate((query, *hits)):
            left, top = _GAP + x * pitch + (_GAP if x else 0), _GAP + y * pitch
            tile = _tile(picture)
            sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
            if x == 0:
                draw.rectangle((left - 3, top - 3, left + _TILE + 2, top + _TILE + 2), outline="#2a7", width=3)
    with atomic_path(output) as temporary:
        sheet.save(temporary, form)


def write_page(answers: Sequence[tuple[str, Any, SearchResult]]) -> Path:
    """A page with every query and its hits in a temporary file."""
    with tempfile.NamedTemporaryFile("wb", prefix="tessera-", suffix=".html", delete=False) as file:
        path = Path(file.name)
    parts = [
        f"<h2>{html.escape(printable(name))}</h2><p>{picture_tag(query)}</p>{hits_html(result)}"
        for name, query, result in answers
    ]
    style = "body{font:15px system-ui,sans-serif;margin:2rem;color-scheme:light dark}"
    page = f'<!doctype html><meta charset="utf-8"><title>Tessera</title><style>{style}</style>{"".join(parts)}'
    write_atomically(path, page.encode("utf-8"))
    return path


def hits_html(result: SearchResult) -> str:
    """A strip of pictures with rank, score and name."""
    figures = []
    for hit in result:
        inliers = "" if hit.inliers is None else f", {hit.inliers} inliers"
        caption = f"{hit.rank + 1}. {hit.score:.3f}{inliers}<br>{html.escape(printable(Path(hit.path).name))}"
        figures.append(
            f'<figure style="margin:0;max-width:{_TILE}px" title="{html.escape(printable(hit.path))}">'
            f'{picture_tag(hit.path)}<figcaption style="font-size:12px;overflow-wrap:anywhere">{caption}</figcaption>'
            "</figure>"
        )
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(figures) or "<em>nothing found</em>"}</div>'


def picture_tag(picture: Any) -> str:
    """An `<img>` with the pixels inside."""
    file = io.BytesIO()
    _tile(picture).save(file, "JPEG", quality=80)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _tile(picture: Any) -> Image.Image:
    try:
        source = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        return Image.fromarray(load_photo(source, size=_TILE))
    except ImageError:
        return Image.new("RGB", (_TILE, _TILE), "lightgrey")
