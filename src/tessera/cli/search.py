"""`tessera search`: which images show this?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessera.cli.options import (
    DEFAULT_GALLERY,
    AugmentOption,
    BoxOption,
    ByOption,
    DeviceOption,
    ExpandOption,
    GalleryOption,
    JsonOption,
    NearOption,
    ProbabilityOption,
    RerankOption,
    WhereOption,
)
from tessera.cli.output import link_to, print_json, print_rows, progress_bar, say, write_csv
from tessera.errors import TesseraError, UsageError, printable

if TYPE_CHECKING:
    from tessera.gallery.results import Hit, SearchResult

EXAMPLE = "Example: tessera search tower.jpg -k 5 --box 120,40,600,700 --where city=Pisa --json"
_SHEETS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
_MOST_ROWS = 200
_COLUMNS = ("query", "rank", "id", "score", "inliers", "path")


def search(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Pictures or folders of them to look for; - is standard input, film.mp4@12.5 a frame of a video, "
            "film.mp4@scene one a scene.",
        ),
    ],
    gallery: GalleryOption = DEFAULT_GALLERY,
    k: Annotated[int, typer.Option("-k", help="How many hits; the whole gallery if it holds fewer.")] = 10,
    by: ByOption = "auto",
    min_probability: ProbabilityOption = 0.0,
    box: BoxOption = None,
    where: WhereOption = None,
    near: NearOption = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="score|date", help="The order of the hits that are shown.")
    ] = "score",
    expand: ExpandOption = None,
    augment: AugmentOption = False,
    rerank: RerankOption = None,
    device: DeviceOption = "auto",
    allow_url: Annotated[bool, typer.Option("--allow-url", help="Fetch http(s) addresses.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a row for each hit instead; - is stdout.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="FILE.jpg", help="Draw the query and its hits on a sheet.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show query and hits in the browser.")] = False,
    json: JsonOption = False,
) -> None:
    """Find the images that show the same place or object, best first.

    Several pictures are searched for in one run, as fast as the network describes them; one that cannot be read is
    said, and the others go on. Ranks start at 1 here; in the JSON, `rank` starts at 0.
    """
    _let_numpy_use_one_thread()
    from tessera.cli.queries import is_one, read_queries
    from tessera.data.boxes import parse_box
    from tessera.gallery.catalog.filters import parse_near
    from tessera.gallery.gallery import Gallery
    from tessera.refiners import find_reranker

    if sort not in ("score", "date"):
        raise UsageError(f"--sort {sort} is not known: score or date.")
    single = is_one(images)
    if box is not None and not single:
        raise UsageError("--box is a part of one picture: search for one at a time.")
    options: dict[str, Any] = {
        "by": by,
        "min_probability": min_probability,
        "where": [*(where or []), *([] if near is None else [parse_near(near)])] or None,
        "expand": expand,
        "augment": augment,
        "rerank": rerank,
    }
    reranker = find_reranker(rerank)
    if reranker is not None and reranker.compares == "local features":
        say(f"comparing local features of the best {reranker.depth} hits; what is not stored yet is made and kept")
    answers: list[tuple[str, Any, SearchResult]] = []
    failed = 0
    with Gallery(gallery, device=device, create=False) as opened, _bar(single) as bar:
        queries = read_queries(images, allow_url=allow_url)
        if single:
            ((name, query),) = queries
            result = opened.search(query, k, box=None if box is None else parse_box(box), **options)
            answers.append((name, query, result))
        else:
            for name, query, outcome in opened.search_stream(_said(queries), k, **options):
                if isinstance(outcome, TesseraError):
                    failed += 1
                    say(f"error: {outcome}")
                else:
                    answers.append((name, query, outcome))
                if bar is not None:
                    bar(len(answers) + failed, len(answers) + failed, failed)
    _say_notes(answers, single=single, has_conditions=options["where"] is not None)
    if sort == "date":
        _sort_by_date([result for _, _, result in answers])
    if sheet is not None or open_page:
        _draw(answers, sheet, open_page)
    if csv is not None:
        rows = [_csv_row(name, hit) for name, _, result in answers for hit in result]
        write_csv(csv, _COLUMNS, rows)
    if json:
        documents = [{"query": name, **result.to_json()} for name, _, result in answers]
        print_json(answers[0][2].to_json() if single else documents)
    elif csv is None:
        _print_answers(answers, single=single)
    if failed or not answers:
        raise typer.Exit(1)


def _let_numpy_use_one_thread() -> None:
    """It would start one a core, which takes longer than they save: products are small here."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _say_notes(answers: list[tuple[str, Any, SearchResult]], *, single: bool, has_conditions: bool) -> None:
    for name, _, result in answers:
        for note in result.notes:
            say(note if single else f"{name}: {note}")
        if has_conditions and not result:
            say("no image of the gallery meets the conditions of --where and --near")


