"""ASMK* beside the published package, and what re-ranking costs: both in one process, on the same features.

Assigning features to words is most of the work of either with 65,536 words. Each does it in its own way, on the same
sample, and what a feature takes is counted for all; the words must be the same. The gallery's words are those that its
features were drawn from; queries are really assigned. The package aggregates image by image in a loop of Python: that
is timed on the first batches and counted for all; it gets the rest aggregated. Times are the processor's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import MissingExtraError
from tessera.local.aggregation import Aggregate, aggregate_words
from tessera.local.codebook import INT8_MIN_FEATURES, Codebook
from tessera.local.inverted_file import InvertedFile, KernelConfig
from tessera.refiners import RERANKERS

DIM = 128
_BATCH = 250  # images
NPROBE = 32  # of the approximate assignment
_ROUNDS = 5
_PEER_SAMPLE = 500  # images that the package aggregates itself
_SHARED_WORDS = 0.3  # of an image's features, in words that its neighbours have too


class _Draw:
    """Images whose features lie near the words they were drawn from; runs of ten images share words."""

    def __init__(self, words: int, features: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.centroids = self._random.standard_normal((words, DIM)).astype(np.float32)
        self.features = features
        self._weights = 1 / (np.arange(words) + words / 20) ** 0.7  # a few words are common, as in photos
        self._weights /= self._weights.sum()

    def images(self, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Features count*F D and their words."""
        shared = int(_SHARED_WORDS * self.features)
        words = self._random.choice(len(self.centroids), (count, self.features), p=self._weights)
        for start in range(0, count, 10):
            words[start : start + 10, :shared] = words[start, :shared]
        flat = words.ravel()
        noise = self._random.standard_normal((len(flat), DIM), dtype=np.float32)
        return self.centroids[flat] + np.float32(0.5) * noise, flat


