"""Draw the pictures of docs/models.md after the paper's figure 3, from the example photographs.

    python scripts/draw_tokens.py [-o docs/images]

tokens.jpg: where the tokens of the packaged model look. clutter.jpg: a photograph cut out, made small and pasted into
another, searched for with the whole photograph; which token found it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from tessera import Extractor
from tessera.data.images import load_photo
from tessera.explain.explanation import explain_image, explain_pair
from tessera.explain.figure import draw_image, draw_pair

PHOTOS = Path(__file__).resolve().parents[1] / "examples" / "photos"
SHOWN = ("roman-colosseum.jpg", "casa-mila.jpg", "bridge.jpg", "picos-de-europa.jpg")
THING, CUT, CLUTTER = "roman-colosseum.jpg", (0.0, 0.0, 0.7, 1.0), "high-trestle-trail.jpg"


def paste_small(thing: Image.Image, canvas: Image.Image, share: float, at: tuple[float, float]) -> Image.Image:
    """thing on `share` of the canvas's area, its corner at fractions of the room there is."""
    scale = (share * canvas.width * canvas.height / (thing.width * thing.height)) ** 0.5
    small = thing.resize((round(thing.width * scale), round(thing.height * scale)), Image.Resampling.LANCZOS)
    mixed = canvas.copy()
    mixed.paste(small, (round(at[0] * (canvas.width - small.width)), round(at[1] * (canvas.height - small.height))))
    return mixed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    extractor = Extractor("lite")
    strips = [draw_image(explain_image(extractor, load_photo(PHOTOS / name, size=1024))) for name in SHOWN]
    stacked = Image.new("RGB", (max(s.width for s in strips), sum(s.height for s in strips)), "white")
    top = 0
    for strip in strips:
        stacked.paste(strip, (0, top))
        top += strip.height
    stacked.save(options.output / "tokens.jpg", quality=85)
    with Image.open(PHOTOS / THING) as photo, Image.open(PHOTOS / CLUTTER) as canvas:
        left, upper, right, lower = (f * s for f, s in zip(CUT, (*photo.size, *photo.size), strict=True))
        cut = photo.convert("RGB").crop((round(left), round(upper), round(right), round(lower)))
        mixed = paste_small(cut, canvas.convert("RGB"), 0.15, (0.75, 0.6))
    pair = explain_pair(extractor, load_photo(PHOTOS / THING, size=1024), np.asarray(mixed))
    draw_pair(pair).convert("RGB").save(options.output / "clutter.jpg", quality=85)


if __name__ == "__main__":
    main()
