"""Evaluate a model on a benchmark, from top to bottom: data, describe, rank, refine, score, report.

`evaluate_model` opens what the command line names; `run_benchmark` is the evaluation itself; the steps follow in its
order.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tessera.data.ground_truth import Box
from tessera.data.sets.benchmark import Benchmark, IntArray, images_fingerprint
from tessera.data.unreadable import UnreadableLog
from tessera.errors import DataError, UsageError
from tessera.evaluate.cache import HashCache, default_cache_dir
from tessera.evaluate.method import EXACT, DescriptorMethod, ImagesOf, Method, Progress
from tessera.evaluate.protocol import KAPPAS, PROTOCOLS, QueryScore, Score, average_scores, relevance_for, score_query
from tessera.evaluate.protocol import Protocol as Levels
from tessera.evaluate.result import EvaluationResult, keep_defined
from tessera.refiners import find_expansion, find_reranker

if TYPE_CHECKING:
    from tessera.evaluate.local import LocalReranking

ALL = Levels(positives=("easy", "hard"), junk=("junk",))
NUM_TOP = 10


@dataclass(frozen=True)
class RunConfig:
    """How to run. query: `box` cuts queries by their boxes, as the standard has it; `whole` leaves them."""

    query: Literal["box", "whole"] = "box"
    codec: str = EXACT
    kappas: tuple[int, ...] = KAPPAS
    cache_dir: Path = field(default_factory=default_cache_dir)
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """A result, with what a report shows beside it.

    benchmark: as it was evaluated, without images that could not be read. tops: the best ids of each query, without
    the query's own picture. unreadable: which images were skipped and why.
    """

    result: EvaluationResult
    benchmark: Benchmark
    tops: tuple[IntArray, ...]
    unreadable: dict[str, str]


def evaluate_model(
    benchmark: Benchmark,
    model: str,
    *,
    by: str = "global",
    codec: str = EXACT,
    size: int | None = None,
    scales: str | None = None,
    query: Literal["box", "whole"] = "box",
    expand: str | None = None,
    rerank: str | None = None,
    local: str | None = None,
    augment: bool = False,
    runtime: str = "onnx",
    device: str = "auto",
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run a benchmark with a bundle or a system, given as the command line gives it.

    by: `global` ranks by the descriptor alone, as published figures do; `auto` and `local` run the search of a gallery.
    """
    from tessera.local.system import system_file

    find_expansion(expand)
    refiner = find_reranker(rerank)
    config = RunConfig(query, codec, cache_dir=cache_dir or default_cache_dir())
    if local is not None and rerank != "sp":
        raise UsageError(f"--local {local} says which features --rerank sp uses: give that too, or leave --local out.")
    if by != "global":
        if expand or rerank or augment or size or scales or codec != EXACT or system_file(model) is not None:
            raise UsageError(
                f"--by {by} is the search of a gallery as it is: it takes a bundle, and no codec, size, scales, system "
                "or refiner. Leave them out, or leave --by out."
            )
        from tessera.evaluate.search_method import SearchMethod

        found = SearchMethod(model, by, device=device, runtime=runtime)
        return run_benchmark(benchmark, found, config, progress=progress)
    if system_file(model) is not None:
        if size is not None or scales is not None:
            raise UsageError(
                "a system has its own size and scales: change them in its file, not with --size, --scales."
            )
        from tessera.evaluate.local import open_system

        method, reranking = open_system(model, config.cache_dir, rerank=rerank, refined=expand is not None or augment)
        return run_benchmark(benchmark, method, config, reranking=reranking, progress=progress)

    from tessera.extract.extractor import Extractor
    from tessera.extract.scales import parse_scales

    chosen = parse_scales(scales) if scales else None
    extractor = Extractor(model, runtime=runtime, device=device, size=size, scales=chosen)
    by_local = refiner is not None and refiner.compares == "local features"
    method = DescriptorMethod(
        extractor,
        extractor.bundle.card.name,
        expand=expand,
        augment=augment,
        rerank=None if by_local else rerank,
        details={"size": extractor.size, "scales": list(extractor.scales)},
    )
    reranking = None
    if by_local:
        from tessera.evaluate.local import LocalReranking

        reranking = LocalReranking.open(str(rerank), config.cache_dir, extractor=local, model=model)
    return run_benchmark(benchmark, method, config, reranking=reranking, progress=progress)


