"""Hits and groups as a strip of pictures in HTML: for a notebook, or a page of their own."""

from __future__ import annotations

import base64
import html
import io
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tessera.data.images import load_photo
from tessera.errors import ImageError, printable
from tessera.storage import write_atomically

if TYPE_CHECKING:
    from tessera.gallery.results import SearchResult

_TILE = 192


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
    """A strip of pictures with rank, score and name, below what the search has to say."""
    said = "".join(f"<p>{html.escape(printable(note))}</p>" for note in result.notes)
    tiles = []
    for hit in result:
        inliers = "" if hit.inliers is None else f", {hit.inliers} inliers"
        tiles.append((hit.path, f"{hit.rank + 1}. {hit.score:.3f}{inliers}"))
    return said + strip_html(tiles)


def strip_html(tiles: Iterable[tuple[str, str]]) -> str:
    """Pictures side by side, each with a word and its name. tiles: path and word."""
    figures = [
        f'<figure style="margin:0;max-width:{_TILE}px" title="{html.escape(printable(path))}">{picture_tag(path)}'
        f'<figcaption style="font-size:12px;overflow-wrap:anywhere">{html.escape(word)}<br>'
        f"{html.escape(printable(Path(path).name))}</figcaption></figure>"
        for path, word in tiles
    ]
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(figures) or "<em>nothing found</em>"}</div>'


def picture_tag(picture: Any) -> str:
    """An `<img>` with the pixels inside; a grey tile for a picture that cannot be read."""
    file = io.BytesIO()
    try:
        source = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        tile = Image.fromarray(load_photo(source, size=_TILE))
    except ImageError:
        tile = Image.new("RGB", (_TILE, _TILE), "lightgrey")
    tile.save(file, "JPEG", quality=80)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'
