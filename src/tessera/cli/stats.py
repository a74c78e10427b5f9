"""`tessera stats`: what a gallery holds and takes."""

from __future__ import annotations

from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption
from tessera.cli.output import counted, print_json, print_table, size_text

EXAMPLE = "Example: tessera stats -g photos.tessera --json"
_PAGE = 500


def stats(
    gallery: GalleryOption = DEFAULT_GALLERY,
    failed: Annotated[
        bool, typer.Option("--failed", help="List the pictures that could not be read, and why.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say how many images there are, which model described them, and what they take on disk and in memory."""
    from tessera.gallery.catalog.paths import printable
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery, create=False) as opened:
        if failed:
            rows = []
            after_id = 0
            while page := opened.failures(after_id=after_id, limit=_PAGE):
                rows += [(record.path, record.error or "") for record in page]
                after_id = page[-1].id
            if json:
                print_json({"failed": [{"path": path, "error": error} for path, error in rows]})
            else:
                print_table(("path", "error"), [[printable(path), printable(error)] for path, error in rows])
            return
        answer = opened.stats()
    if json:
        print_json(answer)
        return
    index, features = answer["index"], answer["local_features"]
    lists = features.get("index", {}).get("bytes", 0)
    of_them = f", {size_text(features['bytes'])} of it local features of {counted(features['images'], 'image')}"
    rows_shown = [
        ["images", str(answer["images"])],
        ["exact copies among them", str(answer["copies"])],
        ["not readable", str(answer["failed"])],
        ["removed, kept away", str(answer["ignored"])],
        ["model", f"{answer['model']} (fingerprint {answer['fingerprint']}, {answer['dim']} numbers a descriptor)"],
        ["engine", str(answer["engine"])],
        ["codec", f"{answer['codec']}" + (f" ({index['codec']})" if "codec" in index else "")],
        ["on disk", size_text(answer["disk_bytes"])],
        ["  catalogue", size_text(answer["catalog_bytes"]) + (of_them if features["bytes"] else "")],
        ["  index of descriptors", size_text(index.get("bytes", 0))],
        *([["  inverted file", size_text(lists)]] if lists else []),
        *([["  local features for --rerank", size_text(answer["local_bytes"])]] if answer["local_bytes"] else []),
        *([["index in memory", size_text(index["memory_bytes"])]] if "memory_bytes" in index else []),
        ["generation", str(answer["generation"])],
    ]
    print_table(("", ""), rows_shown)
