"""Evaluate a model by its name: open what it needs, choose how to rank, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from tessera.data.benchmark import Benchmark
from tessera.errors import UsageError
from tessera.evaluate.cache import default_cache_dir
from tessera.evaluate.refinement import LOCAL, Refinement, rank_refined
from tessera.evaluate.run import Progress, Ranker, Run, RunConfig, run_benchmark


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
    augment: bool = False,
    runtime: str = "onnx",
    device: str = "auto",
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run a benchmark with a bundle, given as the command line gives it."""
    from tessera.extract.extractor import Extractor
    from tessera.extract.scales import parse_scales

    refinement = Refinement(expand, rerank, augment)
    if rerank in LOCAL:
        raise UsageError(f"--rerank {rerank} needs local features, which {model} does not have. Use --rerank global.")
    extractor = Extractor(
        model, runtime=runtime, device=device, size=size, scales=parse_scales(scales) if scales else None
    )
    details: dict[str, Any] = {"size": extractor.size, "scales": list(extractor.scales)}
    details |= {"expand": expand, "rerank": rerank, "augment": augment} if not refinement.is_plain else {}
    config = RunConfig(query=query, codec=codec, cache_dir=cache_dir or default_cache_dir(), details=details)
    ranker: Ranker | None = None
    if not refinement.is_plain:

        def ranker(benchmark: Benchmark, gallery: Any, queries: Any) -> Any:
            return rank_refined(refinement, codec, benchmark, gallery, queries, seed=config.seed)

    return run_benchmark(benchmark, extractor, extractor.bundle.card.name, config, ranker=ranker, progress=progress)
