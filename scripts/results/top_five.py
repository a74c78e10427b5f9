"""The paper's figure 1: what several systems find first for a query with its box, green where it shows the thing.

    python scripts/results/make.py top-five     results/top-five.csv, then the figure

Queries and gallery are the example photographs, whose licences allow showing them (examples/photos/CREDITS.md).
Nothing is trained for it: poolings of the ImageNet backbone, the packaged `lite`, whose tokens are the paper's, and the
default search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maps import PictureMaps
from PIL import Image, ImageDraw, ImageFont
from PIL.ImageFont import FreeTypeFont
from PIL.ImageFont import ImageFont as BitmapFont
from rows import BACKBONE, DEFAULT, LITE, PARTS, REFERENCES, SIZE, SYSTEM_LABELS
from run import REPOSITORY, Bench, append_csv, commit, read_csv, say
from share import open_system

from tessera.data.images import load_photo

EXAMPLES = REPOSITORY / "examples"


@dataclass(frozen=True)
class Asked:
    """A query, its box, and the photos that show what is in it, by their names."""

    name: str
    box: tuple[int, int, int, int]
    shown_in: tuple[str, ...]

    @property
    def path(self) -> Path:
        return EXAMPLES / "queries" / f"{self.name}.jpg"


# The first was chosen before a system was asked; all of them found its four photos, so a small thing came beside it,
# with the box of `examples/demo.py`.
QUERIES = (
    Asked("sagrada-familia", (150, 30, 470, 660), tuple(f"sagrada-familia-{end}" for end in ("1", "2", "3", "night"))),
    Asked("book-box", (180, 70, 350, 260), ("book-box-1", "book-box-2", "book-box-3", "stairs-1", "stairs-2")),
)
NAMES = (*REFERENCES, LITE, PARTS, DEFAULT)
COLUMNS = ("query", "row", "rank", "photo", "shows_it", "commit")
SHOWN = 5

_CELL = (124, 96)
_QUERY_WIDTH = 210
_GAP, _LABEL, _FRAME, _MARGIN = 12, 150, 4, 18
_INK, _RIGHT, _WRONG, _BOX = (28, 28, 30), (0, 150, 90), (208, 52, 44), (240, 140, 0)
Font = FreeTypeFont | BitmapFont


def make_top_five(bench: Bench) -> None:
    """Ask each system, unless that was done."""
    path = bench.results / "top-five.csv"
    folder = bench.work / "top-five"
    folder.mkdir(parents=True, exist_ok=True)
    crops = [folder / f"{asked.name}.png" for asked in QUERIES]
    for asked, crop in zip(QUERIES, crops, strict=True):
        Image.fromarray(load_photo(asked.path, size=None, box=asked.box)).save(crop)
    photos = sorted((EXAMPLES / "photos").rglob("*.jpg"))
    maps = PictureMaps(folder / f"{BACKBONE}-{SIZE}", [*crops, *photos], SIZE)
    gallery = list(range(len(crops), len(crops) + len(photos)))
    for name in NAMES:
        if any(found["row"] == name for found in read_csv(path)):
            continue
        with open_system(bench, name, 0, maps, [gallery]) as rank:
            rankings = list(rank(gallery, list(range(len(crops)))))
        lines = []
        for asked, ranking in zip(QUERIES, rankings, strict=True):
            for place, row in enumerate(ranking[:SHOWN]):
                photo = photos[row]
                found = {"query": asked.name, "row": name, "rank": place, "photo": photo.relative_to(EXAMPLES)}
                lines.append({**found, "shows_it": int(photo.stem in asked.shown_in), "commit": commit()})
        append_csv(path, COLUMNS, *lines)
        say(f"top five: {name}: done")


def draw_top_five(path: Path, target: Path) -> Path:
    """A block a query: the query with its box on the left, a row a system beside it."""
    rows = read_csv(path)
    systems = [name for name in NAMES if any(row["row"] == name for row in rows)]
    block = len(systems) * (_CELL[1] + _GAP) - _GAP
    width = 2 * _MARGIN + _QUERY_WIDTH + 2 * _GAP + _LABEL + SHOWN * (_CELL[0] + _GAP)
    sheet = Image.new("RGB", (width, _MARGIN + len(QUERIES) * (block + _MARGIN)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=15)
    for number, asked in enumerate(QUERIES):
        start = _MARGIN + number * (block + _MARGIN)
        _draw_query(sheet, draw, asked, (start, start + block), font)
        for line, name in enumerate(systems):
            top, left = start + line * (_CELL[1] + _GAP), _MARGIN + _QUERY_WIDTH + 2 * _GAP
            label = SYSTEM_LABELS[name].replace("\\", "").replace("`", "")
            draw.text((left, top + _CELL[1] / 2), label, _INK, font, anchor="lm")
            for row in rows:
                if (row["query"], row["row"]) == (asked.name, name):
                    place = left + _LABEL + int(row["rank"]) * (_CELL[0] + _GAP)
                    _draw_hit(sheet, draw, row, (place, top))
    sheet.save(target, quality=86, optimize=True)
    return target


def _draw_query(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, asked: Asked, between: tuple[int, int], font: Font
) -> None:
    with Image.open(asked.path) as opened:
        query = opened.convert("RGB")
    factor = _QUERY_WIDTH / query.width
    size = (_QUERY_WIDTH, round(query.height * factor))
    top = (between[0] + between[1] - size[1]) // 2
    sheet.paste(query.resize(size, Image.Resampling.LANCZOS), (_MARGIN, top))
    draw.rectangle((_MARGIN, top, _MARGIN + size[0] - 1, top + size[1] - 1), outline=_INK, width=2)
    x0, y0, x1, y1 = (round(value * factor) for value in asked.box)
    draw.rectangle((_MARGIN + x0, top + y0, _MARGIN + x1, top + y1), outline=_BOX, width=3)
    draw.text((_MARGIN, top - 8), "query and its box", _INK, font, anchor="lb")


def _draw_hit(sheet: Image.Image, draw: ImageDraw.ImageDraw, row: dict[str, str], place: Sequence[int]) -> None:
    with Image.open(EXAMPLES / row["photo"]) as opened:
        photo = opened.convert("RGB")
    photo.thumbnail((_CELL[0] - 2 * _FRAME, _CELL[1] - 2 * _FRAME), Image.Resampling.LANCZOS)
    x = place[0] + (_CELL[0] - photo.width) // 2
    y = place[1] + (_CELL[1] - photo.height) // 2
    frame = (x - _FRAME, y - _FRAME, x + photo.width + _FRAME - 1, y + photo.height + _FRAME - 1)
    draw.rectangle(frame, fill=_RIGHT if row["shows_it"] == "1" else _WRONG)
    sheet.paste(photo, (x, y))
