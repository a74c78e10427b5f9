"""`tessera remove`: take images out of a gallery."""

from __future__ import annotations

from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption
from tessera.cli.output import counted, print_json

EXAMPLE = "Example: tessera remove photos/blurred.jpg photos/private/"


def remove(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Pictures, or folders with all below them.")],
    gallery: GalleryOption = DEFAULT_GALLERY,
    json: JsonOption = False,
) -> None:
    """Take images out of the gallery; the files themselves are not touched.

    One path that is not in the gallery is an error, and then nothing is removed.
    """
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery, create=False) as opened:
        removed = opened.remove(paths)
        left = len(opened)
    if json:
        print_json({"removed": removed, "images": left})
    else:
        print(f"{removed} removed, {counted(left, 'image')} left")
