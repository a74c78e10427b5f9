"""What codes, query expansion and re-ranking do to the ranking of real photos: mAP and time, side by side.

Run it when the packaged model or a codec changes:  python -m tessera.bench.ranking PHOTOS [--model lite]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from tessera.bench.competitors import REFINEMENTS
from tessera.bench.peers import CODEC_NAMES
from tessera.errors import DataError
from tessera.evaluate.protocol import average_precision
from tessera.index.build import build_index
from tessera.index.refinement import augment_gallery, search_refined

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

SHORT = 100


def measure_ranking(descriptors: Float32s, labels: Int64s, *, queries: int, seed: int = 0) -> dict[str, Any]:
    """Rank N D descriptors for some of them: all of a query's label are its positives, itself not in the gallery.

    Returns for each way of searching the mAP of the whole ranking and of its first hundred, in points, and
    milliseconds a query for the hundred. Codes are fitted on the gallery, as in use.
    """
    order = np.random.default_rng(seed).permutation(len(descriptors))
    asked, kept = order[:queries], np.sort(order[queries:])
    asked = asked[np.isin(labels[asked], labels[kept])]
    if len(asked) == 0:
        raise DataError("No query has another photo of its landmark in the gallery. Give more photos.")
    gallery, ids = descriptors[kept], np.arange(len(kept))
    wanted, found = labels[asked], labels[kept]

    def judge(search: Callable[[Float32s, int], Int64s]) -> dict[str, float]:
        started = time.perf_counter()
        for query in descriptors[asked]:
            search(query[None], SHORT)
        spent = time.perf_counter() - started
        whole, short = search(descriptors[asked], len(kept)), search(descriptors[asked], SHORT)
        return {
            "map": mean_average_precision(whole, wanted, found, len(kept)),
            "map_100": mean_average_precision(short, wanted, found, SHORT),
            "ms": 1e3 * spent / len(asked),
        }

    rows = {}
    for name in CODEC_NAMES:
        index = build_index(name, ids, gallery)
        rows[name] = judge(lambda query, k, index=index: index.search(query, k)[1])  # type: ignore[misc]
    flat = build_index("flat", ids, gallery)
    for name, options in REFINEMENTS.items():
        rows[f"flat, {name}"] = judge(
            lambda query, k, options=options: search_refined(  # type: ignore[misc]
                flat, query, k, fetch=flat.descriptors, **options
            )[1]
        )
    augmented = build_index("flat", ids, augment_gallery(flat, gallery, ids))
    rows["flat, the whole gallery augmented"] = judge(lambda query, k: augmented.search(query, k)[1])
    return {"gallery": len(kept), "queries": len(asked), "dim": descriptors.shape[1], "rows": rows}


def mean_average_precision(ranked: Int64s, wanted: Int64s, labels: Int64s, depth: int) -> float:
    """In points; of at most `depth` positives, as no more can be among so many answers."""
    scores = []
    for row, label in zip(ranked, wanted, strict=True):
        hits = np.flatnonzero(labels[row[row >= 0]] == label)
        scores.append(average_precision(hits, min(int((labels == label).sum()), depth)))
    return 100 * float(np.mean(scores))


def describe_photos(photos: Path, *, model: str, limit: int, size: int, seed: int = 0) -> tuple[Float32s, Int64s]:
    """Descriptors at one scale of photos in the layout of GLDv2, and their landmarks."""
    from tessera.data.sets.gldv2 import Gldv2Config, load_gldv2
    from tessera.extract.extractor import Extractor

    images = load_gldv2(Gldv2Config(root=str(photos)))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(images))[:limit])
    extractor = Extractor(model, size=size, scales=(1.0,))
    rows, labels = [], []
    for i, extraction in zip(chosen, extractor.extract([images.path(int(i)) for i in chosen]), strict=True):
        if extraction.descriptor is not None:
            rows.append(extraction.descriptor)
            labels.append(int(images.labels[i]))
    if not rows:
        raise DataError(f"No photo under {photos} could be read.")
    return np.stack(rows).astype(np.float32), np.asarray(labels)


def to_markdown(report: dict[str, Any]) -> str:
    head = f"{report['queries']} queries against {report['gallery']} photos, descriptors of {report['dim']}."
    lines = [head, "", "| search | mAP | against flat | mAP of the first 100 | against flat | ms a query |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    flat = report["rows"]["flat"]
    for name, row in report["rows"].items():
        whole, short = (f"{row[key]:.2f} | {row[key] - flat[key]:+.2f}" for key in ("map", "map_100"))
        lines.append(f"| {name} | {whole} | {short} | {row['ms']:.1f} |")
    return "\n".join(lines)


def main(
    photos: Annotated[Path, typer.Argument(help="Photos in the layout of GLDv2.")],
    model: Annotated[str, typer.Option(help="A packaged model's name, or the folder of a bundle.")] = "lite",
    limit: Annotated[int, typer.Option(min=50, help="Use at most so many photos.")] = 3000,
    size: Annotated[int, typer.Option(min=64, help="The longer side in pixels.")] = 256,
    queries: Annotated[int, typer.Option(min=1, help="How many of them are queries.")] = 500,
) -> None:
    """Describe photos, and rank them by each codec and with each kind of expansion.

    Example: python -m tessera.bench.ranking gldv2-50/ --limit 1000
    """
    descriptors, labels = describe_photos(photos, model=model, limit=limit, size=size)
    typer.echo(to_markdown(measure_ranking(descriptors, labels, queries=queries)))


if __name__ == "__main__":
    typer.run(main)
