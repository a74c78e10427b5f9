"""ASMK* and verification of the default search beside the published package and beside matching every descriptor.

Everybody gets the same queries, real pictures, and the same drawn gallery. The package has its own 128 signs a word,
where the gallery keeps 64: the other half are drawn. It adds entry by entry in a loop of Python: that is timed on the
first images and counted for all, and its lists are filled directly. Brute force re-ranks real features, those of the
other pictures: drawn images have no descriptors. One thread; times are the processor's.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.data.images import load_photo
from tessera.errors import MissingExtraError
from tessera.gallery.gallery import Gallery
from tessera.gallery.search.by_parts import NUM_VERIFIED
from tessera.gallery.view import View
from tessera.local.compact import BYTES_A_FEATURE, CODE_BITS, CompactFeatures, aggregate_codes
from tessera.local.features import LocalFeatures
from tessera.local.matching import verify_many
from tessera.local.parts import ASMK_ASSIGNMENT, PartsModel
from tessera.local.postings import ALPHA, aggregate_query
from tessera.local.spatial_reranking import Reranker
from tessera.local.verification import VerificationConfig, verify

_ADDED = 20  # images that the package adds itself


def measure_peers(path: Path, pictures: Sequence[Path], queries: int) -> dict[str, Any]:
    """Milliseconds a query and bytes an image, ours and the peer's. The first `queries` pictures are asked with."""
    with Gallery(path) as gallery, gallery._store.pin() as view:
        model = gallery._store.local_describer.model
        described = [model.extract(load_photo(picture, size=model.size)) for picture in pictures]
        # The package has one codebook, and so is given the regions alone.
        features = [one.with_regions(one.kinds[0]) for one in described]
        regions = model.vocabularies[0]
        postings = gallery._store.postings
        postings.refresh(view.snapshot)
        spent: dict[str, list[float]] = {}
        with_package = _Package(model, view)
        reranker: Any = Reranker(
            "sp", regions.system.extractor, functools.partial(verify, config=VerificationConfig()), 8
        )
        for number, asked in enumerate(features[:queries]):
            query = _timed(spent, "assign", model.encode_query, asked)
            words, codes = _timed(spent, "aggregate", aggregate_query, query)
            ids, scores = _timed(spent, "search", postings.scores, words, codes)
            best = ids[np.argsort(-scores, kind="stable")[:NUM_VERIFIED]].tolist()
            stored = view.snapshot.local_features(best, model.fingerprint)
            read = _timed(spent, "read", lambda found: list(map(CompactFeatures.from_bytes, found)), stored.values())
            _timed(spent, "verify", verify_many, query, read, model.match_distances)
            with_package.search(asked.kinds[0], spent)
            others = [other.kinds[0] for k, other in enumerate(features) if k != number]
            candidates = [others[k % len(others)] for k in range(len(best))]
            _timed(spent, "brute_force", reranker.count_inliers, asked.kinds[0], candidates)
        compact = np.mean([BYTES_A_FEATURE * (one.words < regions.num_words).sum() for one in read])
        inverted = with_package.entries_an_image * (CODE_BITS // 8 + 8)
    milliseconds = {name: 1e3 * float(np.median(values)) for name, values in spent.items()}
    return {
        "images": int(with_package.images),
        "verified": len(best),
        "milliseconds": milliseconds,
        "bytes_an_image": {
            "inverted_file": inverted,
            "package": with_package.bytes_an_image,
            "compact_features": float(compact),
            "descriptors": float(np.mean([_bytes_of(one.kinds[0]) for one in features])),
        },
        "add_ms": {"package": 1e3 * with_package.add_s},
    }


class _Package:
    """asmk 0.1.1 with the codebook of the default search, over the gallery's own features."""

    def __init__(self, model: PartsModel, view: View) -> None:
        try:
            from asmk.codebook import Codebook
            from asmk.index import initialize_index
            from asmk.inverted_file import IVF
            from asmk.kernel import ASMKKernel
        except ImportError as error:
            raise MissingExtraError("the comparison with the published ASMK", "bench") from error
        regions = model.vocabularies[0]
        codebook = Codebook(initialize_index(None), size=regions.num_words)
        codebook.index(regions.system.codebook.centroids)
        self._kernel = ASMKKernel(codebook, binary=True)
        self._lists = IVF.initialize_empty(codebook_size=regions.num_words, use_idf=False)
        self._fill(view, model)

    def _fill(self, view: View, model: PartsModel) -> None:
        random = np.random.default_rng(0)
        counts, norms = np.zeros(model.vocabularies[0].num_words, np.int64), []
        for words, _ in _entries(view, model):
            counts[words] += 1
            norms.append(len(words))
        self.images, starts = len(norms), np.cumsum(counts) - counts
        vectors, ids = np.empty((counts.sum(), 4), np.uint32), np.empty(counts.sum(), np.int64)
        free = starts.copy()
        first: list[tuple[Any, Any]] = []
        for number, (words, codes) in enumerate(_entries(view, model)):
            signs = np.stack([codes, random.integers(0, 2**64, len(codes), np.uint64)], axis=1).view(np.uint32)
            vectors[free[words]], ids[free[words]] = signs, number
            free[words] += 1
            if number < _ADDED:
                first.append((signs, words))
        lists = self._lists
        began = time.process_time()
        for number, (signs, words) in enumerate(first):
            lists.add(signs, words, np.full(len(words), number))
        self.add_s = (time.process_time() - began) / max(len(first), 1)
        bounds = list(zip(starts.tolist(), free.tolist(), strict=True))
        lists.ivf_vecs = [vectors[start:end] if end > start else None for start, end in bounds]
        lists.ivf_image_ids = [ids[start:end] if end > start else None for start, end in bounds]
        lists.counts, lists.n_images = counts.astype(np.int32), self.images
        lists.norm_factor = np.array(norms, np.float64)
        self.bytes_an_image = (vectors.nbytes + ids.nbytes) / self.images
        self.entries_an_image = len(ids) / self.images

    def search(self, asked: LocalFeatures, spent: dict[str, list[float]]) -> None:
        def similarity(*given: Any) -> Any:
            return self._kernel.similarity(*given, alpha=ALPHA, similarity_threshold=0.0)

        vectors, kernel = asked.descriptors, self._kernel
        quantize = functools.partial(kernel.codebook.quantize, multiple_assignment=ASMK_ASSIGNMENT)
        words = _timed(spent, "package_assign", quantize, vectors)[1]
        query = _timed(spent, "package_aggregate", kernel.aggregate_image, vectors, words)
        rank = functools.partial(self._lists.search, similarity_func=similarity, topk=None)
        _timed(spent, "package_search", rank, *query)


def _entries(view: View, model: PartsModel) -> Any:
    """The distinct words of the regions of each image with their codes."""
    for rows in view.snapshot.stream_local_features(model.fingerprint, 0):
        for _, content in rows:
            features = CompactFeatures.from_bytes(content)
            is_region = features.words < model.vocabularies[0].num_words
            yield aggregate_codes(features.words[is_region].astype(np.int64), features.codes[is_region])


def _bytes_of(features: LocalFeatures) -> int:
    """Kept as others keep SIFT: a byte a dimension, and two bytes for each coordinate and the scale."""
    return len(features) * (int(features.descriptors.shape[1]) + 6)


def _timed(spent: dict[str, list[float]], name: str, work: Callable[..., Any], *given: Any) -> Any:
    began = time.process_time()
    answer = work(*given)
    spent.setdefault(name, []).append(time.process_time() - began)
    return answer


def to_rows(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What, the peer's, ours."""
    taken, sizes = report["milliseconds"], report["bytes_an_image"]

    def total(*stages: str) -> float:
        return sum(float(taken[stage]) for stage in stages)

    package, ours = ("package_aggregate", "package_search"), ("aggregate", "search")
    return [
        ("words of a query, ms", taken["package_assign"], taken["assign"]),
        ("ASMK*, ms", total(*package), total(*ours)),
        ("ASMK* with words, ms", total("package_assign", *package), total("assign", *ours)),
        ("inverted file, bytes an image", sizes["package"], sizes["inverted_file"]),
        (f"verifying {report['verified']} images, ms", taken["brute_force"], total("read", "verify")),
        ("features to verify, bytes an image", sizes["descriptors"], sizes["compact_features"]),
    ]


def to_markdown(report: dict[str, Any]) -> str:
    rows = [f"| {what} | {peer:,.1f} | {ours:,.1f} | {peer / ours:.1f} |" for what, peer, ours in to_rows(report)]
    return "\n".join(["| what | asmk 0.1.1, brute force | Tessera | ratio |", "|---|---:|---:|---:|", *rows])


if __name__ == "__main__":
    folder, count, *words = sys.argv[1:]
    print(json.dumps(measure_peers(Path(folder), [Path(word) for word in words], int(count))))
