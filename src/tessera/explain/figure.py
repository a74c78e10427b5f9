"""Pictures of an explanation, as the paper's figure 3: a strip of token maps, and a pair with its bound regions."""

from __future__ import annotations

import itertools

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tessera.explain.attention_regions import light_of, resize_map
from tessera.explain.explanation import METHOD_NOTES, ImageExplanation, PairExplanation
from tessera.explain.matches import draw_matches

# Okabe and Ito's colours, told apart by colour-blind readers too; the same colour is the same token everywhere.
TOKEN_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999"]
PANEL = 320  # pixels on the longer side of one picture
PAIR_PANEL = 420  # of one of two: about as high as the table beside them
BADGE = 19
MARGIN = 16
CAPTION = 26
NOTE_WIDTH = 320  # of the lines under the table
INK = (28, 28, 30)
FAINT = (120, 120, 126)
GREY = (238, 238, 240)
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
    """The places that agree, where there are enough, then what the tokens say."""
    tokens = _draw_tokens(explanation, num_pairs)
    matches = explanation.matches
    if matches is None or not matches.agrees:
        return tokens
    lines = draw_matches(matches)
    if lines.width > tokens.width - 2 * MARGIN:
        lines = draw_matches(matches, int(lines.height * (tokens.width - 2 * MARGIN) / lines.width))
    top = lines.height + MARGIN + CAPTION
    sheet = Image.new("RGB", (tokens.width, top + tokens.height), PAPER)
    sheet.paste(lines, (MARGIN, MARGIN))
    caption = f"verified: {len(matches.points)} places of both pictures agree"
    _text(ImageDraw.Draw(sheet), (MARGIN, MARGIN + lines.height + 5), caption, INK)
    sheet.paste(tokens, (0, top))
    return sheet


