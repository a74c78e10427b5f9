"""`tessera search`: which images show this?"""

from __future__ import annotations

from typing import Annotated

import typer

from tessera.cli.options import (
    DEFAULT_GALLERY,
    AugmentOption,
    BoxOption,
    DeviceOption,
    ExpandOption,
    GalleryOption,
    JsonOption,
    RerankOption,
    WhereOption,
)
from tessera.cli.output import print_json, print_table, say

EXAMPLE = "Example: tessera search tower.jpg -k 5 --box 120,40,600,700 --where city=Pisa --json"


def search(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="The picture to look for.")],
    gallery: GalleryOption = DEFAULT_GALLERY,
    k: Annotated[int, typer.Option("-k", help="How many hits; the whole gallery if it holds fewer.")] = 10,
    box: BoxOption = None,
    where: WhereOption = None,
    expand: ExpandOption = None,
    augment: AugmentOption = False,
    rerank: RerankOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Find the images that show the same place or object, best first."""
    from tessera.data.boxes import parse_box
    from tessera.gallery.catalog.paths import printable
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery, device=device, create=False) as opened:
        result = opened.search(
            image,
            k,
            box=None if box is None else parse_box(box),
            where=where,
            expand=expand,
            augment=augment,
            rerank=rerank,
        )
        if where and not result:
            say(_why_nothing(where, list(opened.facets(1))))
    for note in result.notes:
        say(note)
    if json:
        print_json(result.to_json())
        return
    rows = [
        [f"{hit.score:.4f}", printable(hit.path), " ".join(f"{key}={value}" for key, value in hit.metadata.items())]
        for hit in result
    ]
    print_table(("score", "path", "metadata"), rows)


def _why_nothing(where: list[str], keys: list[str]) -> str:
    from tessera.errors import unknown_name
    from tessera.gallery.catalog.filters import Condition, parse_where

    if not keys:
        return "no image of the gallery has metadata: they are the columns of a CSV, `tessera index labels.csv`"
    for condition in parse_where(where):
        if isinstance(condition, Condition) and condition.key not in keys:
            return unknown_name("metadata key", condition.key, keys)
    return "no image of the gallery meets the conditions of --where"
