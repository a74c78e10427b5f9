"""`tessera migrate`: search a gallery with another engine."""

from __future__ import annotations

from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption
from tessera.cli.output import counted, print_json

EXAMPLE = "Example: tessera migrate --engine milvus:http://localhost:19530 -g photos.tessera"


def migrate(
    engine: Annotated[str, typer.Option("--engine", metavar="faiss|milvus:URI", help="The engine to search with.")],
    gallery: GalleryOption = DEFAULT_GALLERY,
    json: JsonOption = False,
) -> None:
    """Move searching to another engine, filled from the catalogue: no picture is described again."""
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery, create=False) as opened:
        opened.migrate(engine)
        stats = opened.stats()
    if json:
        print_json({"engine": stats["engine"], "images": stats["images"]})
    else:
        print(f"searched by {stats['engine']} now: {counted(stats['images'], 'image')}")
