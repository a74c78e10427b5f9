"""A page to look through duplicates or groups: one file, pictures inside it, no service needed."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tessera.data.images import load_photo
from tessera.errors import ImageError, printable
from tessera.gallery.organise.duplicates import CopyGroup
from tessera.storage import write_atomically

_SIDE = 200
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2rem;color-scheme:light dark}"
    "section{border-top:1px solid #8884;padding:1rem 0;display:flex;flex-wrap:wrap;gap:1rem}"
    "figure{margin:0;max-width:220px}figcaption{font-size:13px;overflow-wrap:anywhere}"
    "img{max-width:200px;max-height:200px}.keep img{outline:3px solid #2a7}"
)


def thumbnail(path: str, side: int = _SIDE) -> str:
    """A picture as an `<img>` with its pixels inside; a word where it cannot be read."""
    try:
        image = Image.fromarray(load_photo(path, size=side))
    except ImageError:
        return "<em>not readable</em>"
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'


def figure(path: str, caption: str, kind: str = "") -> str:
    return (
        f'<figure class="{kind}">{thumbnail(path)}<figcaption>{html.escape(caption)}<br>'
        f"{html.escape(printable(path))}</figcaption></figure>"
    )


def write_review(groups: Sequence[CopyGroup], output: Path) -> None:
    """Write a page with each group: what to keep, in green, why, and the copies."""
    sections = []
    for group in groups:
        parts = [figure(group.keep.path, f"keep: {group.reason} ({group.keep.width} x {group.keep.height})", "keep")]
        for copy in group.copies:
            kind = "exact copy" if copy.exact else f"near copy, {copy.agreement:.2f}"
            parts.append(figure(copy.record.path, f"{kind} ({copy.record.width} x {copy.record.height})"))
        sections.append(f"<section>{''.join(parts)}</section>")
    count = sum(len(group.copies) for group in groups)
    page = (
        f'<!doctype html><meta charset="utf-8"><title>Duplicates</title><style>{_STYLE}</style>'
        f"<h1>{count} copies in {len(groups)} groups</h1>{''.join(sections)}"
    )
    write_atomically(output, page.encode("utf-8"))
