"""Evaluate a model by its name: open what it needs, choose how to rank, run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tessera.data.benchmark import Benchmark
from tessera.errors import UsageError
from tessera.evaluate.cache import default_cache_dir
from tessera.evaluate.refinement import LOCAL, Refinement, rank_refined
from tessera.evaluate.run import (
    IntArray,
    Progress,
    Ranker,
    Run,
    RunConfig,
    plain_ranker,
    query_boxes,
    run_benchmark,
    run_system,
)

if TYPE_CHECKING:
    from tessera.evaluate.local import LocalReranking


def evaluate_model(
    benchmark: Benchmark,
    model: str,
    *,
    codec: str = "flat",
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
    """Run a benchmark with a bundle or a system, given as the command line gives it."""
    from tessera.extract.extractor import Extractor
    from tessera.extract.scales import parse_scales
    from tessera.local.system import system_file

    refinement = Refinement(expand, rerank, augment)
    if local is not None and rerank != "sp":
        raise UsageError(f"--local {local} says which features --rerank sp uses: give that too, or leave --local out.")
    cache_dir = cache_dir or default_cache_dir()
    if system_file(model) is not None:
        if size is not None or scales is not None:
            raise UsageError(
                "a system has its own size and scales: change them in its file, not with --size, --scales."
            )
        return evaluate_system(
            benchmark, model, codec=codec, query=query, refinement=refinement, cache_dir=cache_dir, progress=progress
        )
    extractor = Extractor(
        model, runtime=runtime, device=device, size=size, scales=parse_scales(scales) if scales else None
    )
    details: dict[str, Any] = {"size": extractor.size, "scales": list(extractor.scales)}
    details |= {"expand": expand, "rerank": rerank, "augment": augment} if not refinement.is_plain else {}
    if rerank in LOCAL:
        details["rerank"] = rerank
    config = RunConfig(query=query, codec=codec, cache_dir=cache_dir, details=details)
    reranking = None
    if rerank in LOCAL:
        from tessera.evaluate.local import LocalReranking
        from tessera.local.rerank import open_reranker

        reranking = LocalReranking(open_reranker(str(rerank), extractor=local, model=model), cache_dir)
    ranker = _choose_ranker(refinement, config, reranking)
    run = run_benchmark(benchmark, extractor, extractor.bundle.card.name, config, ranker=ranker, progress=progress)
    return _noted(run, reranking)


def evaluate_system(
    benchmark: Benchmark,
    path: str,
    *,
    codec: str,
    query: Literal["box", "whole"],
    refinement: Refinement,
    cache_dir: Path,
    progress: Progress | None = None,
) -> Run:
    """Run a benchmark with a system of local features. `sp` re-ranks with the system's own."""
    from tessera.evaluate.local import DescribingSystem, InvertedFileSystem, LocalReranking
    from tessera.local.rerank import open_reranker
    from tessera.local.system import System

    system = System.open(path)
    kind = refinement.rerank or system.config.rerank or None
    if kind not in (None, "sp") or refinement.expand or refinement.augment:
        raise UsageError(f"{system.name} is a system of local features: --rerank sp is all that goes with it.")
    reranker = None if kind is None else open_reranker(kind, extractor=system.extractor)
    details: dict[str, Any] = {"size": system.config.size, "system": system.config.kind, "rerank": kind}
    config = RunConfig(query=query, codec=codec, cache_dir=cache_dir, details=details)
    if system.config.kind in ("vlad", "tokens"):
        describer = DescribingSystem(system, cache_dir)
        reranking = None if reranker is None else LocalReranking(reranker, cache_dir)
        ranker = describer.watch(_choose_ranker(Refinement(), config, reranking))
        run = run_benchmark(benchmark, describer, system.name, config, ranker=ranker, progress=progress)
        return _noted(run, describer, reranking)
    ranking = InvertedFileSystem(system, cache_dir, reranker=reranker, progress=progress or (lambda *_: None))
    run = run_system(benchmark, ranking, config, progress=progress)
    measured = {**run.result.details, "bytes_an_image": round(ranking.bytes_an_image)}
    return _noted(replace(run, result=replace(run.result, details=measured)), ranking)


def _choose_ranker(refinement: Refinement, config: RunConfig, reranking: LocalReranking | None) -> Ranker:
    """How descriptors become rankings: plainly, after expansion or global re-ranking, and then by local features."""

    def rank(benchmark: Benchmark, gallery: Any, queries: Any) -> Iterator[IntArray]:
        if not refinement.is_plain:
            rankings = rank_refined(refinement, config.codec, benchmark, gallery, queries, seed=config.seed)
        else:
            rankings = plain_ranker(config)(benchmark, gallery, queries)
        if reranking is None:
            return rankings
        return reranking.rerank(rankings, benchmark, query_boxes(benchmark, config))

    return rank


def _noted(run: Run, *parts: Any) -> Run:
    """The run with what its parts have to say of it; a part may be None."""
    said = tuple(note for part in parts if part is not None for note in part.notes)
    return replace(run, result=replace(run.result, notes=(*run.result.notes, *said)))
