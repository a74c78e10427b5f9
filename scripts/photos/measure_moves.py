"""A move of 1,000 files: how long `index` takes to follow it, and whether any picture was described again.

Usage: python scripts/photos/measure_moves.py -o results/photos/moves.json [--count 1000]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import tessera
from tessera.extract.extractor import Extractor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        photos.mkdir()
        for number in range(options.count):
            noise = random.integers(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((640, 480)).save(photos / f"{number}.jpg")
        with tessera.Gallery(Path(folder) / "gallery") as gallery:
            made = [
                tessera.DescribedImage(path, random.normal(size=gallery.describer.dim), 640, 480)
                for path in sorted(photos.iterdir())
            ]
            gallery.add(made)
            ids = {record.content_hash: record.id for record in gallery.images(limit=options.count)}
            photos.rename(photos.with_name("elsewhere"))
            described = []
            extract = Extractor.extract

            def counted(self: Extractor, *args: object, **options: object) -> object:
                described.append(1)
                return extract(self, *args, **options)  # type: ignore[arg-type]

            Extractor.extract = counted  # type: ignore[method-assign, assignment]
            wall, cpu = time.perf_counter(), time.process_time()
            report = gallery.index(photos.with_name("elsewhere"))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            same = {record.content_hash: record.id for record in gallery.images(limit=options.count)} == ids
    answer = {
        "command": "python scripts/photos/measure_moves.py -o OUT",
        "files": options.count,
        "moved": report.moved,
        "described_again": len(described),
        "ids_kept": same,
        "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(answer, indent=1) + "\n")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