def _bar(single: bool) -> AbstractContextManager[Any]:
    """Of many queries; one is answered before a bar is drawn."""
    return nullcontext() if single else progress_bar("searching", "queries")


def _said(queries: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Queries in turn; what cannot even be read from its place is given on as the error it is."""
    while True:
        try:
            yield next(queries)
        except StopIteration:
            return
        except UsageError:
            raise
        except TesseraError as error:
            yield "", error
            return


def _sort_by_date(results: list[SearchResult]) -> None:
    if not any("date" in hit.metadata for result in results for hit in result):
        say("no date is known of these pictures: they stay as they are")
    for result in results:
        result.hits.sort(key=lambda hit: str(hit.metadata.get("date", "9999")))


def _print_answers(answers: list[tuple[str, Any, SearchResult]], *, single: bool) -> None:
    for number, (name, _, result) in enumerate(answers):
        if not single:
            gap = "\n" if number and sys.stdout.isatty() else ""
            print(gap + (link_to(name) if Path(name).is_absolute() else printable(name)))
        _print_hits(result)


def _print_hits(result: SearchResult) -> None:
    """For people: ranks from 1, and the path last and whole. For a pipe, columns cut by tabs."""
    name = "probability" if any(hit.probability is not None for hit in result) else "score"
    header = ["rank", name, "inliers", "metadata", "path"]
    rows = []
    for hit in result:
        inliers = "-" if hit.inliers is None else str(hit.inliers)
        metadata = " ".join(f"{key}={value}" for key, value in hit.metadata.items())
        rows.append([str(hit.rank + 1), f"{hit.score:.4f}", inliers, metadata, link_to(hit.path)])
    print_rows(header, rows, after=_doubt(result))


def _doubt(result: SearchResult) -> tuple[int, str] | None:
    """After how many hits those begin whose places do not agree with the query's, where there are such."""
    sure = max((number for number, hit in enumerate(result, start=1) if hit.verified), default=0)
    return (sure, "less certain:") if result.certain and 0 < sure < len(result.hits) else None


def _csv_row(name: str, hit: Hit) -> list[Any]:
    inliers = "" if hit.inliers is None else hit.inliers
    return [name, hit.rank + 1, hit.id, f"{hit.score:.6f}", inliers, hit.path]


def _draw(answers: list[tuple[str, Any, SearchResult]], sheet: Path | None, open_page: bool) -> None:
    from tessera.explain.strip import write_page

    if sheet is not None:
        _draw_sheet(answers, sheet)
        say(f"{sheet} written")
    if open_page:
        import webbrowser

        page = write_page([(name, query, result) for name, query, result in answers])
        say(f"{page} written")
        webbrowser.open(page.as_uri())


def _draw_sheet(answers: list[tuple[str, Any, SearchResult]], sheet: Path) -> None:
    import numpy as np
    from PIL import Image

    from tessera.data.images import load_photo
    from tessera.errors import ImageError
    from tessera.explain.sheet import CELL, SheetHit, SheetRow, draw_sheet
    from tessera.storage import atomic_path

    form = _SHEETS.get(sheet.suffix.lower())
    if form is None:
        raise UsageError(f"{sheet} is no picture's name: use one of {', '.join(_SHEETS)}.")

    def pixels(picture: Any) -> Any:
        try:
            return load_photo(picture if isinstance(picture, str | bytes) else Image.fromarray(picture), size=max(CELL))
        except ImageError:  # its file has gone since it was indexed
            return np.full((CELL[1], CELL[0], 3), 200, np.uint8)

    rows = []
    for name, query, result in answers[:_MOST_ROWS]:
        hits = []
        for hit in result:
            inliers = "" if hit.inliers is None else f", {hit.inliers} inliers"
            caption = (f"{hit.rank + 1}. {hit.score:.3f}{inliers}", printable(Path(hit.path).name)[:30])
            hits.append(SheetHit(pixels(hit.path), caption, bool(hit.verified)))
        rows.append(SheetRow(pixels(query), printable(name)[-60:], hits))
    with atomic_path(sheet) as temporary:
        draw_sheet(rows).save(temporary, form)
