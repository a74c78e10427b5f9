"""Index the example photographs and search them three times: `make demo`.

No two of the photographs show the same place, so the queries are made from them: one as it is, a box on one, and a
copy that was turned and darkened.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from PIL import Image, ImageEnhance
from rich.console import Console
from rich.table import Table

import tessera

HERE = Path(__file__).resolve().parent
PHOTOS = HERE / "photos"
GALLERY = HERE / "demo.tessera"
TOP = 5


def main() -> None:
    console = Console(highlight=False)
    gallery = tessera.Gallery(GALLERY)

    console.print(f"[bold]Indexing[/] {_short(PHOTOS)} -> {_short(GALLERY)}")
    started = time.perf_counter()
    report = gallery.index(PHOTOS, rebuild=True)  # a gallery of an earlier model is described anew
    seconds = time.perf_counter() - started
    if described := report.added + report.redescribed:
        console.print(f"  {described} photographs in {seconds:.1f} s ({described / seconds:.1f} a second)\n")
    else:
        console.print(f"  nothing new: {report.images} photographs were there already ({seconds:.2f} s)\n")

    wanted = PHOTOS / "casa-mila.jpg"
    show(console, "1. A whole image: casa-mila.jpg", gallery.search(wanted, k=TOP), wanted)

    wanted = PHOTOS / "roman-colosseum.jpg"
    box = (60, 190, 420, 500)
    title = f"2. A box on an image: roman-colosseum.jpg, --box {','.join(map(str, box))}"
    show(console, title, gallery.search(wanted, box=box, k=TOP), wanted)

    wanted = PHOTOS / "picos-de-europa.jpg"
    title = "3. A copy turned by 25 degrees and half as bright: picos-de-europa.jpg"
    show(console, title, gallery.search(turned_and_darkened(wanted), k=TOP), wanted)

    console.print("Search yourself:   [cyan]tessera search PICTURE.jpg -g examples/demo.tessera[/]")
    console.print("Open the web page: [cyan]tessera serve -g examples/demo.tessera[/]")
    console.print("                   and go to [cyan]http://127.0.0.1:8642[/]")
    if "VIRTUAL_ENV" not in os.environ:
        console.print("(tessera is in .venv/bin; `source .venv/bin/activate` puts it on your path.)")


def turned_and_darkened(path: Path) -> Image.Image:
    """The middle of the picture after a turn, so that no black corners give it away."""
    with Image.open(path) as image:
        turned = image.rotate(25, resample=Image.Resampling.BICUBIC)
        width, height = image.size
    middle = turned.crop((width // 5, height // 5, width - width // 5, height - height // 5))
    return ImageEnhance.Brightness(middle).enhance(0.5)


def show(console: Console, title: str, result: tessera.SearchResult, wanted: Path) -> None:
    """Print the hits; the photograph that the query was made from is marked."""
    table = Table(box=None, padding=(0, 2))
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("photograph")
    for hit in result:
        is_wanted = Path(hit.path).name == wanted.name
        mark = "  <- the query's own" if is_wanted else ""
        style = "green" if is_wanted else ""
        table.add_row(str(hit.rank), f"{hit.score:.3f}", f"{Path(hit.path).name}{mark}", style=style)
    console.print(f"[bold]{title}[/]")
    console.print(table)
    timing = result.timing_ms
    console.print(f"  [dim]described in {timing['embed']:.0f} ms, searched in {timing['search']:.1f} ms[/]\n")


def _short(path: Path) -> str:
    """A path as seen from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


if __name__ == "__main__":
    main()
