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
from tessera.gallery.catalog.records import Record
from tessera.gallery.organise.duplicates import CopyGroup
from tessera.storage import write_atomically

_SIDE = 280
_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
:root { --faint: light-dark(#5c5c62, #a9a9b0); --keep: light-dark(#0f62a8, #6cb2f2); }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin: 0 0 .6rem; }
h2 span, p, figcaption { color: var(--faint); font-weight: 400; }
section { border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem; margin: 1rem 0; }
section div { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; width: 13rem; } figcaption { font-size: .85rem; overflow-wrap: anywhere; }
figure a { display: block; border: 3px solid transparent; border-radius: 8px; overflow: hidden; line-height: 0; }
.keep a { border-color: var(--keep); } img { width: 100%; height: 9.5rem; object-fit: contain; background: #8882; }
b { color: light-dark(#1c1c1e, #ececee); } .keep b { color: var(--keep); }
"""


def thumbnail(path: str, side: int = _SIDE) -> str:
    """A picture as an `<img>` with its pixels inside; a word where it cannot be read."""
    try:
        image = Image.fromarray(load_photo(path, size=side))
    except ImageError:
        return "<em>not readable</em>"
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'


def figure(record: Record, word: str, kind: str = "") -> str:
    """A picture that opens its file, what it is, how large, and where it lies."""
    path = html.escape(printable(record.path))
    size = f"{record.width} × {record.height}, {_size(record.size)}"
    return (
        f'<figure class="{kind}"><a href="{html.escape(Path(record.path).absolute().as_uri())}" title="Open {path}">'
        f"{thumbnail(record.path)}</a><figcaption><b>{html.escape(word)}</b> {size}<br>{path}</figcaption></figure>"
    )


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"


def write_review(groups: Sequence[CopyGroup], output: Path) -> None:
    """Write a page with each group: what to keep, framed, why, and the copies."""
    sections = []
    for group in groups:
        parts = [figure(group.keep, "keep", "keep")]
        for copy in group.copies:
            word = "exact copy" if copy.exact else f"near copy, {copy.agreement:.0%} alike"
            parts.append(figure(copy.record, word))
        title = html.escape(printable(Path(group.keep.path).name))
        why = html.escape(group.reason)
        sections.append(f"<section><h2>{title} <span>keep it: {why}</span></h2><div>{''.join(parts)}</div></section>")
    copies = [copy for group in groups for copy in group.copies]
    counts = f"{_counted(len(copies), 'copy', 'copies')} in {_counted(len(groups), 'group')}"
    heading = f"{counts}, {_size(sum(copy.record.size for copy in copies))}" if copies else "No copies"
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{heading}</title><style>{_STYLE}</style><main><h1>{heading}</h1>"
        "<p>This page moves and removes nothing. <code>tessera duplicates --move-to DIR</code> moves the copies "
        f"aside, and <code>--undo DIR</code> brings them back.</p>{''.join(sections)}</main></html>"
    )
    write_atomically(output, page.encode("utf-8"))


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
