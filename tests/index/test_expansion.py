"""Expansion, augmentation, diffusion and global re-ranking against slow second writings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.errors import UsageError
from tessera.index.build import build_index
from tessera.index.expansion import augment, diffuse, expand_query, mutual_graph
from tessera.index.global_reranking import refine, rerank_scores
from tessera.index.refinement import augment_gallery, expand_queries, search_refined


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def test_expansion_weighs_by_score_to_the_power_alpha() -> None:
    query = np.array([1.0, 0.0, 0.0], np.float32)
    neighbours = np.array([[0.8, 0.6, 0.0], [0.6, 0.0, 0.8], [-1.0, 0.0, 0.0]], np.float32)
    expected = unit(np.array([1 + 0.512 * 0.8 + 0.216 * 0.6, 0.512 * 0.6, 0.216 * 0.8]))
    assert np.allclose(expand_query(query, neighbours, 3.0), expected, atol=1e-6)
    assert np.allclose(expand_query(query, neighbours[:0]), query)


def test_alpha_zero_is_the_average(gallery: Any) -> None:
    rows = np.abs(gallery[:5])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(expand_query(rows[0], rows[1:], 0.0), unit(rows.sum(axis=0)), atol=1e-6)


def test_augmentation_expands_each_descriptor_by_its_neighbours(gallery: Any) -> None:
    rows = gallery[:60]
    nearest = np.argsort(-(rows @ rows.T), axis=1)[:, :6]
    nearest[3, 4:] = -1
    augmented = augment(rows, nearest, 2.0)
    for i in range(60):
        total = rows[i].astype(np.float64)
        for j in nearest[i]:
            if j not in (i, -1):
                total = total + max(float(rows[i] @ rows[j]), 0) ** 2 * rows[j]
        assert np.allclose(augmented[i], unit(total), atol=1e-6)


def test_augmenting_through_an_index_is_the_same(gallery: Any) -> None:
    rows, ids = gallery[:300], np.arange(300) * 2 + 1
    nearest = np.argsort(-(rows @ rows.T), axis=1, kind="stable")[:, :5]
    augmented = augment_gallery(build_index("flat", ids, rows), rows, ids, count=4)
    assert np.allclose(augmented, augment(rows, nearest), atol=1e-6)


def test_the_graph_is_mutual_symmetric_and_has_no_loops(gallery: Any) -> None:
    rows = gallery[:40]
    graph = mutual_graph(rows, 5, 3.0)
    for i in range(40):
        for j in range(40):
            cosines_i, cosines_j = rows[i] @ rows.T, rows[j] @ rows.T
            cosines_i[i], cosines_j[j] = -2, -2
            near = (cosines_i > cosines_i[j]).sum() < 5 and (cosines_j > cosines_j[i]).sum() < 5
            expected = max(float(rows[i] @ rows[j]), 0) ** 3 if near and i != j else 0
            assert graph[i, j] == pytest.approx(expected, abs=1e-6)


def test_diffusion_solves_its_equation(gallery: Any, queries: Any) -> None:
    rows, query = gallery[:80], queries[0]
    graph = mutual_graph(rows, 10, 3.0)
    inverse_root = np.diag([1 / np.sqrt(total) if total > 0 else 0 for total in graph.sum(axis=1)])
    start = np.maximum(rows.astype(np.float64) @ query, 0) ** 3
    start[np.argsort(-start)[5:]] = 0
    exact = np.linalg.solve(np.eye(80) - 0.9 * inverse_root @ graph @ inverse_root, start)
    found = diffuse(query, rows, neighbours=10, seeds=5, damping=0.9)
    assert np.allclose(found, exact, atol=1e-6)


def test_diffusion_reaches_along_a_chain() -> None:
    """On an arc, the far end of the chain looks nothing like the query, and less than an outlier does."""
    angles = np.linspace(0.1, 1.5, 15)
    chain = np.stack([np.cos(angles), np.sin(angles), np.zeros(15)], axis=1)
    outlier = np.array([[0.3, 0.0, np.sqrt(1 - 0.09)]])
    rows = np.concatenate([chain, outlier]).astype(np.float32)
    query = np.array([1, 0, 0], np.float32)
    assert rows[-1] @ query > rows[14] @ query
    scores = diffuse(query, rows, neighbours=3, seeds=3)
    assert scores[14] > scores[-1]


def test_diffusion_over_a_small_gallery_remembers_its_query() -> None:
    """Eight objects with five views each, all a little alike: a long walk over all of them ends anywhere."""
    random = np.random.default_rng(0)
    rows = np.repeat(random.standard_normal((8, 16)), 5, axis=0) + random.standard_normal((40, 16)) + 1
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def share_found(**settings: Any) -> float:
        found = 0
        for query in range(40):
            others = np.delete(np.arange(40), query)
            best = others[np.argsort(-diffuse(rows[query], rows[others], **settings))[:4]]
            found += int((best // 5 == query // 5).sum())
        return found / 160

    plain = np.argsort(-(rows @ rows.T) + 2 * np.eye(40), axis=1)[:, :4]
    assert share_found() >= (plain // 5 == np.arange(40)[:, None] // 5).mean()
    assert share_found() > share_found(neighbours=50, damping=0.99) + 0.1


def test_refining_is_a_weighted_sum_with_the_nearest(gallery: Any) -> None:
    rows = gallery[:30]
    refined = refine(rows, 4, 0.15)
    for i in range(30):
        cosines = rows @ rows[i]
        cosines[i] = -2
        total = rows[i].astype(np.float64)
        for j in np.argsort(-cosines)[:4]:
            total = total + 0.15 * max(cosines[j], 0) * rows[j]
        assert np.allclose(refined[i], unit(total), atol=1e-6)


def test_reranking_averages_two_similarities(gallery: Any, queries: Any) -> None:
    rows, query = gallery[:50], queries[1]
    joined = unit(np.max([query, *rows[:9]], axis=0))
    expected = (refine(rows) @ query + rows @ joined) / 2
    assert np.allclose(rerank_scores(query, rows), expected, atol=1e-6)
    assert np.isfinite(rerank_scores(query, rows[:1])).all()


@pytest.mark.parametrize(
    ("expand", "rerank"), [("aqe", None), ("diffusion", None), (None, "global"), ("aqe", "global")]
)
def test_search_refined_answers_like_search(gallery: Any, queries: Any, expand: str | None, rerank: str | None) -> None:
    ids = np.arange(3000) + 10
    index = build_index("flat", ids, gallery)
    scores, found = search_refined(index, queries, 15, fetch=index.descriptors, expand=expand, rerank=rerank)
    assert found.shape == (12, 15)
    assert np.all(np.diff(scores, axis=1) <= 0)
    assert all(len(set(row)) == 15 for row in found.tolist())
    allowed = ids[:7]
    _, few = search_refined(index, queries, 10, fetch=index.descriptors, expand=expand, rerank=rerank, allowed=allowed)
    assert all(sorted(row[:7]) == allowed.tolist() and set(row[7:]) == {-1} for row in few.tolist())


def test_augmenting_a_search_is_searching_an_augmented_gallery(gallery: Any, queries: Any) -> None:
    rows, ids = gallery[:300], np.arange(300) * 2  # no more than the short list, so that all of them are scored anew
    plain = build_index("flat", ids, rows)
    whole = augment_gallery(plain, rows, ids)
    for options in ({}, {"rerank": "global"}, {"expand": "diffusion"}):
        found = search_refined(plain, queries, 300, fetch=plain.descriptors, augment=True, **options)
        slow = search_refined(build_index("flat", ids, whole), queries, 300, fetch=lambda i: whole[i // 2], **options)
        assert np.mean(found[1][:, :20] == slow[1][:, :20]) > 0.97  # the index rounds what was joined
    scores, _ = search_refined(plain, queries, 300, fetch=plain.descriptors, augment=True)
    assert np.allclose(scores, -np.sort(-(queries @ whole.T), axis=1), atol=1e-6)
    allowed = ids[:7]
    scores, few = search_refined(plain, queries, 9, fetch=plain.descriptors, augment=True, allowed=allowed)
    assert all(sorted(row[:7]) == allowed.tolist() and set(row[7:]) == {-1} for row in few.tolist())
    assert np.allclose(scores[0, 0], (queries[0] @ whole[:7].T).max(), atol=1e-6)


def test_expanding_queries_is_search_then_expansion(gallery: Any, queries: Any) -> None:
    index = build_index("flat", np.arange(3000), gallery)
    expanded = expand_queries(index, queries, fetch=index.descriptors, count=4)
    best = np.argsort(-(queries[2] @ gallery.T))[:4]
    assert np.allclose(expanded[2], expand_query(queries[2], gallery[best]), atol=1e-6)


def test_an_unknown_expansion_is_refused(gallery: Any, queries: Any) -> None:
    index = build_index("flat", np.arange(3000), gallery)
    with pytest.raises(UsageError, match="Did you mean 'diffusion'"):
        search_refined(index, queries, 3, fetch=index.descriptors, expand="difusion")