def run_benchmark(
    benchmark: Benchmark,
    method: Method,
    config: RunConfig,
    *,
    reranking: LocalReranking | None = None,
    progress: Progress | None = None,
) -> Run:
    """Evaluate a method on a benchmark. reranking: by local features, of the best of every ranking."""
    progress = progress or (lambda *_: None)
    started = time.perf_counter()

    # Data: the images, each known by its content.
    images = ImagesOf(benchmark, query_boxes(benchmark, config))
    hashes = hash_images(images.paths, config.cache_dir, progress)

    # Describe: whatever the method needs of each image, kept in the cache. What cannot be read is left out.
    failures = method.describe(images, hashes, config.cache_dir, progress)
    described_s = time.perf_counter() - started
    benchmark, kept, unreadable = drop_unreadable(benchmark, failures)
    boxes = query_boxes(benchmark, config)

    # Rank, then refine: one ranking of the gallery a query, made when it is asked for.
    started = time.perf_counter()
    rankings = method.rank(benchmark, boxes, kept, codec=config.codec, seed=config.seed)
    if reranking is not None:
        rankings = reranking.rerank(rankings, benchmark, boxes)

    # Score. Only the exact search returns the whole gallery for certain.
    partial = method.details.get("codec") != EXACT
    scores, undefined, tops = score_rankings(benchmark, rankings, config.kappas, partial=partial, progress=progress)

    # Report: the figures, and what they were made of.
    seconds = {"describe": round(described_s, 3), "rank": round(time.perf_counter() - started, 3)}
    details = {
        **method.details,
        **({} if reranking is None else {"rerank": reranking.name}),
        "images": count_images(benchmark, unreadable),
        "fingerprints": {
            "images": fingerprint_images(benchmark, [hashes[row] for row in kept]),
            "extractor": method.fingerprint,
        },
        "seconds": seconds,
    }
    notes = [*benchmark.notes]
    if unreadable:
        notes.append(f"{len(unreadable)} images could not be read and are left out.")
    notes += [*method.notes, *(() if reranking is None else reranking.notes)]
    query = "whole" if all(box is None for box in boxes) else config.query
    result = EvaluationResult(benchmark.name, method.name, query, scores, undefined, details, tuple(notes))
    return Run(result, benchmark, tops, unreadable)


# -- data ------------------------------------------------------------------------------------------------------------


def query_boxes(benchmark: Benchmark, config: RunConfig) -> tuple[Box | None, ...]:
    """The part of each query that is asked for; None for the whole."""
    return benchmark.boxes if config.query == "box" else (None,) * len(benchmark.queries)


def hash_images(paths: Sequence[Path], cache_dir: Path, progress: Progress) -> list[str]:
    progress("hashing images", 0, len(paths))
    with contextlib.closing(HashCache(cache_dir)) as cache:
        hashes = cache.hash_files(paths)
    progress("hashing images", len(paths), len(paths))
    return hashes


# -- describe --------------------------------------------------------------------------------------------------------


def drop_unreadable(benchmark: Benchmark, failures: dict[int, str]) -> tuple[Benchmark, list[int], dict[str, str]]:
    """The benchmark without images that could not be read, which rows are kept, and the reasons by name.

    Of a published set none may fail; of distractors and of one's own folders one in a hundred may.
    """
    total, num_gallery = len(benchmark.gallery) + len(benchmark.queries), len(benchmark.gallery)
    names = benchmark.gallery_names + benchmark.query_names
    main = num_gallery - benchmark.num_distractors
    fatal = [row for row in failures if benchmark.strict and not main <= row < num_gallery]
    if fatal:
        shown = "; ".join(f"{names[row]} ({failures[row]})" for row in fatal[:10])
        raise DataError(f"{benchmark.name}: {len(fatal)} images cannot be read: {shown}.")
    log = UnreadableLog(total=len(set(names)))
    for row, reason in failures.items():
        log.record(names[row], reason)
    if failures:
        gallery = [row for row in failures if row < num_gallery]
        benchmark = benchmark.without(gallery, [row - num_gallery for row in failures if row >= num_gallery])
    return benchmark, [row for row in range(total) if row not in failures], log.reasons


# -- score -----------------------------------------------------------------------------------------------------------


def score_rankings(
    benchmark: Benchmark,
    rankings: Iterator[IntArray],
    kappas: Sequence[int],
    *,
    partial: bool = False,
    progress: Progress | None = None,
) -> tuple[dict[str, Score], dict[str, str], tuple[IntArray, ...]]:
    """Score rankings as they come, so that a million images times many queries need not be held at once."""
    protocols = dict(PROTOCOLS) if benchmark.levels else {"all": ALL}
    found: dict[str, list[QueryScore | None]] = {name: [] for name in protocols}
    tops = []
    for query, ranking in enumerate(rankings):
        own = int(benchmark.own_ids[query])
        best = ranking[: NUM_TOP + 1]
        tops.append(best[best != own][:NUM_TOP])
        for name, protocol in protocols.items():
            relevance = relevance_for(benchmark.lists[query], protocol)
            found[name].append(score_query(ranking, relevance, kappas, partial=partial))
        if progress is not None:
            progress("scoring queries", query + 1, len(benchmark.queries))
    scores, undefined = keep_defined(
        {name: functools.partial(average_scores, of_queries, kappas) for name, of_queries in found.items()}
    )
    return scores, undefined, tuple(tops)


# -- report ----------------------------------------------------------------------------------------------------------


def count_images(benchmark: Benchmark, unreadable: dict[str, str]) -> dict[str, Any]:
    return {
        "gallery": len(benchmark.gallery) - benchmark.num_distractors,
        "queries": len(benchmark.queries),
        "distractors": benchmark.num_distractors,
        "unreadable": len(unreadable),
    }


def fingerprint_images(benchmark: Benchmark, hashes: list[str]) -> str:
    """Of names and contents: figures with different fingerprints do not compare."""
    names = [f"gallery/{name}" for name in benchmark.gallery_names]
    return images_fingerprint(names + [f"query/{name}" for name in benchmark.query_names], hashes)
