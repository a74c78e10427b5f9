"""A Revisited Oxford in small: coloured pictures, a ground truth of its own, and an extractor that sees colours."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from tessera.data.ground_truth import Box
from tessera.data.images import load_benchmark
from tessera.errors import ImageError

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}


def paint(path: Path, colour: tuple[int, int, int], shade: float, size: tuple[int, int] = (48, 32)) -> None:
    """A plain picture; shade pulls it towards grey, so that nearness in colour is an order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mixed = tuple(round(value * (1 - shade) + 128 * shade) for value in colour)
    Image.new("RGB", size, mixed).save(path)


def make_oxford(root: Path, name: str = "roxford5k") -> Path:
    """Three colours, four gallery pictures each; queries whose box shows one colour on a ground of another."""
    gallery, lists = [], {colour: [] for colour in COLOURS}
    for colour, rgb in COLOURS.items():
        for number, shade in enumerate((0.0, 0.2, 0.4, 0.6)):
            lists[colour].append(len(gallery))
            gallery.append(f"{colour}_{number}")
            paint(root / "jpg" / f"{gallery[-1]}.jpg", rgb, shade)
    truth, queries = [], []
    for colour, ground in (("red", "green"), ("green", "blue"), ("blue", "red")):
        picture = Image.new("RGB", (60, 40), COLOURS[ground])
        picture.paste(COLOURS[colour], (10, 5, 30, 25))
        queries.append(f"query_{colour}")
        picture.save(root / "jpg" / f"{queries[-1]}.jpg", quality=95)
        first, second, third, last = lists[colour]
        truth.append({"bbx": [10.0, 5.0, 30.0, 25.0], "easy": [first, second], "hard": [third], "junk": [last]})
    content = {"gnd": truth, "imlist": gallery, "qimlist": queries}
    (root / f"gnd_{name}.pkl").write_bytes(pickle.dumps(content, protocol=2))
    return root


class ColourExtractor:
    """The mean colour minus grey as the descriptor; counts what it was asked for."""

    dim = 3

    def __init__(self, fingerprint: str = "colour", stop_after: int | None = None) -> None:
        self.fingerprint = fingerprint
        self.seen: list[str] = []
        self._stop_after = stop_after

    def extract(
        self, sources: Iterable[Path], *, boxes: Iterable[Box | None] | None = None, loader: Any = "benchmark"
    ) -> Iterator[Any]:
        assert loader == "benchmark"
        assert boxes is not None
        for source, box in zip(sources, boxes, strict=True):
            if self._stop_after is not None and len(self.seen) >= self._stop_after:
                raise KeyboardInterrupt
            self.seen.append(Path(source).stem)
            try:
                pixels = load_benchmark(source, size=1024, box=box)
            except ImageError as error:
                yield SimpleNamespace(descriptor=None, error=error)
                continue
            colour = pixels.reshape(-1, 3).mean(axis=0) - 128.0
            yield SimpleNamespace(descriptor=(colour / np.linalg.norm(colour)).astype(np.float32), error=None)
