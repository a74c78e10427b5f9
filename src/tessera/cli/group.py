"""`tessera group`: photos of the same place or thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption
from tessera.cli.output import counted, link_to, print_json, progress_bar, say, write_csv

EXAMPLE = "Example: tessera group -g photos.tessera --json"


def group(
    gallery: GalleryOption = DEFAULT_GALLERY,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a row for each picture instead; - is stdout.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show the groups as they were found last.")] = False,
    json: JsonOption = False,
) -> None:
    """Put photos of the same place or thing into groups, by local features that agree; each group has a cover.

    Run it again after indexing: only what is new is compared. The groups are kept in the gallery.
    """
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery, create=False) as opened, progress_bar("comparing", "pairs") as bar:
        groups = opened.groups(renew=not show, progress=lambda done, total: bar(done, total, 0) if bar else None)
        images = len(opened)
    if csv is not None:
        rows = [
            [found.id, "cover" if rank == 0 else "", record.path]
            for found in groups
            for rank, record in enumerate(found.images)
        ]
        write_csv(csv, ("group", "cover", "path"), rows)
    if json:
        print_json({"groups": [found.to_json() for found in groups]})
        return
    for found in [] if csv is not None else groups:
        print(f"group {found.id}: {counted(len(found.images), 'image')}")
        for record in found.images:
            print(f"  {link_to(record.path)}")
    grouped = sum(len(found.images) for found in groups)
    say(f"{grouped} of {counted(images, 'image')} in {counted(len(groups), 'group')}")
