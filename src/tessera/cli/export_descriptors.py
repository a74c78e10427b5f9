"""`tessera export-descriptors`: a gallery's descriptors for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption, WhereOption
from tessera.cli.output import counted, print_json, progress_bar

EXAMPLE = "Example: tessera export-descriptors -g photos.tessera -o photos.parquet"


def export_descriptors(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.npz|.parquet|.faiss", help="Where the descriptors go.")
    ],
    gallery: GalleryOption = DEFAULT_GALLERY,
    where: WhereOption = None,
    json: JsonOption = False,
) -> None:
    """Write ids, paths, metadata and descriptors to a file, by its ending; no picture is described again.

    `.npz`: arrays ids, paths, metadata (JSON) and descriptors. `.parquet`: a row an image. `.faiss`: an exact index by
    id, and beside it a .csv with ids and paths.
    """
    from tessera.gallery.exporting import export_descriptors as write
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery, create=False) as opened, progress_bar("exporting") as bar:
        count = write(opened, output, where=where, progress=lambda done, total: bar(done, total, 0) if bar else None)
        stats = opened.stats()
    if json:
        kept = {key: stats[key] for key in ("dim", "model", "fingerprint")}
        print_json({"output": str(output), "count": count, **kept})
    else:
        print(f"{counted(count, 'descriptor')} of {stats['dim']} numbers -> {output}")