def measure_asmk(
    *, images: int, features: int, words: int, queries: int, seed: int = 0, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Build and search both inverted files on the same images; times in seconds, sizes in bytes an image."""
    try:
        from asmk.codebook import Codebook as PeerCodebook
        from asmk.index import initialize_index
        from asmk.inverted_file import IVF
        from asmk.kernel import ASMKKernel
    except ImportError as error:
        raise MissingExtraError("the comparison with the published ASMK", "bench") from error

    draw = _Draw(words, features, seed)
    codebook, config = Codebook(draw.centroids), KernelConfig()
    peer_book = PeerCodebook(initialize_index(None), size=words)
    peer_book.index(draw.centroids)
    kernel = ASMKKernel(peer_book, binary=True)
    peer = IVF.initialize_empty(codebook_size=words, use_idf=False)
    ours = InvertedFile(codebook, config)
    spent = {"peer": {"aggregate_s": 0.0, "add_s": 0.0}, "tessera": {"aggregate_s": 0.0, "add_s": 0.0}}
    asked: list[npt.NDArray[np.float32]] = []
    aggregated, assignment = 0, {"peer_s": 0.0, "tessera_s": 0.0, "grouped_s": 0.0}
    for start in range(0, images, _BATCH):
        count = min(_BATCH, images - start)
        vectors, drawn = draw.images(count)
        ids = np.repeat(np.arange(start, start + count), features)
        if start == 0:
            codebook.assign(vectors[:INT8_MIN_FEATURES])  # opens what a gallery of this size would long have opened
            assignment = _measure_assignment(codebook, peer_book, vectors[:2000], drawn[:2000])
        if len(asked) < queries:
            picked = vectors.reshape(count, features, DIM)[:: max(1, count // 8)][:8]
            asked += [rows + np.float32(0.3) * draw._random.standard_normal(rows.shape, np.float32) for rows in picked]
        with _Clock(spent["tessera"], "aggregate_s"):
            mine = aggregate_words(codebook, vectors, drawn[:, None].astype(np.int32), ids, binary=True)
        with _Clock(spent["tessera"], "add_s"):
            ours.add_aggregate(mine)
        theirs = _for_the_package(mine)
        if start < _PEER_SAMPLE:
            with _Clock(spent["peer"], "aggregate_s"):
                theirs = kernel.aggregate(vectors, drawn[:, None], ids)
            aggregated += count
        with _Clock(spent["peer"], "add_s"):
            peer.add(*theirs)
        if start % (8 * _BATCH) == 0:
            say(f"{start + count} of {images} images")
    with _Clock(spent["tessera"], "add_s"):
        ours.compact()
    spent["peer"]["aggregate_s"] *= images / aggregated
    answer: dict[str, Any] = {
        "images": images,
        "aggregated_by_the_package": aggregated,
        "features": features,
        "words": words,
        "assignment_of_a_feature": assignment,
        "build": spent,
        "build_ratio": sum(spent["peer"].values()) / sum(spent["tessera"].values()),
        "bytes_an_image": {
            "tessera": ours.num_bytes / images,
            "peer": sum(
                v.nbytes + i.nbytes for v, i in zip(peer.ivf_vecs, peer.ivf_image_ids, strict=True) if v is not None
            )
            / images,
        },
    }
    answer["search"] = _measure_search(codebook, ours, kernel, peer, asked[:queries], config)
    theirs_s, ours_s, grouped_s = (
        images * features * assignment[f"{name}_s"] for name in ("peer", "tessera", "grouped")
    )
    peer_s, tessera_s = (sum(spent[name].values()) for name in ("peer", "tessera"))
    answer["build_ratio_with_assignment"] = (theirs_s + peer_s) / (ours_s + tessera_s)
    answer["build_ratio_with_groups"] = (theirs_s + peer_s) / (grouped_s + tessera_s)
    return answer


def _measure_assignment(codebook: Codebook, peer: Any, vectors: Any, drawn: Any) -> dict[str, float]:
    """Seconds a feature of the package, exactly and by groups of words, each the median of a few rounds, and how often
    the words are the same."""
    codebook.assign(vectors[:1], nprobe=NPROBE)  # groups the words, once for a codebook
    rounds: dict[str, list[float]] = {"peer_s": [], "tessera_s": [], "grouped_s": []}
    for _ in range(_ROUNDS):
        spent = dict.fromkeys(rounds, 0.0)
        with _Clock(spent, "peer_s"):
            expected = peer.quantize(vectors, multiple_assignment=1)[1][:, 0]
        with _Clock(spent, "tessera_s"):
            nearest = codebook.assign(vectors)[:, 0]
        with _Clock(spent, "grouped_s"):
            near = codebook.assign(vectors, nprobe=NPROBE)[:, 0]
        for name, seconds in spent.items():
            rounds[name].append(seconds / len(vectors))
    return {
        **{name: float(np.median(seconds)) for name, seconds in rounds.items()},
        "same_as_the_package": float((nearest == expected).mean()),
        "drawn_words_are_nearest": float((nearest == drawn).mean()),
        "groups_find_the_nearest": float((near == nearest).mean()),
    }


def _for_the_package(entries: Aggregate) -> tuple[Any, Any, Any]:
    """The same words as the package lays them out: 32 bits at a time, the first dimension highest."""
    bits = np.ascontiguousarray(entries.values).view(np.uint8).view(">u4").astype(np.uint32)
    return bits[:, : DIM // 32], entries.words.astype(np.int64), entries.image_ids.copy()


def _measure_search(
    codebook: Codebook, ours: InvertedFile, kernel: Any, peer: Any, asked: list[Any], config: KernelConfig
) -> dict[str, Any]:
    def similarity(*given: Any) -> Any:
        return kernel.similarity(*given, alpha=config.alpha, similarity_threshold=config.threshold)

    times: dict[str, list[float]] = {"peer_assign": [], "assign": [], "grouped": [], "peer": [], "tessera": []}
    worst, same_best, same_words = 0.0, [], []
    ours.norms()
    for vectors in asked:
        began = time.process_time()
        expected_words = kernel.codebook.quantize(vectors, multiple_assignment=config.query_assignment)[1]
        times["peer_assign"].append(time.process_time() - began)
        began = time.process_time()
        words = codebook.assign(vectors, config.query_assignment)
        times["assign"].append(time.process_time() - began)
        same_words.append((words == expected_words).mean())
        began = time.process_time()
        near = codebook.assign(vectors, config.query_assignment, nprobe=NPROBE)
        times["grouped"].append(time.process_time() - began)
        began = time.process_time()
        query = aggregate_words(codebook, vectors, words, np.zeros(len(vectors), np.int64), binary=True)
        ids, scores = ours.rank_aggregate(query)
        times["tessera"].append(time.process_time() - began)
        began = time.process_time()
        entries = kernel.aggregate_image(vectors, expected_words)
        ranks, expected = peer.search(*entries, similarity_func=similarity, topk=None)
        times["peer"].append(time.process_time() - began)
        by_id = np.empty(len(ids))
        by_id[ids] = scores
        worst = max(worst, float(np.abs(by_id[ranks] - expected).max()))
        query = aggregate_words(codebook, vectors, near, np.zeros(len(vectors), np.int64), binary=True)
        same_best.append(len(np.intersect1d(ours.rank_aggregate(query, 10)[0], ids[:10])) / 10)
    median = {name: float(np.median(values)) for name, values in times.items()}
    theirs = median["peer"] + median["peer_assign"]
    return {
        **{f"{name}_ms": round(1e3 * value, 3) for name, value in median.items()},
        "queries": len(asked),
        "ratio": median["peer"] / median["tessera"],
        "ratio_with_assignment": theirs / (median["tessera"] + median["assign"]),
        "ratio_with_groups": theirs / (median["tessera"] + median["grouped"]),
        "same_words_as_the_package": float(np.mean(same_words)),
        "largest_difference_of_scores": worst,
        "best_ten_kept_with_groups": float(np.mean(same_best)),
    }


def measure_reranking(*, candidates: int, features: int, seed: int = 0, repeats: int = 3) -> dict[str, Any]:
    """The time of re-ranking with features at hand, for `sp` on SIFT-like and `dsm` on channel-like features.

    features: of `sp`; `dsm` has as many as its extractor gives.

    A tenth of the candidates show the query's scene from elsewhere. CPU time beside the clock's: on a busy machine
    only the former means anything.
    """
    import functools

    from tessera.extract.runtime import default_threads
    from tessera.local.dsm import FEATURES, DsmConfig, verify_channels
    from tessera.local.features import LocalFeatures
    from tessera.local.spatial_reranking import Reranker
    from tessera.local.verification import VerificationConfig, verify

    random = np.random.default_rng(seed)

    def draw(kind: str, base: LocalFeatures | None) -> LocalFeatures:
        count = features if kind == "sp" else FEATURES
        points = random.uniform(0, 384, (count, 2)).astype(np.float32)
        if kind == "sp":
            values: npt.NDArray[Any] = np.abs(random.standard_normal((count, DIM))).astype(np.float32)
        else:
            values = (np.arange(count, dtype=np.int16) // 2)[:, None]  # two maxima a channel
        if base is not None:
            half = count // 2
            points[:half] = base.positions[:half] * np.float32(0.9) + np.float32(10)
            values[:half] = base.descriptors[:half]
        ones = np.ones(count, np.float32)
        return LocalFeatures(values, points, 8 * ones, ones, None, (384, 384))

    answer: dict[str, Any] = {"candidates": candidates, "features": features, "threads": default_threads()}
    nobody: Any = None
    for kind, compare, least in (
        ("sp", functools.partial(verify, config=VerificationConfig()), VerificationConfig().min_inliers),
        ("dsm", functools.partial(verify_channels, config=DsmConfig()), DsmConfig().min_inliers),
    ):
        reranker = Reranker(kind, nobody, compare, least)
        query = draw(kind, None)
        others = [draw(kind, query if i % 10 == 0 else None) for i in range(candidates)]
        clocks, works, found = [], [], np.zeros(0, np.int64)
        for _ in range(repeats):
            began, used = time.perf_counter(), time.process_time()
            found = reranker.count_inliers(query, others, threads=default_threads())
            clocks.append(time.perf_counter() - began)
            works.append(time.process_time() - used)
        answer[kind] = {"s": min(clocks), "cpu_s": min(works), "verified": int((found > 0).sum())}
    return answer


def measure_local(
    *,
    images: int,
    features: int,
    words: int,
    queries: int,
    candidates: int,
    only: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Everything of `tessera bench local`."""
    answer: dict[str, Any] = {}
    if only in (None, "rerank"):
        answer["rerank"] = measure_reranking(candidates=candidates, features=features)
    if only in (None, "asmk"):
        answer["asmk"] = measure_asmk(images=images, features=features, words=words, queries=queries, say=say)
    return answer


def to_markdown(report: dict[str, Any]) -> str:
    lines = []
    if "rerank" in report:
        rerank = report["rerank"]
        lines += [
            f"Re-ranking {rerank['candidates']} candidates, {rerank['features']} features each:",
            "",
            "| way | seconds | CPU seconds |",
            "|---|---|---|",
            *(
                f"| {kind} | {rerank[kind]['s']:.2f} | {rerank[kind]['cpu_s']:.2f} |"
                for kind in rerank
                if kind in RERANKERS
            ),
            "",
        ]
    if "asmk" in report:
        asmk = report["asmk"]
        search = asmk["search"]
        build = {name: sum(times.values()) for name, times in asmk["build"].items()}
        lines += [
            f"ASMK*, {asmk['images']} images of {asmk['features']} features, {asmk['words']} words; CPU time:",
            "",
            "| stage | asmk 0.1.1 | Tessera | ratio |",
            "|---|---|---|---|",
            f"| build, s | {build['peer']:.1f} | {build['tessera']:.1f} | {asmk['build_ratio']:.1f} |",
            f"| search, ms a query | {search['peer_ms']:.1f} | {search['tessera_ms']:.1f} | {search['ratio']:.1f} |",
            f"| assignment, ms a query | {search['peer_assign_ms']:.1f} | {search['assign_ms']:.1f} | "
            f"{search['peer_assign_ms'] / search['assign_ms']:.1f} |",
            f"| build with it | | | {asmk['build_ratio_with_assignment']:.1f} |",
            f"| search with it | | | {search['ratio_with_assignment']:.1f} |",
            f"| build with nprobe {NPROBE} | | | {asmk['build_ratio_with_groups']:.1f} |",
            f"| search with nprobe {NPROBE} | | | {search['ratio_with_groups']:.1f} |",
            f"| bytes an image | {asmk['bytes_an_image']['peer']:.0f} | {asmk['bytes_an_image']['tessera']:.0f} | |",
        ]
    return "\n".join(lines)


class _Clock:
    """Adds the processor's time of its block to an entry."""

    def __init__(self, table: dict[str, float], key: str) -> None:
        self._table, self._key = table, key

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._table[self._key] += time.process_time() - self._began
