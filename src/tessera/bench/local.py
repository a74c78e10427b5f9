"""ASMK* beside the published package, and what re-ranking costs: both in one process, on the same features.

Assigning features to words is a flat FAISS search in both, the same call with the same result, so it is timed once and
apart; with 65,536 words it is most of the work of either. The gallery's words are those its features were drawn from (a
sample is checked against the search); queries are really assigned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import MissingExtraError
from tessera.local.aggregation import aggregate_words
from tessera.local.codebook import Codebook
from tessera.local.inverted_file import InvertedFile, KernelConfig

DIM = 128
_BATCH = 250  # images
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
        from asmk.inverted_file import IVF
        from asmk.kernel import ASMKKernel
    except ImportError as error:
        raise MissingExtraError("the comparison with the published ASMK", "bench") from error

    draw = _Draw(words, features, seed)
    codebook, config = Codebook(draw.centroids), KernelConfig()
    peer_book = PeerCodebook(None, size=words)
    peer_book.centroids = draw.centroids
    kernel = ASMKKernel(peer_book, binary=True)
    peer = IVF.initialize_empty(codebook_size=words, use_idf=False)
    ours = InvertedFile(codebook, config)
    spent = {"peer": {"aggregate_s": 0.0, "add_s": 0.0}, "tessera": {"aggregate_s": 0.0, "add_s": 0.0}}
    asked: list[npt.NDArray[np.float32]] = []
    agreement = 0.0
    for start in range(0, images, _BATCH):
        count = min(_BATCH, images - start)
        vectors, drawn = draw.images(count)
        ids = np.repeat(np.arange(start, start + count), features)
        if start == 0:
            sample = slice(0, min(2000, len(vectors)))
            began = time.perf_counter()
            assigned = codebook.assign(vectors[sample])[:, 0]
            assign_s = (time.perf_counter() - began) / len(assigned)
            agreement = float((assigned == drawn[sample]).mean())
        if len(asked) < queries:
            picked = vectors.reshape(count, features, DIM)[:: max(1, count // 8)][:8]
            asked += [rows + np.float32(0.3) * draw._random.standard_normal(rows.shape, np.float32) for rows in picked]
        with _Clock(spent["tessera"], "aggregate_s"):
            mine = aggregate_words(codebook, vectors, drawn[:, None].astype(np.int32), ids, binary=True)
        with _Clock(spent["tessera"], "add_s"):
            ours.add_aggregate(mine)
        with _Clock(spent["peer"], "aggregate_s"):
            theirs = kernel.aggregate(vectors, drawn[:, None], ids)
        with _Clock(spent["peer"], "add_s"):
            peer.add(*theirs)
        if start % (8 * _BATCH) == 0:
            say(f"{start + count} of {images} images")
    with _Clock(spent["tessera"], "add_s"):
        ours.compact()
    answer: dict[str, Any] = {
        "images": images,
        "features": features,
        "words": words,
        "drawn_words_are_nearest": agreement,
        "assign_s_a_feature": assign_s,
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
    total = {name: images * features * assign_s + sum(spent[name].values()) for name in ("peer", "tessera")}
    answer["build_ratio_with_assignment"] = total["peer"] / total["tessera"]
    return answer


def _measure_search(
    codebook: Codebook, ours: InvertedFile, kernel: Any, peer: Any, asked: list[Any], config: KernelConfig
) -> dict[str, Any]:
    def similarity(*given: Any) -> Any:
        return kernel.similarity(*given, alpha=config.alpha, similarity_threshold=config.threshold)

    times: dict[str, list[float]] = {"assign": [], "peer": [], "tessera": []}
    worst = 0.0
    ours.norms()
    for vectors in asked:
        began = time.perf_counter()
        words = codebook.assign(vectors, config.query_assignment)
        times["assign"].append(time.perf_counter() - began)
        began = time.perf_counter()
        query = aggregate_words(codebook, vectors, words, np.zeros(len(vectors), np.int64), binary=True)
        ids, scores = ours.rank_aggregate(query)
        times["tessera"].append(time.perf_counter() - began)
        began = time.perf_counter()
        ranks, expected = peer.search(*kernel.aggregate_image(vectors, words), similarity_func=similarity, topk=None)
        times["peer"].append(time.perf_counter() - began)
        by_id = np.empty(len(ids))
        by_id[ids] = scores
        worst = max(worst, float(np.abs(by_id[ranks] - expected).max()))
    median = {f"{name}_ms": round(1e3 * float(np.median(values)), 3) for name, values in times.items()}
    return {
        **median,
        "queries": len(asked),
        "ratio": float(np.median(times["peer"]) / np.median(times["tessera"])),
        "ratio_with_assignment": float(
            (np.median(times["peer"]) + np.median(times["assign"]))
            / (np.median(times["tessera"]) + np.median(times["assign"]))
        ),
        "largest_difference_of_scores": worst,
    }


class _Clock:
    """Adds the time of its block to an entry."""

    def __init__(self, table: dict[str, float], key: str) -> None:
        self._table, self._key = table, key

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._table[self._key] += time.perf_counter() - self._began
