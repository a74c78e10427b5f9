"""Re-rank the top few hundred with their global descriptors alone, as SuperGlobal does.

Shao et al., "Global features are all you need for image retrieval and reranking": each answer is refined by its nearest
among the answers, the query by its best answers, and the two similarities are averaged. No local features, no image is
opened again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tessera.index.expansion import normalise

Float32s = npt.NDArray[np.float32]

NEIGHBOURS = 9
BETA = 0.15


def refine(descriptors: Float32s, neighbours: int = NEIGHBOURS, beta: float = BETA) -> Float32s:
    """Each of T D answers with a share of its nearest among them, weighted by beta times their cosine."""
    exact = descriptors.astype(np.float64)
    cosines = exact @ exact.T
    np.fill_diagonal(cosines, -np.inf)
    kept = min(neighbours, len(cosines) - 1)
    if kept < 1:
        return normalise(exact)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :kept]  # T K
    weights = beta * np.clip(np.take_along_axis(cosines, nearest, axis=1), 0, None)
    return normalise(exact + np.einsum("tk,tkd->td", weights, exact[nearest]))


def rerank_scores(
    query: Float32s, descriptors: Float32s, *, neighbours: int = NEIGHBOURS, beta: float = BETA
) -> Float32s:
    """New scores T for answers T D in the order of their old ones, best first.

    The query is joined with its best answers by the greatest value in each dimension, as the paper does: what any of
    the views shows strongly is kept.
    """
    refined = refine(descriptors, neighbours, beta)
    joined = normalise(np.concatenate([query[None], descriptors[:neighbours]]).max(axis=0))
    return ((refined @ query + descriptors @ joined) / 2).astype(np.float32)
