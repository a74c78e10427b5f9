"""A contact sheet of searches: a row a query, its picture first, then what was found, with the matches drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tessera.data.boxes import Box, clip_box
from tessera.data.images import Pixels, Source, read_photo
from tessera.explain.matches import match_pair, place_colour
from tessera.local.spatial_reranking import Reranker

CELL = (236, 190)  # of a picture, in pixels; pictures keep their shape inside
SIZE = 1024  # longer side of the pictures that are compared
_GAP = 12
_LINE = 19
_MARGIN = 20
_SHOWN = 60  # dots a picture; more hide it
PAPER = (255, 255, 255)
INK = (28, 28, 30)
FAINT = (112, 112, 118)
CERTAIN = (0, 122, 84)
QUERY = (0, 92, 168)

NO_MATCHES: NDArray[np.float32] = np.zeros((0, 4), np.float32)
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class SheetHit:
    """One picture found. matches: M 4, x and y in the query, x and y in this one, in pixels of the two pictures."""

    picture: Pixels
    caption: Sequence[str]
    certain: bool
    matches: NDArray[np.float32] = field(default_factory=lambda: NO_MATCHES)


@dataclass(frozen=True)
class SheetRow:
    """One search. box: the part that was searched for, in pixels of the picture."""

    picture: Pixels
    title: str
    hits: Sequence[SheetHit]
    box: Box | None = None
    verdict: str = ""


def compare_pictures(
    reranker: Reranker, query: Source, box: Box | None, other: Source
) -> tuple[Pixels, Pixels, NDArray[np.float32]]:
    """Both pictures whole, and their matches, M 4, in the pixels of each; none where they do not agree."""
    whole, found = read_photo(query, size=None), read_photo(other, size=SIZE)
    asked = read_photo(query, size=SIZE, box=box)
    pair = match_pair(reranker, asked.pixels, found.pixels)
    frame = clip_box(box, whole.width, whole.height) if box is not None else (0, 0, whole.width, whole.height)
    height, width = found.pixels.shape[:2]
    points = pair.to_json(frame, (0, 0, width, height))["points"] if pair.agrees else []
    return whole.pixels, found.pixels, np.asarray(points, np.float32).reshape(-1, 4)


def draw_sheet(rows: Sequence[SheetRow], heading: str = "") -> Image.Image:
    """The rows below one another, as wide as the longest; short ones that fit stand side by side."""
    panels = [_draw_row(row) for row in rows]
    width = max((panel.width for panel in panels), default=0) + 2 * _GAP
    places, left, top, lowest = [], 0, 0, 0
    for panel in panels:
        if left and left + panel.width > width:
            left, top = 0, lowest + _GAP
        places.append((left, top))
        left, lowest = left + panel.width + _GAP, max(lowest, top + panel.height)
    head = _MARGIN + (34 if heading else 0)
    sheet = Image.new("RGB", (width + 2 * _MARGIN, head + lowest + _MARGIN), PAPER)
    if heading:
        ImageDraw.Draw(sheet).text((_MARGIN, _MARGIN - 4), heading, fill=INK, font=_font(22))
    for panel, (left, top) in zip(panels, places, strict=True):
        sheet.paste(panel, (_MARGIN + left, head + top))
    return sheet


def _draw_row(row: SheetRow) -> Image.Image:
    lines = max((len(hit.caption) for hit in row.hits), default=0)
    height = _LINE + 6 + CELL[1] + (lines + 1) * _LINE
    panel = Image.new("RGB", ((1 + len(row.hits)) * (CELL[0] + _GAP) + _GAP, height), PAPER)
    pen = ImageDraw.Draw(panel)
    pen.text((0, 0), row.title, fill=INK, font=_font(15))
    if row.verdict:
        pen.text((pen.textlength(row.title, font=_font(15)) + 14, 1), row.verdict, fill=FAINT, font=_font(14))
    top = _LINE + 6
    scale = _paste(panel, row.picture, 0, top)
    if row.box is not None:
        corners = tuple(value * scale + (0, top)[place % 2] for place, value in enumerate(row.box))
        pen.rectangle(corners, outline=PAPER, width=4)
        pen.rectangle(corners, outline=QUERY, width=2)
    pen.text((0, top + CELL[1] + 4), "query", fill=QUERY, font=_font(14))
    for place, hit in enumerate(row.hits):
        _draw_hit(panel, row, hit, (place + 1) * (CELL[0] + _GAP) + 2 * _GAP, top, scale, joined=place == 0)
    return panel


def _draw_hit(
    panel: Image.Image, row: SheetRow, hit: SheetHit, left: int, top: int, query_scale: float, *, joined: bool
) -> None:
    """joined: lines lead from the query to this hit, its neighbour; the others have dots in the same colours."""
    pen = ImageDraw.Draw(panel)
    scale = _paste(panel, hit.picture, left, top)
    if len(hit.matches) >= 3:
        hull = cv2.convexHull(hit.matches[:, 2:] * scale + np.array([left, top], np.float32))
        pen.polygon([(float(x), float(y)) for x, y in hull[:, 0]], outline=CERTAIN, width=3)
    height, width = row.picture.shape[:2]
    for x, y, u, v in _spread(hit.matches):
        colour = place_colour(x / width, y / height)
        start, end = (x * query_scale, top + y * query_scale), (left + u * scale, top + v * scale)
        if joined:
            pen.line((*start, *end), fill=colour, width=1)
            _dot(pen, start, colour)
        _dot(pen, end, colour)
    for place, line in enumerate(hit.caption):
        ink = (CERTAIN if hit.certain else FAINT) if place == 0 else FAINT
        pen.text((left, top + CELL[1] + 4 + place * _LINE), line, fill=ink, font=_font(14 if place == 0 else 13))


def _spread(matches: NDArray[np.float32]) -> list[tuple[float, float, float, float]]:
    """At most `_SHOWN` of them, evenly out of all."""
    chosen = matches[np.linspace(0, len(matches) - 1, min(len(matches), _SHOWN)).astype(int)]
    return [(float(x), float(y), float(u), float(v)) for x, y, u, v in chosen]


def _paste(panel: Image.Image, pixels: Pixels, left: int, top: int) -> float:
    """The picture at the upper left of its cell; by how much it was scaled."""
    height, width = pixels.shape[:2]
    scale = float(min(CELL[0] / width, CELL[1] / height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    panel.paste(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS), (left, top))
    return scale


def _dot(pen: ImageDraw.ImageDraw, centre: tuple[float, float], colour: Colour) -> None:
    x, y = centre
    pen.ellipse((x - 2.5, y - 2.5, x + 2.5, y + 2.5), fill=colour, outline=INK)


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
