"""Run a benchmark: hash, describe, rank, score."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tessera.data.benchmark import Benchmark, images_fingerprint
from tessera.data.ground_truth import Box
from tessera.data.unreadable import UnreadableLog
from tessera.errors import DataError
from tessera.evaluate.cache import HashCache, default_cache_dir
from tessera.evaluate.descriptors import Describes, Descriptors, describe_images, take_rows
from tessera.evaluate.protocol import (
    KAPPAS,
    PROTOCOLS,
    QueryScore,
    Relevance,
    Score,
    average_scores,
    relevance_for,
    score_query,
)
from tessera.evaluate.protocol import Protocol as Levels
from tessera.evaluate.ranking import EXACT, rank_by_index, rank_exactly
from tessera.evaluate.result import Result, keep_defined

IntArray = npt.NDArray[np.int64]
Ranker = Callable[[Benchmark, Descriptors, Descriptors], Iterator[IntArray]]
Progress = Callable[[str, int, int], None]  # stage, how many are done, of how many

ALL = Levels(positives=("easy", "hard"), junk=("junk",))
NUM_TOP = 10


@dataclass(frozen=True)
class RunConfig:
    """How to run. query: `box` cuts queries by their boxes, as the standard has it; `whole` leaves them.

    details: what else decides the figures, to be kept in the result.
    """

    query: Literal["box", "whole"] = "box"
    codec: str = EXACT
    kappas: tuple[int, ...] = KAPPAS
    cache_dir: Path = field(default_factory=default_cache_dir)
    seed: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A result, with what a report shows beside it.

    benchmark: as it was evaluated, without images that could not be read. tops: the best ids of each query, without
    the query's own picture. unreadable: which images were skipped and why.
    """

    result: Result
    benchmark: Benchmark
    tops: tuple[IntArray, ...]
    unreadable: dict[str, str]


class RanksImages(Protocol):
    """A system that ranks images without one descriptor each, such as local features in an inverted file."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    def prepare(self, benchmark: Benchmark, boxes: Sequence[Box | None]) -> dict[int, str]:
        """Extract what ranking needs. Why it cannot, by the image's place in the gallery and then the queries."""
        ...

    def rank(self, benchmark: Benchmark, boxes: Sequence[Box | None]) -> Iterator[IntArray]:
        """One ranking of gallery ids a query, best first; it may be truncated."""
        ...


def run_benchmark(
    benchmark: Benchmark,
    extractor: Describes,
    model: str,
    config: RunConfig,
    *,
    ranker: Ranker | None = None,
    progress: Progress | None = None,
) -> Run:
    """Evaluate an extractor on a benchmark. ranker: another way to rank than by the dot product or a codec."""
    progress = progress or (lambda *_: None)
    started = time.perf_counter()
    boxes = query_boxes(benchmark, config)
    paths = benchmark.gallery + benchmark.queries
    hashes = _hash(benchmark, config, progress)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("describing images", done, len(paths))

    described = describe_images(
        extractor,
        paths,
        (None,) * len(benchmark.gallery) + boxes,
        hashes,
        cache_dir=config.cache_dir,
        advance=advance,
    )
    described_s = time.perf_counter() - started
    benchmark, kept, unreadable = drop_unreadable(benchmark, described.failures)
    descriptors = described.descriptors
    if described.failures:
        descriptors = take_rows(descriptors, kept, config.cache_dir)
    split = len(benchmark.gallery)
    rank = ranker or plain_ranker(config)
    rankings = rank(benchmark, descriptors[:split], descriptors[split:])
    details = {
        "codec": config.codec,
        **config.details,
        "described": {"network": described.num_network, "cache": described.num_cached},
    }
    return _finish(
        benchmark,
        rankings,
        config,
        model=model,
        fingerprint=extractor.fingerprint,
        hashes=[hashes[i] for i in kept],
        unreadable=unreadable,
        details=details,
        described_s=described_s,
        progress=progress,
    )


