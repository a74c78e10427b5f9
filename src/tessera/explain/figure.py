"""Pictures of an explanation, as the paper's figure 3: a strip of token maps, and a pair with its bound regions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tessera.explain.explanation import METHOD_NOTES, ImageExplanation, PairExplanation
from tessera.explain.regions import light_of, resize_map

# Okabe and Ito's colours, told apart by colour-blind readers too; the same colour is the same token everywhere.
TOKEN_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999"]
PANEL = 320  # pixels on the longer side of one picture
MARGIN = 16
CAPTION = 26
INK = (28, 28, 30)
FAINT = (120, 120, 126)
PAPER = (255, 255, 255)

Panel = Image.Image


def draw_image(explanation: ImageExplanation) -> Panel:
    """The picture, then the picture as each token sees it, in a row (the paper's figure 3a)."""
    panels = [_photo(explanation)] + [_spotlight(explanation, index) for index in range(len(explanation.maps))]
    captions = ["picture"] + [_token_name(explanation, index) for index in range(len(explanation.maps))]
    colours = [INK] + [_colour(index) for index in range(len(explanation.maps))]
    width, height = panels[0].size
    note_height = CAPTION if explanation.method != "tokens" else 0
    sheet = Image.new(
        "RGB",
        (len(panels) * (width + MARGIN) + MARGIN, height + 2 * MARGIN + CAPTION + note_height),
        PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    for index, (panel, caption, colour) in enumerate(zip(panels, captions, colours, strict=True)):
        x = MARGIN + index * (width + MARGIN)
        sheet.paste(panel, (x, MARGIN))
        _label(draw, (x, MARGIN + height + 5), caption, colour)
    if note_height:
        _text(draw, (MARGIN, height + MARGIN + CAPTION + 5), METHOD_NOTES[explanation.method], FAINT)
    return sheet


def draw_pair(explanation: PairExplanation, num_pairs: int = 3) -> Panel:
    """Both pictures with the regions of the strongest tokens, the maps below, and the contributions (figure 3b)."""
    query, other = explanation.query, explanation.other
    chosen = explanation.pairs[:num_pairs]
    left = _boxed(query, sorted({i for i, _ in chosen}) or [0])
    right = _boxed(other, sorted({j for _, j in chosen}) or [0])
    rows = _map_rows(explanation)
    matrix = _matrix(explanation)
    top = max(left.height, right.height)
    width = max(left.width + right.width + matrix.width + 4 * MARGIN, rows.width + 2 * MARGIN)
    height = MARGIN + max(top + CAPTION, matrix.height) + MARGIN + rows.height + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    x_right = left.width + 2 * MARGIN
    sheet.paste(left, (MARGIN, MARGIN))
    sheet.paste(right, (x_right, MARGIN))
    sheet.paste(matrix, (x_right + right.width + MARGIN, MARGIN))
    _text(draw, (MARGIN, MARGIN + left.height + 5), "query", INK)
    _text(draw, (x_right, MARGIN + right.height + 5), f"similarity {explanation.score:.3f}", INK)
    sheet.paste(rows, (MARGIN, MARGIN + max(top + CAPTION, matrix.height) + MARGIN))
    return sheet


def _map_rows(explanation: PairExplanation) -> Panel:
    """A row of maps for each picture, at half size, under their tokens' names."""
    rows = []
    for side in (explanation.query, explanation.other):
        panels = [_shrink(_spotlight(side, index), 2) for index in range(len(side.maps))]
        cell = max(panel.width for panel in panels) + MARGIN // 2
        row = Image.new("RGB", (cell * len(panels), panels[0].height + CAPTION), PAPER)
        draw = ImageDraw.Draw(row)
        for index, panel in enumerate(panels):
            row.paste(panel, (index * cell, 0))
            _label(draw, (index * cell, panel.height + 4), _token_name(side, index), _colour(index))
        rows.append(row)
    sheet = Image.new("RGB", (max(row.width for row in rows), sum(row.height + 4 for row in rows)), PAPER)
    y = 0
    for row in rows:
        sheet.paste(row, (0, y))
        y += row.height + 4
    return sheet


def _matrix(explanation: PairExplanation) -> Panel:
    """The table of contributions: stronger is darker, numbers in hundredths of the score's scale."""
    matrix = explanation.matrix
    size, cell, head = matrix.shape[0], 56, 30
    sheet = Image.new("RGB", (head + size * cell + 2, head + size * cell + CAPTION), PAPER)
    draw = ImageDraw.Draw(sheet)
    peak = max(float(np.abs(matrix).max()), 1e-9)
    names = [str(index + 1) for index in range(size - 1)] + ["const"]
    for index, name in enumerate(names):
        colour = _colour(index) if index < size - 1 else FAINT
        _text(draw, (head + index * cell + 6, 8), name, colour)
        _text(draw, (0 if len(name) > 1 else 8, head + index * cell + 20), name[:5], colour, small=len(name) > 1)
    for i in range(size):
        for j in range(size):
            value = float(matrix[i, j])
            strength = abs(value) / peak
            base = np.array((0, 114, 178) if value >= 0 else (213, 94, 0))
            shade = tuple(int(v) for v in 255 - (255 - base) * strength * 0.85)
            x, y = head + j * cell, head + i * cell
            draw.rectangle((x, y, x + cell - 2, y + cell - 2), fill=shade)
            ink = PAPER if strength > 0.6 else INK
            _text(draw, (x + 6, y + 19), f"{value:+.3f}", ink, small=True)
    _text(draw, (head, head + size * cell + 4), "query rows, other columns", FAINT, small=True)
    return sheet


def _photo(explanation: ImageExplanation) -> Panel:
    picture = Image.fromarray(explanation.image)
    picture.thumbnail((PANEL, PANEL), Image.Resampling.LANCZOS)
    if max(picture.size) < PANEL:  # a small picture is enlarged for the reader, never for the network
        ratio = PANEL / max(picture.size)
        size = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return picture


def _spotlight(explanation: ImageExplanation, index: int) -> Panel:
    """The picture dimmed and grey, lit in the token's colour where its map is strong."""
    picture = np.asarray(_photo(explanation), dtype=np.float32)
    height, width = picture.shape[:2]
    light = resize_map(light_of(explanation.maps[index]), height, width)[..., None] ** 0.8
    grey = picture.mean(axis=2, keepdims=True) * 0.35 + 20
    tint = np.array(_colour(index), dtype=np.float32)
    lit = 0.72 * picture + 0.28 * tint
    return Image.fromarray(np.asarray(np.clip(grey * (1 - light) + lit * light, 0, 255), dtype=np.uint8))


def _boxed(explanation: ImageExplanation, tokens: list[int]) -> Panel:
    panel = _photo(explanation)
    draw = ImageDraw.Draw(panel)
    width, height = panel.size
    for index in tokens:
        x0, y0, x1, y1 = explanation.boxes[index]
        corners = (x0 * width, y0 * height, max(x1 * width - 1, x0 * width), max(y1 * height - 1, y0 * height))
        draw.rectangle(corners, outline=(0, 0, 0), width=5)
        draw.rectangle(corners, outline=_colour(index), width=3)
        _badge(draw, (corners[0] + 5, corners[1] + 5), str(index + 1), _colour(index))
    return panel


def _shrink(panel: Panel, factor: int) -> Panel:
    return panel.resize((max(1, panel.width // factor), max(1, panel.height // factor)), Image.Resampling.BOX)


def _token_name(explanation: ImageExplanation, index: int) -> str:
    return f"token {index + 1}" if explanation.method == "tokens" else explanation.method


def _colour(index: int) -> tuple[int, int, int]:
    text = TOKEN_COLOURS[index % len(TOKEN_COLOURS)]
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def _font(small: bool = False) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(12 if small else 15)


def _text(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, colour: tuple[int, int, int], *, small: bool = False
) -> None:
    draw.text(at, text, fill=colour, font=_font(small))


def _label(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, colour: tuple[int, int, int]) -> None:
    """A caption behind a swatch of its token's colour."""
    x, y = at
    draw.rectangle((x, y + 3, x + 11, y + 14), fill=colour)
    _text(draw, (x + 17, y), text, INK)


def _badge(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, colour: tuple[int, int, int]) -> None:
    x, y = at
    draw.rectangle((x, y, x + 18, y + 18), fill=colour)
    _text(draw, (x + 5, y), text, INK)


def heat_overlay(values: NDArray[np.float32], width: int, height: int, token: int) -> Panel:
    """A transparent layer in the token's colour, for laying over a picture of width x height (the web page's hover)."""
    light = resize_map(light_of(values), height, width)
    layer = np.empty((height, width, 4), dtype=np.uint8)
    layer[..., :3] = _colour(token)
    layer[..., 3] = (light * 190).astype(np.uint8)
    return Image.fromarray(layer, "RGBA")
