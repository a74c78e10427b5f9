"""What finding by parts costs: indexing beside the network alone, a search on a large gallery, bytes, memory.

Indexing is measured on pictures; the large gallery is drawn. Its images have as many features as the pictures, in words
as frequent as theirs, and each query has relatives: its own features moved, with a few signs turned, among strangers'.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tessera.bench import parts_peers
from tessera.bench.pictures import make_pictures
from tessera.bench.synthesis import Synthesis
from tessera.data.images import load_photo
from tessera.errors import UsageError
from tessera.gallery.describing.local_describer import LocalDescriber
from tessera.gallery.gallery import Gallery
from tessera.gallery.ingest.importing import DescribedImage
from tessera.local.compact import CODE_BITS, CompactFeatures, pack_bits

SIZE = (1024, 768)
_RELATIVES = 20  # images that show what a query shows
_SHARED = 0.15  # of its features
_TURNED = 0.12  # signs of a shared feature
_BATCH = 1000
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_SUFFIXES = {".jpg", ".jpeg", ".png"}


def measure_parts(
    *,
    images: int,
    photos: Path | None,
    num_photos: int,
    queries: int,
    folder: Path | None,
    peers: bool,
    say: Callable[[str], None],
    seed: int = 0,
) -> dict[str, Any]:
    """folder: where the drawn gallery is made, and found again by the next run. peers: `tessera.bench.parts_peers`."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = folder or work
        kept.mkdir(parents=True, exist_ok=True)
        if photos is None:
            pictures = make_pictures(kept / "pictures", num_photos, SIZE, seed=seed)
        else:
            pictures = sorted(path for path in photos.rglob("*") if path.suffix.lower() in _SUFFIXES)[:num_photos]
            if len(pictures) < 2:
                raise UsageError(f"{photos} has no two JPEGs or PNGs to measure on. Name a folder of photos.")
        say(f"Indexing {len(pictures)} pictures, with local features and without")
        report: dict[str, Any] = {"images": images, "indexing": measure_indexing(work, pictures)}
        path = kept / f"parts-{images}.tessera"
        if not (path / "done").exists():
            say(f"Drawing a gallery of {images} images")
            report["build_s"] = draw_gallery(path, pictures, images, queries, seed)
        asked = [sys.executable, "-m", __name__, str(path), *map(str, pictures[:queries])]
        say(f"Searching for {min(queries, len(pictures))} pictures")
        answer = subprocess.run(asked, check=True, capture_output=True, text=True)  # its memory is its own
        report["search"] = json.loads(answer.stdout)
        if peers:
            say("Asking the published package and brute force, too")
            asked = [sys.executable, "-m", parts_peers.__name__, str(path), str(queries), *map(str, pictures)]
            answer = subprocess.run(
                asked, check=True, capture_output=True, text=True, env={**os.environ, **_ONE_THREAD}
            )
            report["peers"] = json.loads(answer.stdout)
    return report


class _NoFeatures(LocalDescriber):
    """Makes none, so that what is left of indexing is the network and the catalogue."""

    def submit(self, source: Any, limits: Any) -> Future[bytes]:
        made: Future[bytes] = Future()
        made.set_result(CompactFeatures.empty().to_bytes())
        return made


def measure_indexing(work: Path, pictures: Sequence[Path]) -> dict[str, float]:
    """Seconds a picture, by the clock and of processor time, and their ratios to the network alone."""
    listed = work / "pictures.txt"
    listed.write_text("".join(f"{path.resolve()}\n" for path in pictures))
    taken: dict[str, tuple[float, float]] = {}
    for name in ("warm", "alone", "parts"):
        with Gallery(work / name) as gallery:
            if name == "alone":
                gallery._store.local_describer = _NoFeatures()
            gallery.describer.extractor  # noqa: B018 -- opened before the clock starts
            gallery._store.local_describer.model  # noqa: B018
            started = time.perf_counter(), time.process_time()
            gallery.index(listed)
            taken[name] = time.perf_counter() - started[0], time.process_time() - started[1]
    seconds, processor = ([taken[name][kind] / len(pictures) for name in ("parts", "alone")] for kind in (0, 1))
    return {
        "seconds": seconds[0],
        "seconds_alone": seconds[1],
        "ratio": seconds[0] / seconds[1],
        "processor_s": processor[0],
        "processor_s_alone": processor[1],
        "processor_ratio": processor[0] / processor[1],
    }


def draw_gallery(path: Path, pictures: Sequence[Path], images: int, queries: int, seed: int) -> float:
    """A gallery of drawn images; the seconds that its inverted file took."""
    generator = np.random.default_rng(seed)
    with Gallery(path) as gallery:
        model = gallery._store.local_describer.model
        real = [model.encode(model.extract(load_photo(picture, size=model.size))) for picture in pictures[:queries]]
        frequencies = np.bincount(np.concatenate([one.words for one in real]), minlength=model.num_words) + 0.2
        cumulated = np.cumsum(frequencies / frequencies.sum())
        descriptors = itertools.chain.from_iterable(Synthesis(images, gallery.describer.dim, seed=seed).blocks())
        gallery.add(
            DescribedImage(path / f"drawn{row}.jpg", descriptor, *SIZE)
            for row, descriptor in zip(range(images), descriptors, strict=False)
        )
        related = generator.permutation(images)[: _RELATIVES * len(real)]
        origin = {int(row): real[k % len(real)] for k, row in enumerate(related)}
        count = round(float(np.mean([len(one) for one in real])))
        drawn = (_draw(generator, cumulated, count, origin.get(row)) for row in range(images))
        for hashes in _contents(gallery):
            with gallery.writing(), gallery._store.catalog.write() as batch:
                for content_hash, features in zip(hashes, drawn, strict=False):
                    batch.add_local_features(content_hash, model.fingerprint, features.to_bytes())
        started = time.perf_counter()
        with gallery.writing():
            gallery._store.postings.rebuild(gallery._store.catalog)
        seconds = time.perf_counter() - started
    (path / "done").touch()
    return seconds