def run_system(
    benchmark: Benchmark, system: RanksImages, config: RunConfig, *, progress: Progress | None = None
) -> Run:
    """Evaluate a system that ranks by itself; it extracts and keeps whatever it needs."""
    progress = progress or (lambda *_: None)
    started = time.perf_counter()
    hashes = _hash(benchmark, config, progress)
    failures = system.prepare(benchmark, query_boxes(benchmark, config))
    described_s = time.perf_counter() - started
    benchmark, kept, unreadable = drop_unreadable(benchmark, failures)
    return _finish(
        benchmark,
        system.rank(benchmark, query_boxes(benchmark, config)),
        config,
        model=system.name,
        fingerprint=system.fingerprint,
        hashes=[hashes[i] for i in kept],
        unreadable=unreadable,
        details=config.details,
        described_s=described_s,
        progress=progress,
    )


def _finish(
    benchmark: Benchmark,
    rankings: Iterator[IntArray],
    config: RunConfig,
    *,
    model: str,
    fingerprint: str,
    hashes: list[str],
    unreadable: dict[str, str],
    details: dict[str, Any],
    described_s: float,
    progress: Progress,
) -> Run:
    """Score rankings as they come, and put together what the result says of itself."""
    started = time.perf_counter()
    # Only the exact search returns the whole gallery for certain.
    partial = details.get("codec") != EXACT
    scores, undefined, tops = score_run(benchmark, rankings, config.kappas, partial=partial, progress=progress)
    details = {
        **details,
        "images": {
            "gallery": len(benchmark.gallery) - benchmark.num_distractors,
            "queries": len(benchmark.queries),
            "distractors": benchmark.num_distractors,
            "unreadable": len(unreadable),
        },
        "fingerprints": {"images": _fingerprint(benchmark, hashes), "extractor": fingerprint},
        "seconds": {"describe": round(described_s, 3), "rank": round(time.perf_counter() - started, 3)},
    }
    notes = benchmark.notes
    if unreadable:
        notes = (*notes, f"{len(unreadable)} images could not be read and are left out.")
    query = "whole" if all(box is None for box in query_boxes(benchmark, config)) else config.query
    result = Result(benchmark.name, model, query, scores, undefined, details, notes)
    return Run(result, benchmark, tops, unreadable)


def query_boxes(benchmark: Benchmark, config: RunConfig) -> tuple[Box | None, ...]:
    """The part of each query that is asked for; None for the whole."""
    return benchmark.boxes if config.query == "box" else (None,) * len(benchmark.queries)


def _hash(benchmark: Benchmark, config: RunConfig, progress: Progress) -> list[str]:
    paths = benchmark.gallery + benchmark.queries
    progress("hashing images", 0, len(paths))
    with contextlib.closing(HashCache(config.cache_dir)) as cache:
        hashes = cache.hash_files(paths)
    progress("hashing images", len(paths), len(paths))
    return hashes


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


def score_run(
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
            relevance: Relevance = relevance_for(benchmark.lists[query], protocol)
            found[name].append(score_query(ranking, relevance, kappas, partial=partial))
        if progress is not None:
            progress("scoring queries", query + 1, len(benchmark.queries))
    scores, undefined = keep_defined(
        {name: functools.partial(average_scores, of_queries, kappas) for name, of_queries in found.items()}
    )
    return scores, undefined, tuple(tops)


def plain_ranker(config: RunConfig) -> Ranker:
    """By the dot product alone, exactly or through a codec."""
    if config.codec == EXACT:
        return lambda _, gallery, queries: rank_exactly(gallery, queries)
    return lambda _, gallery, queries: rank_by_index(config.codec, gallery, queries, seed=config.seed)


def _fingerprint(benchmark: Benchmark, hashes: list[str]) -> str:
    names = [f"gallery/{name}" for name in benchmark.gallery_names] + [
        f"query/{name}" for name in benchmark.query_names
    ]
    return images_fingerprint(names, hashes)
