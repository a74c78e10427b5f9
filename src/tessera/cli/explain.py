"""`tessera explain`: where each token looks; of two pictures, the places that agree and what each token added."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tessera.refiners import RERANKERS

if TYPE_CHECKING:
    from tessera.explain.matches import MatchedPair

EXAMPLE = "Example: tessera explain tower.jpg postcard.jpg --box 120,40,600,700 -o why.png"


def explain(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="The picture to explain, or the query of a pair.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="A second picture: explain why it resembles the first.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figure here (PNG).")] = None,
    box: Annotated[str | None, typer.Option(help="X0,Y0,X1,Y1 on the first picture, in upright pixels.")] = None,
    model: Annotated[str, typer.Option(help="A packaged model or a bundle's folder.")] = "lite",
    size: Annotated[int | None, typer.Option(help="Longer side in pixels; the model's own unless given.")] = None,
    scales: Annotated[str | None, typer.Option(help="Such as 1/sqrt2,1,sqrt2; the model's own unless given.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    matches: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(name for name, entry in RERANKERS.items() if entry.compares == "local features"),
            help="For a pair: only matches, by another comparison than the search's own.",
        ),
    ] = None,
    local: Annotated[str | None, typer.Option(help="Local features of --matches sp: sift, xfeat, ... (sift).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print boxes and contributions as JSON.")] = False,
) -> None:
    """Show where each visual token looks or, for a pair, the places that agree and what tokens added to the score."""
    from tessera.data.boxes import clip_box, parse_box
    from tessera.data.images import read_photo
    from tessera.errors import UsageError
    from tessera.explain.explanation import METHOD_NOTES, explain_image, pair_up
    from tessera.explain.figure import draw_image, draw_pair
    from tessera.extract.extractor import Extractor
    from tessera.extract.scales import parse_scales
    from tessera.storage import atomic_path

    if output is None and not json:
        raise UsageError("Nothing to write: give -o FIGURE.png, --json, or both.")
    if matches is not None:
        if other is None:
            raise UsageError(f"--matches {matches} compares two pictures: give a second one.")
        _explain_matches(image, other, matches, local, model, box, output, json)
        return
    extractor = Extractor(model, device=device, size=size, scales=parse_scales(scales) if scales else None)
    photo = read_photo(image, size=extractor.size, box=parse_box(box) if box else None)
    # Boxes are given in pixels of the whole upright picture, whatever part of it the network saw.
    frame = clip_box(parse_box(box), photo.width, photo.height) if box else (0, 0, photo.width, photo.height)
    first = explain_image(extractor, photo.pixels)
    if other is None:
        answer, figure = first.to_json(frame), draw_image(first)
    else:
        second = read_photo(other, size=extractor.size)
        pair = pair_up(first, explain_image(extractor, second.pixels), _match(image, box, other))
        answer, figure = pair.to_json(frame, (0, 0, second.width, second.height)), draw_pair(pair)
    if output is not None:
        with atomic_path(output) as temporary:
            figure.save(temporary, "PNG")
        typer.echo(f"{output} written", err=True)
    if first.method != "tokens":
        typer.echo(METHOD_NOTES[first.method], err=True)
    if json:
        typer.echo(json_module.dumps(answer))


def _match(image: Path, box: str | None, other: Path) -> MatchedPair:
    """The places that agree, as the default search finds them."""
    from tessera.data.boxes import parse_box
    from tessera.data.images import read_photo
    from tessera.explain.matches import match_pair
    from tessera.local.matching import open_parts_reranker

    reranker = open_parts_reranker()
    first = read_photo(image, size=reranker.size, box=parse_box(box) if box else None)
    return match_pair(reranker, first.pixels, read_photo(other, size=reranker.size).pixels)


def _explain_matches(
    image: Path, other: Path, kind: str, local: str | None, model: str, box: str | None, output: Path | None, json: bool
) -> None:
    from tessera.data.boxes import clip_box, parse_box
    from tessera.data.images import read_photo
    from tessera.explain.matches import draw_matches, match_pair
    from tessera.local.spatial_reranking import open_reranker
    from tessera.storage import atomic_path

    reranker = open_reranker(kind, extractor=local, model=model)
    first = read_photo(image, size=reranker.size, box=parse_box(box) if box else None)
    second = read_photo(other, size=reranker.size)
    pair = match_pair(reranker, first.pixels, second.pixels)
    if output is not None:
        with atomic_path(output) as temporary:
            draw_matches(pair).save(temporary, "PNG")
        typer.echo(f"{output} written", err=True)
    verdict = "agree" if pair.agrees else f"fewer than the {pair.min_inliers} that are no chance"
    typer.echo(f"{kind}: {len(pair.points)} of {pair.num_matches} matches {verdict}", err=True)
    if json:
        frame = clip_box(parse_box(box), first.width, first.height) if box else (0, 0, first.width, first.height)
        answer = pair.to_json(frame, (0, 0, second.width, second.height))
        typer.echo(json_module.dumps(answer))
