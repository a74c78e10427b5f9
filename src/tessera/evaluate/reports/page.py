"""The page of figures: strips of the best five images with green, red and grey frames, as in the paper's figure 1.

One file with its pictures inside, made when the report is: the photographs are never copied anywhere else.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tessera.data.ground_truth import Box
from tessera.data.images import load_benchmark
from tessera.errors import ImageError
from tessera.evaluate.protocol import Score
from tessera.evaluate.result import EvaluationResult, percent

THUMBNAIL_SIZE = 220
_BOX_COLOUR = (255, 196, 0)
_VERDICTS = {"positive": ("✓", "right"), "negative": ("✗", "wrong"), "junk": ("–", "not counted")}


@dataclass(frozen=True)
class Strip:
    """One query with its best images and the verdict on each: `positive`, `negative` or `junk`."""

    name: str
    query: Path
    box: Box | None
    ap: float
    num_positives: int
    images: Sequence[Path]
    image_names: Sequence[str]
    verdicts: Sequence[str]


def render_page(result: EvaluationResult, settings: Sequence[tuple[str, str]], strips: Sequence[Strip]) -> str:
    """The whole page."""
    title = f"{result.dataset}: {result.model}"
    notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in result.notes)
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in settings)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><p class='kicker'>Tessera evaluation</p><h1>{html.escape(result.dataset)}</h1>"
        f"<p class='model'>{html.escape(str(result.model))}</p></header>{notes}"
        f"<section class='cards'>{''.join(_card(name, score) for name, score in result.protocols.items())}</section>"
        f"<details><summary>What decided these figures</summary><table class='settings'>{rows}</table></details>"
        f"<section><h2>Queries, from the worst to the best</h2>{_legend(strips)}"
        f"{''.join(_render_strip(strip) for strip in strips)}</section></main></body></html>\n"
    )


def _legend(strips: Sequence[Strip]) -> str:
    box = "<span class='query'>the query's box</span>" if any(strip.box for strip in strips) else ""
    return (
        "<p class='legend'><span class='positive'>✓ right</span><span class='negative'>✗ wrong</span>"
        f"<span class='junk'>– not counted (junk)</span>{box}</p>"
    )


def _card(name: str, score: Score) -> str:
    precisions = "".join(f"<li><b>{percent(score.mp[k])}</b> mP@{k}</li>" for k in score.kappas)
    return (
        f"<article class='card'><h2>{html.escape(name)}</h2><p class='map'>{percent(score.map)}<span>mAP</span></p>"
        f"<ul>{precisions}</ul>{_curve(score)}"
        f"<p class='caption'>AP of {score.num_queries:,} queries, sorted</p></article>"
    )


def _curve(score: Score, width: int = 300, height: int = 72) -> str:
    """The AP of every query, sorted, as an area; the dashed line is the mean."""
    values = np.sort(score.ap[~np.isnan(score.ap)])[::-1]
    if len(values) > width:
        values = values[np.linspace(0, len(values) - 1, width).round().astype(int)]
    step = width / len(values)
    points = [f"0,{height}"]
    for place, value in enumerate(np.clip(values, 0, 1)):
        level = height * (1 - value)
        points += [f"{place * step:.1f},{level:.1f}", f"{(place + 1) * step:.1f},{level:.1f}"]
    points.append(f"{width},{height}")
    mean = height * (1 - min(1.0, score.map))
    return (
        f"<svg viewBox='0 0 {width} {height}' preserveAspectRatio='none' role='img' aria-label='AP of each query'>"
        f"<polygon points='{' '.join(points)}'/><line x1='0' x2='{width}' y1='{mean:.1f}' y2='{mean:.1f}'/></svg>"
    )


def _render_strip(strip: Strip) -> str:
    results = "".join(
        _figure(_thumbnail(path), verdict, f"{rank}", name)
        for rank, (path, name, verdict) in enumerate(
            zip(strip.images, strip.image_names, strip.verdicts, strict=True), start=1
        )
    )
    query = _figure(_thumbnail(strip.query, strip.box), "query", "query", strip.name)
    count = f"{strip.num_positives:,} to find"
    return (
        f"<article class='strip'><div class='label'><b>AP {percent(strip.ap)}</b>"
        f"<span title='{html.escape(strip.name, quote=True)}'>{html.escape(strip.name)}</span><i>{count}</i></div>"
        f"<div class='row'>{query}<div class='results'>{results}</div></div></article>"
    )


def _figure(source: str, verdict: str, badge: str, name: str) -> str:
    mark, meaning = _VERDICTS.get(verdict, ("", "query"))
    text = html.escape(f"{name} ({meaning})", quote=True)
    picture = f"<img src='{source}' alt='{text}' title='{text}'>" if source else f"<span class='gone'>{text}</span>"
    return f"<figure class='{verdict}'>{picture}<figcaption>{html.escape(badge)} {mark}</figcaption></figure>"


def _thumbnail(path: Path, box: Box | None = None) -> str:
    """A small JPEG as a data URI, the box drawn on it; empty when the picture cannot be read any more."""
    try:
        pixels = load_benchmark(path, size=THUMBNAIL_SIZE)
        if box is not None:
            with Image.open(path) as opened:
                factor = max(pixels.shape[:2]) / max(opened.size)
    except (ImageError, OSError):
        return ""
    picture = Image.fromarray(pixels)
    if box is not None:
        x0, y0, x1, y1 = (side * factor for side in box)
        width, height = picture.size
        corners = (max(0.0, x0), max(0.0, y0), min(width - 1.0, x1), min(height - 1.0, y1))
        ImageDraw.Draw(picture).rectangle(corners, outline=_BOX_COLOUR, width=3)
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


_STYLE = """
:root { --ink: #1c2430; --soft: #667085; --line: #e4e7ec; --page: #f7f8fa; --card: #fff;
  --right: #14884a; --wrong: #d92d20; --junk: #98a2b3; --query: #f0b400; --accent: #3b5bdb; }
@media (prefers-color-scheme: dark) { :root { --ink: #eceff4; --soft: #9aa4b5; --line: #2b3342; --page: #12161d;
  --card: #1a202a; --accent: #7c9cff; } }
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 80px; }
.kicker { color: var(--soft); text-transform: uppercase; letter-spacing: .08em; font-size: 12px; }
h1 { font-size: 32px; line-height: 1.2; overflow-wrap: anywhere; }
.model { color: var(--soft); font-size: 17px; margin-bottom: 24px; overflow-wrap: anywhere; }
.note { background: #fff4d6; color: #6b4e00; border-radius: 8px; padding: 8px 14px; margin-bottom: 8px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 16px; margin: 20px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px; }
.card h2 { font-size: 14px; text-transform: capitalize; color: var(--soft); font-weight: 600; }
.map { font-size: 40px; font-weight: 700; font-variant-numeric: tabular-nums; }
.map span { font-size: 15px; color: var(--soft); font-weight: 500; margin-left: 8px; }
.card ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--soft);
  font-size: 13px; margin-bottom: 14px; }
.card li { white-space: nowrap; }
.card li b { color: var(--ink); font-variant-numeric: tabular-nums; }
svg { width: 100%; height: 72px; display: block; border-bottom: 1px solid var(--line); }
polygon { fill: var(--accent); opacity: .22; }
svg line { stroke: var(--accent); stroke-width: 1.5; stroke-dasharray: 5 4; vector-effect: non-scaling-stroke; }
.caption { color: var(--soft); font-size: 12px; margin-top: 6px; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 12px 20px; }
summary { cursor: pointer; font-weight: 600; }
.settings { border-collapse: collapse; margin-top: 10px; font-size: 13px; }
.settings th { text-align: left; color: var(--soft); font-weight: 500; padding: 3px 24px 3px 0; white-space: nowrap; }
.settings td { overflow-wrap: anywhere; }
section > h2 { font-size: 21px; margin: 36px 0 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 18px; font-size: 13px; color: var(--soft); margin-bottom: 14px; }
.legend span::before { content: ""; display: inline-block; width: 14px; height: 14px; border-radius: 4px;
  border: 3px solid; margin-right: 6px; vertical-align: -3px; }
.legend .positive::before { color: var(--right); } .legend .negative::before { color: var(--wrong); }
.legend .junk::before { color: var(--junk); } .legend .query::before { color: var(--query); }
.strip { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 14px 16px;
  margin-bottom: 14px; break-inside: avoid; }
.label { display: flex; gap: 14px; align-items: baseline; margin-bottom: 10px; font-size: 13px; }
.label b { font-variant-numeric: tabular-nums; white-space: nowrap; }
.label span { color: var(--soft); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; flex: 1; }
.label i { color: var(--soft); font-style: normal; white-space: nowrap; }
.row { display: grid; grid-template-columns: repeat(6, 1fr); gap: 10px; }
.results { display: contents; }
figure { position: relative; aspect-ratio: 1; border: 4px solid; border-radius: 10px; overflow: hidden;
  background: var(--page); display: grid; place-items: center; }
figure img { width: 100%; height: 100%; object-fit: contain; display: block; }
figure.positive { border-color: var(--right); } figure.negative { border-color: var(--wrong); }
figure.junk { border-color: var(--junk); } figure.query { border-color: transparent; }
figcaption { position: absolute; left: 6px; bottom: 6px; color: #fff; background: rgba(16, 20, 28, .78);
  border-radius: 6px; padding: 0 7px; font-size: 12px; }
.positive figcaption { background: var(--right); } .negative figcaption { background: var(--wrong); }
.junk figcaption { background: #667085; }
.gone { color: var(--soft); font-size: 12px; padding: 8px; text-align: center; }
@media (max-width: 720px) { .row { grid-template-columns: repeat(3, 1fr); } }
"""