def _contents(gallery: Gallery) -> Iterator[list[bytes]]:
    """The hashes of all contents, in batches."""
    with gallery._store.catalog.read() as snapshot:
        fingerprint = gallery._store.local_describer.model.fingerprint
        lacking = [row[1] for rows in snapshot.stream_lacking_features(fingerprint) for row in rows]
    for start in range(0, len(lacking), _BATCH):
        yield lacking[start : start + _BATCH]


def _draw(
    generator: np.random.Generator, cumulated: Any, count: int, origin: CompactFeatures | None
) -> CompactFeatures:
    """Features of a stranger; of a relative, some are the origin's, moved, their signs a little changed."""
    words = np.minimum(np.searchsorted(cumulated, generator.random(count)), len(cumulated) - 1).astype(np.uint16)
    codes = generator.integers(0, 2**64, count, np.uint64)
    positions = (generator.random((count, 2)) * SIZE).astype(np.float32)
    scales = np.exp2(generator.exponential(1.0, count) + 0.7).astype(np.float32)
    if origin is not None and len(origin):
        shared = generator.permutation(len(origin))[: int(_SHARED * len(origin))]
        zoom = 2 ** generator.uniform(-0.5, 0.2)
        rows = np.arange(min(len(shared), count))
        shared = shared[rows]
        words[rows], scales[rows] = origin.words[shared], origin.scales[shared] * zoom
        turned = pack_bits(generator.random((len(rows), CODE_BITS)) < _TURNED)
        codes[rows] = origin.codes[shared] ^ turned
        positions[rows] = origin.positions[shared] * zoom + generator.normal(0, 1.0, (len(rows), 2)) + 20
    return CompactFeatures(words, codes, positions, scales, SIZE)


def measure_search(path: Path, pictures: Sequence[Path]) -> dict[str, Any]:
    """The time of a search from file to hits, of one more image in the inverted file, bytes on disk, peak of memory."""
    import resource

    taken, verified = [], []
    with Gallery(path) as gallery:
        started = time.perf_counter()
        gallery.search(pictures[0])
        first = time.perf_counter() - started
        for picture in pictures:
            started = time.perf_counter()
            answer = gallery.search(picture)
            taken.append(time.perf_counter() - started)
            verified.append(sum(bool(hit.verified) for hit in answer))
        parts = gallery._store.postings
        features = CompactFeatures.from_bytes(_any_features(gallery))
        with gallery._store.pin() as view:
            parts.refresh(view.snapshot)
        started = time.perf_counter()
        for number in range(100):
            parts._tail.add([((1 << 40) + number, features)])
        adding = (time.perf_counter() - started) / 100
        stored = gallery.stats()["local_features"]
    return {
        "first_s": first,
        "median_s": float(np.median(taken)),
        "slowest_s": max(taken),
        "verified": float(np.mean(verified)),
        "add_s": adding,
        "bytes_an_image": (stored["bytes"] + stored["index"]["bytes"]) / max(stored["images"], 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _any_features(gallery: Gallery) -> bytes:
    with gallery._store.pin() as view:
        image_id = int(view.snapshot.spread_ids(1)[0])
        return view.snapshot.local_features([image_id], gallery._store.local_describer.model.fingerprint)[image_id]


def to_markdown(report: dict[str, Any]) -> str:
    indexing, search = report["indexing"], report["search"]
    rows = [
        ("indexing a picture, ms", f"{1e3 * indexing['seconds']:.0f}"),
        ("the network alone, ms", f"{1e3 * indexing['seconds_alone']:.0f}"),
        ("ratio", f"{indexing['ratio']:.2f}"),
        ("ratio of processor time", f"{indexing['processor_ratio']:.2f}"),
        ("images in the drawn gallery", f"{report['images']:,}"),
        ("the first search, s", f"{search['first_s']:.2f}"),
        ("a search, s", f"{search['median_s']:.3f}"),
        ("the slowest, s", f"{search['slowest_s']:.3f}"),
        ("hits verified, of ten", f"{search['verified']:.1f}"),
        ("one more image in the inverted file, ms", f"{1e3 * search['add_s']:.2f}"),
        ("local features and inverted file, KB an image", f"{search['bytes_an_image'] / 1024:.1f}"),
        ("peak of memory, mapped files included, GB", f"{search['peak_bytes'] / 2**30:.2f}"),
    ]
    table = "\n".join(["| what | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)])
    return f"{table}\n\n{parts_peers.to_markdown(report['peers'])}" if "peers" in report else table


if __name__ == "__main__":
    print(json.dumps(measure_search(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])))
