"""`tessera explain`: where each token looks, and which tokens made two pictures similar."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: tessera explain tower.jpg postcard.jpg --box 120,40,600,700 -o why.png"


def explain(
    image: Annotated[Path, typer.Argument(help="The picture to explain, or the query of a pair.")],
    other: Annotated[Path | None, typer.Argument(help="A second picture: explain why it resembles the first.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figure here (PNG).")] = None,
    box: Annotated[str | None, typer.Option(help="X0,Y0,X1,Y1 on the first picture, in upright pixels.")] = None,
    model: Annotated[str, typer.Option(help="A packaged model or a bundle's folder.")] = "lite",
    size: Annotated[int | None, typer.Option(help="Longer side in pixels; the model's own unless given.")] = None,
    scales: Annotated[str | None, typer.Option(help="Such as 1/sqrt2,1,sqrt2; the model's own unless given.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print boxes and contributions as JSON.")] = False,
) -> None:
    """Show where each visual token looks in a picture or, for a pair, what each pair of tokens added to the score."""
    from tessera.data.boxes import clip_box, parse_box
    from tessera.data.images import read_photo
    from tessera.errors import UsageError
    from tessera.explain.explanation import METHOD_NOTES, PairExplanation, explain_image
    from tessera.explain.figure import draw_image, draw_pair
    from tessera.extract.extractor import Extractor
    from tessera.extract.scales import parse_scales
    from tessera.storage import atomic_path

    if output is None and not json:
        raise UsageError("Nothing to write: give -o FIGURE.png, --json, or both.")
    extractor = Extractor(model, device=device, size=size, scales=parse_scales(scales) if scales else None)
    photo = read_photo(image, size=extractor.size, box=parse_box(box) if box else None)
    # Boxes are given in pixels of the whole upright picture, whatever part of it the network saw.
    frame = clip_box(parse_box(box), photo.width, photo.height) if box else (0, 0, photo.width, photo.height)
    first = explain_image(extractor, photo.pixels)
    if other is None:
        answer, figure = first.to_json(frame), draw_image(first)
    else:
        second = read_photo(other, size=extractor.size)
        pair = PairExplanation(first, explain_image(extractor, second.pixels))
        answer, figure = pair.to_json(frame, (0, 0, second.width, second.height)), draw_pair(pair)
    if output is not None:
        with atomic_path(output) as temporary:
            figure.save(temporary, "PNG")
        typer.echo(f"{output} written", err=True)
    if first.method != "tokens":
        typer.echo(METHOD_NOTES[first.method], err=True)
    if json:
        typer.echo(json_module.dumps(answer))
