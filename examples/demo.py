"""Index the example photographs, search them seven times, draw what was found on one sheet: `make demo`.

Each search has an answer that is known. A wrong one is said, and the exit code is 1.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import tessera
from tessera.explain.sheet import SheetHit, SheetRow, compare_pictures, draw_sheet
from tessera.local.spatial_reranking import Reranker, open_reranker

HERE = Path(__file__).resolve().parent
PHOTOS = HERE / "photos"
GALLERY = HERE / "demo.tessera"
SHEET = HERE / "demo-sheet.jpg"
SHOWN = 4


@dataclass(frozen=True)
class Case:
    """One search. found: what must be found, in any order; also: what shows the same place too and may be found."""

    title: str
    query: str
    found: Sequence[str]
    also: Sequence[str] = ()
    box: tuple[int, int, int, int] | None = None


STATION = ("station-1", "station-2", "station-3", "station-4")
CASES = (
    Case(
        "A church behind a tree; one photograph was darkened to night",
        "sagrada-familia",
        ("sagrada-familia-1", "sagrada-familia-2", "sagrada-familia-3", "sagrada-familia-night"),
    ),
    Case(
        "A tin, and the same tin held in a hand",
        "cookie-box",
        ("cookie-box-2", "cookie-box-3"),
        also=("cookie-box-1", "casa-mila-on-a-cloth"),  # a corner of the tin lies beside the poster
    ),
    Case("A station, from other places", "station", STATION),
    Case("The station by night", "station-night", STATION),
    Case("A packet, in a pile of others", "snack-packet", ("snack-packet-1",)),
    Case(
        "A box drawn on a picture: the little library on its post",
        "book-box",
        ("book-box-1", "book-box-2"),
        also=("book-box-3", "stairs-1", "stairs-2"),
        box=(180, 70, 350, 260),
    ),
    Case("A bridge that is in no photograph", "in-no-photo", ()),
)


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    with tessera.Gallery(GALLERY) as gallery:
        index(console, gallery)
        reranker = open_reranker("sp")
        rows, wrong = [], []
        for number, case in enumerate(CASES, start=1):
            result = gallery.search(query_path(case), box=case.box, k=len(gallery))  # all: a wrong one may come late
            certain = [hit for hit in result if hit.verified]
            is_right = answers(case, [Path(hit.path).stem for hit in certain])
            wrong += [] if is_right else [case.title]
            show(console, number, case, result, is_right)
            rows.append(draw(reranker, case, result))
    draw_sheet(rows, f"tessera: {len(CASES)} searches in {len(list(PHOTOS.rglob('*.jpg')))} photographs").save(
        SHEET, quality=88
    )
    console.print(f"[bold]The sheet:[/] {short(SHEET)}   [dim]every line is a place that two photographs share[/]")
    console.print(f"[bold]The page:[/]  tessera serve -g {short(GALLERY)}   [dim]then open http://127.0.0.1:8642[/]")
    if "VIRTUAL_ENV" not in os.environ:
        console.print("[dim](tessera is in .venv/bin; `source .venv/bin/activate` puts it on your path.)[/]")
    for title in wrong:
        console.print(f"[red]wrong answer:[/] {title}")
    return 1 if wrong else 0


def index(console: Console, gallery: tessera.Gallery) -> None:
    started = time.perf_counter()
    report = gallery.index(PHOTOS, prune=True, rebuild=True)  # of an earlier model: described anew
    seconds = time.perf_counter() - started
    if described := report.added + report.redescribed:
        console.print(f"[bold]Indexed[/] {described} photographs in {seconds:.1f} s -> {short(GALLERY)}\n")
    else:
        console.print(f"[bold]Nothing new[/] among {report.images} photographs ({seconds:.1f} s)\n")


def answers(case: Case, certain: Sequence[str]) -> bool:
    """Whether all that must be found is, and nothing else is called certain."""
    return set(case.found) <= set(certain) <= {*case.found, *case.also}


def show(console: Console, number: int, case: Case, result: tessera.SearchResult, is_right: bool) -> None:
    mark = "[green]right[/]" if is_right else "[red]wrong[/]"
    console.print(f"[bold]{number}. {case.title}[/]  [dim]{result.timing_ms['total']:.0f} ms[/]  {mark}")
    certain = [hit for hit in result if hit.verified]
    for hit in certain:
        console.print(f"   {hit.inliers:4} places agree   {short(Path(hit.path))}")
    if not certain:
        console.print(f"   nothing certain [dim](the most alike: {Path(result[0].path).name})[/]")


def draw(reranker: Reranker, case: Case, result: tessera.SearchResult) -> SheetRow:
    hits = []
    certain = [hit for hit in result if hit.verified]
    for hit in certain[:SHOWN] or result[:2]:
        picture, found, matches = compare_pictures(reranker, query_path(case), case.box, hit.path)
        caption = (f"{hit.inliers} places agree" if hit.verified else "not certain", Path(hit.path).name)
        hits.append(SheetHit(found, caption, bool(hit.verified), matches))
    return SheetRow(picture, case.title, hits, case.box, "" if certain else "nothing certain; the most alike:")


def query_path(case: Case) -> Path:
    return HERE / "queries" / f"{case.query}.jpg"


def short(path: Path) -> str:
    """A path as seen from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


if __name__ == "__main__":
    sys.exit(main())
