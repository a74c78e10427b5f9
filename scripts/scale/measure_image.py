"""What one image costs: processor time of its descriptor and of its local features, and bytes of each on disk.

    python scripts/scale/measure_image.py examples/photos -o results/scale/image.csv

Processor time of one thread, opening the network aside, so that a busy machine says the same as an idle one.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

from tessera.extract.extractor import Extractor
from tessera.gallery.gallery import Gallery
from tessera.gallery.search.query import QueryPicture
from tessera.local.compact import CompactFeatures


def measure(photos: list[Path]) -> dict[str, float]:
    extractor = Extractor("lite", threads=1)
    list(extractor.extract(photos[:1]))
    started = time.process_time()
    made = [extraction for extraction in extractor.extract(photos) if extraction.error is None]
    described_s = (time.process_time() - started) / len(made)
    with tempfile.TemporaryDirectory() as folder, Gallery(Path(folder) / "gallery", threads=1) as gallery:
        model = gallery._store.local_describer.model
        started = time.process_time()
        for photo in photos:
            features = model.extract(QueryPicture(photo).pixels(model.size))
        local_s = (time.process_time() - started) / len(photos)
        assert len(features)
        gallery.index(*photos)
        count = len(gallery)
        with gallery._catalog.read() as snapshot:
            pages = [page for pages in snapshot.stream_local_features(model.fingerprint) for _, page in pages]
            features_a_photo = sum(len(CompactFeatures.from_bytes(page).words) for page in pages) / count
        lists = sum(
            path.stat().st_size for path in (Path(folder) / "gallery" / "postings").rglob("*") if path.is_file()
        )
    return {
        "photos": count,
        "megapixels": sum(extraction.width * extraction.height for extraction in made) / len(made) / 1e6,
        "descriptor_ms": 1e3 * described_s,
        "local_features_ms": 1e3 * local_s,
        "features": features_a_photo,
        "descriptor_bytes": 2 * extractor.dim,
        "local_features_bytes": sum(map(len, pages)) / count,
        "lists_bytes": lists / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    photos = sorted(path for path in options.photos.rglob("*") if path.suffix.lower() in (".jpg", ".png", ".webp"))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["what", "value"])
        table.writerows([what, f"{value:.4g}"] for what, value in measure(photos).items())


if __name__ == "__main__":
    main()