def _draw_tokens(explanation: PairExplanation, num_pairs: int) -> Panel:
    """Both pictures with the regions of the strongest tokens, the maps below, and the contributions (figure 3b)."""
    query, other = explanation.query, explanation.other
    chosen = explanation.pairs[:num_pairs]
    left = _boxed(query, list(dict.fromkeys(i for i, _ in chosen)) or [0])
    right = _boxed(other, list(dict.fromkeys(j for _, j in chosen)) or [0])
    matrix = _matrix(explanation)
    rows = _map_rows(explanation)
    x_right = 2 * MARGIN + PAIR_PANEL
    x_matrix = x_right + PAIR_PANEL + MARGIN
    y_rows = 2 * MARGIN + max(max(left.height, right.height) + CAPTION, matrix.height)
    size = (max(x_matrix + matrix.width, rows.width + MARGIN) + MARGIN, y_rows + rows.height + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for panel, x, caption in ((left, MARGIN, "query"), (right, x_right, f"similarity {explanation.score:.3f}")):
        sheet.paste(panel, (x, MARGIN))
        _text(draw, (x, MARGIN + panel.height + 5), caption, INK)
    sheet.paste(matrix, (x_matrix, MARGIN))
    sheet.paste(rows, (MARGIN, y_rows))
    return sheet


def _map_rows(explanation: PairExplanation) -> Panel:
    """A row of maps for each picture, at half size, under their tokens' names and what these added to the score."""
    matrix = explanation.matrix
    rows = []
    for side, added in ((explanation.query, matrix.sum(axis=1)), (explanation.other, matrix.sum(axis=0))):
        panels = [_shrink(_spotlight(side, index, PAIR_PANEL), 2) for index in range(len(side.maps))]
        cell = PAIR_PANEL // 2 + MARGIN // 2
        row = Image.new("RGB", (cell * len(panels), panels[0].height + CAPTION), PAPER)
        draw = ImageDraw.Draw(row)
        for index, panel in enumerate(panels):
            row.paste(panel, (index * cell, 0))
            name = _token_name(side, index) + (f"  {added[index]:+.3f}" if side.num_tokens else "")
            _label(draw, (index * cell, panel.height + 4), name, _colour(index))
        rows.append(row)
    sheet = Image.new("RGB", (max(row.width for row in rows), sum(row.height + 4 for row in rows)), PAPER)
    y = 0
    for row in rows:
        sheet.paste(row, (0, y))
        y += row.height + 4
    return sheet


def _matrix(explanation: PairExplanation) -> Panel:
    """The table of contributions."""
    matrix = explanation.matrix
    size, cell, head = matrix.shape[0], 56, 42
    sheet = Image.new("RGB", (max(head + size * cell, NOTE_WIDTH), head + size * cell + 2 * CAPTION), PAPER)
    draw = ImageDraw.Draw(sheet)
    peak = max(float(np.abs(matrix).max(initial=0)), 1e-9)
    for index in range(size):
        at = head + index * cell
        for x, y in ((at + 4, head - 22), (head - 22, at + cell // 2 - 10)):
            _badge(draw, (x, y), str(index + 1), _colour(index))
    for i, j in itertools.product(range(size), repeat=2):
        value = float(matrix[i, j])
        strength = min(1.0, abs(value) / peak)
        base = np.array((0, 114, 178) if value >= 0 else (213, 94, 0))
        shade = tuple(int(v) for v in 255 - (255 - base) * strength * 0.85)
        x, y = head + j * cell, head + i * cell
        draw.rectangle((x, y, x + cell - 3, y + cell - 3), fill=shade)
        _text(draw, (x + 6, y + 19), f"{value:+.3f}", PAPER if strength > 0.8 else INK, small=True)
    _text(draw, (head, head + size * cell + 4), "rows: the query's tokens; columns: the other's;", FAINT, small=True)
    _text(draw, (head, head + size * cell + 20), f"their sum is the similarity, {matrix.sum():.3f}", FAINT, small=True)
    return sheet


def _photo(explanation: ImageExplanation, side: int = PANEL) -> Panel:
    picture = Image.fromarray(explanation.image)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    if max(picture.size) < side:  # a small picture is enlarged for the reader, never for the network
        ratio = side / max(picture.size)
        size = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return picture


def _spotlight(explanation: ImageExplanation, index: int, side: int = PANEL) -> Panel:
    """The picture dimmed and grey, lit in the token's colour where its map is strong."""
    picture = np.asarray(_photo(explanation, side), dtype=np.float32)
    height, width = picture.shape[:2]
    light = resize_map(light_of(explanation.maps[index]), height, width)[..., None] ** 0.8
    grey = picture.mean(axis=2, keepdims=True) * 0.35 + 20
    tint = np.array(_colour(index), dtype=np.float32)
    lit = 0.72 * picture + 0.28 * tint
    return Image.fromarray(np.asarray(np.clip(grey * (1 - light) + lit * light, 0, 255), dtype=np.uint8))


def _boxed(explanation: ImageExplanation, tokens: list[int]) -> Panel:
    """The picture with the regions of some tokens, their numbers at corners in turn: regions often begin together."""
    panel = _photo(explanation, PAIR_PANEL)
    draw = ImageDraw.Draw(panel)
    width, height = panel.size
    for place, index in enumerate(tokens):
        x0, y0, x1, y1 = explanation.boxes[index]
        left, top = x0 * width, y0 * height
        right, bottom = max(x1 * width - 1, left), max(y1 * height - 1, top)
        draw.rectangle((left, top, right, bottom), outline=(0, 0, 0), width=4)
        draw.rectangle((left, top, right, bottom), outline=_colour(index), width=3)
        corner = ((left, top), (right - BADGE, top), (left, bottom - BADGE), (right - BADGE, bottom - BADGE))[place % 4]
        _badge(draw, (max(0.0, corner[0]), max(0.0, corner[1])), str(index + 1), _colour(index))
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
    draw.rectangle((x, y, x + BADGE, y + BADGE), fill=colour)
    draw.text((x + BADGE / 2, y + BADGE / 2), text, fill=INK, font=_font(), anchor="mm")
