"""The parts of the codecs: centroids, projection, scans, stores, calibration, drift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import pytest

from tessera.errors import IndexingError
from tessera.index.build import FAST_ROWS, FLAT_ROWS, build_index, choose_codec
from tessera.index.codecs import CODECS
from tessera.index.codecs.block_scan import scan_blocks
from tessera.index.codecs.coarse_scan import CoarseScan
from tessera.index.codecs.codec import use_threads
from tessera.index.codecs.flat import FlatCodec
from tessera.index.codecs.inverted_lists import InvertedLists, train_list_centroids
from tessera.index.codecs.pq1 import Pq1Codec, train_scalar_centroids
from tessera.index.codecs.pq8 import Pq8Codec
from tessera.index.codecs.projection import Projection, allocate_dimensions, mean_first, principal_axes
from tessera.index.codecs.recall_calibration import (
    CalibrationSet,
    RecallCalibration,
    calibrate,
    estimate_num_candidates,
)
from tessera.index.codecs.residual_rescoring import ResidualCodes
from tessera.index.descriptor_file import DescriptorStore, best, widen
from tessera.index.exact_scores import best_rows, inner_products
from tessera.index.rows import RowFilter, Rows
from tessera.index.search_index import DRIFT_RATIO


def test_widening_is_exact_for_every_finite_half() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].reshape(-1, 1)
    assert np.array_equal(widen(finite), finite.astype(np.float32))
    assert np.array_equal(np.signbit(widen(finite)), np.signbit(finite))


def test_a_store_of_segments_is_one_array(gallery: Any) -> None:
    halves = gallery.astype(np.float16)
    store = DescriptorStore(64, [halves[:1000], halves[1000:1001]])
    store.append(halves[1001:])
    rows = np.array([2999, 0, 1000, 1001, 999, 0])
    assert np.array_equal(store.take(rows), halves[rows])
    assert np.array_equal(np.concatenate([block for _, block in store.blocks(700)]), gallery)


def test_centroids_of_one_dimension_are_those_of_lloyd() -> None:
    values = np.random.default_rng(0).standard_normal((4000, 1)).astype(np.float32)
    centroids, affine = train_scalar_centroids(values)
    assert np.all(np.diff(centroids[0]) >= 0)
    nearest = np.abs(values - centroids[0][None]).argmin(axis=1)
    means = np.array([values[nearest == i].mean() if (nearest == i).any() else centroids[0, i] for i in range(256)])
    assert np.abs(means - centroids[0]).max() < 0.02
    ours = np.square(values[:, 0] - centroids[0][nearest]).mean()
    peer = faiss.Kmeans(1, 256, niter=40, seed=1, min_points_per_centroid=1)
    peer.train(values)
    assert ours <= 1.1 * peer.index.search(values, 1)[0].mean()
    fitted = affine[0] + affine[1] * nearest / 255
    assert np.square(fitted - centroids[0][nearest]).mean() < 0.02


def test_pq1_codes_are_the_nearest_centroids_and_scores_use_them(gallery: Any, queries: Any) -> None:
    store = DescriptorStore.of(gallery)
    codec = Pq1Codec.fit(store, seed=0, target_recall=1.0)
    codes = codec.encode(gallery[:50])
    centroids = codec.state()[1]["centroids"]
    slow = np.abs(gallery[:50, :, None] - centroids[None]).argmin(axis=2)
    decoded = np.take_along_axis(centroids[None], slow[:, :, None], axis=2)[..., 0]
    assert np.allclose(codec.decode(codes), decoded, atol=1e-6)
    everything = codec.decode(codec.encode(gallery))
    for asked in (queries[:2], queries):  # one query at a time, and as a batch
        scores, rows = codec.search(asked, 20, None, store)
        exact = asked @ everything.T
        assert np.array_equal(np.sort(rows, axis=1), np.sort(np.argsort(-exact, axis=1)[:, :20], axis=1))
        assert np.allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=1e-5)


def test_pq8_scores_are_products_with_the_centroids(gallery: Any, queries: Any) -> None:
    store = DescriptorStore.of(gallery[:, :60])  # 60 is no multiple of 8
    codec = Pq8Codec.fit(store, seed=0, target_recall=1.0)
    values, arrays = codec.state()
    assert values == {}
    assert arrays["codes"].shape == (3000, 8)
    columns = [arrays["centroids"][m][arrays["codes"][:, m]] for m in range(8)]
    decoded = np.concatenate(columns, axis=1)[:, :60]
    exact = queries[:, :60] @ decoded.T
    keep = RowFilter(3000, rows=np.arange(0, 3000, 2))
    for asked in (slice(0, 3), slice(0, 12)):
        for kept in (None, keep):
            scores, rows = codec.search(np.ascontiguousarray(queries[asked, :60]), 10, kept, store)
            wanted = exact[asked].copy()
            if kept is not None:
                wanted[:, 1::2] = -np.inf
            assert np.allclose(np.sort(scores, axis=1), np.sort(wanted, axis=1)[:, -10:], atol=1e-5)
            assert np.allclose(scores, np.take_along_axis(wanted, rows, axis=1), atol=1e-5)


def test_codes_have_the_papers_bytes_and_five_in_a_hundred_more(make_descriptors: Any) -> None:
    count = 40_000
    centroids = np.zeros((128, 256, 8), np.float32)
    rows = Rows(np.arange(count) * 2)  # ids with gaps, as a gallery has them
    pq8 = Pq8Codec(1024, centroids, np.zeros((count, 128), np.uint8))
    assert (pq8.memory_bytes - centroids.nbytes + rows.memory_bytes) / count <= 1.05 * 128
    some = make_descriptors(512, 1024, seed=1)
    pq1 = Pq1Codec.fit(DescriptorStore.of(some), seed=0, target_recall=0.99)
    before = pq1.memory_bytes
    pq1.append(some)
    assert (pq1.memory_bytes - before) / len(some) + rows.memory_bytes / count <= 1.05 * 1024


def test_a_projection_is_exact_whatever_the_order_of_sums(gallery: Any) -> None:
    projection = Projection.fit(gallery, principal_axes(gallery, 15), 16)
    projected = projection.apply(gallery)
    whole = np.rint(gallery.astype(np.float64) * 2**11).astype(np.int64)
    exact = (whole @ projection.matrix.T.astype(np.int64) - projection.offset) * 2.0**-23
    assert np.array_equal(projected, exact.astype(np.float32) * projection.weights[:-1])
    assert np.array_equal(projection.apply(gallery[7:8])[0], projected[7])
    assert np.allclose(projected.mean(axis=0)[1:], 0, atol=1e-3)
    variances = exact.var(axis=0)[1:]
    assert np.all(np.diff(variances) < 1e-4)
    assert np.allclose(projection.weights[1:-1] ** 4, variances / variances.max(), rtol=0.05)
    assert variances.sum() == pytest.approx(np.linalg.eigvalsh(np.cov(gallery.T))[-15:].sum(), rel=0.02)


def test_products_of_projected_rows_and_queries_differ_from_scores_by_a_number_a_query(make_descriptors: Any) -> None:
    rows = make_descriptors(500, 32, seed=3) + np.float32(0.2)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    projection = Projection.fit(rows, principal_axes(rows, 32), 33)
    weight, level = projection.weights[[0, -1]]
    assert np.log2(weight) == np.rint(np.log2(weight))
    assert weight * level == pytest.approx(np.linalg.norm(rows.mean(axis=0)), rel=1e-3)
    differences = projection.apply_query(rows[:5]) @ projection.apply(rows).T - rows[:5] @ rows.T
    assert np.allclose(differences, differences[:, :1], atol=2e-3)


def test_coordinates_are_shared_out_in_groups_of_equal_product() -> None:
    variances = (2.0 ** -np.arange(16)).astype(np.float32)
    order = allocate_dimensions(variances, 8)
    assert sorted(order.tolist()) == list(range(16))
    products = variances[order].reshape(8, 2).prod(axis=1)
    assert np.allclose(products, products[0])


def test_coordinates_are_arranged_for_the_codes_and_the_mean_comes_first(gallery: Any) -> None:
    order = mean_first(np.array([3, 1, 2, 0, 4, 5]), 3)
    assert order.tolist() == [0, 2, 4, 5, 3, 1]
    projection = Projection.fit(gallery, principal_axes(gallery, 7), 8)
    arranged = projection.arranged(order)
    places = [*order, 6, 7]
    assert np.array_equal(arranged.apply(gallery), projection.apply(gallery)[:, places])
    assert np.array_equal(arranged.apply_query(gallery[:9]), projection.apply_query(gallery[:9])[:, places])


def test_residuals_add_what_their_centroids_say(gallery: Any) -> None:
    missed = gallery[:, :32] * np.float32(0.1)
    residual = ResidualCodes.fit(missed, 8, seed=0)
    residual.append(residual.encode(missed))
    query, rows = gallery[0, :32].copy(), np.array([5, 2999, 7])
    decoded = residual.decode(residual.codes)
    assert np.allclose(residual.score(residual.table(query), rows), decoded[rows] @ query, atol=1e-6)
    assert np.square(missed - decoded).sum() < 0.5 * np.square(missed).sum()
    some = np.arange(0, 3000, 7)
    first = np.random.default_rng(0).standard_normal(len(some)).astype(np.float32)
    together = first + decoded[some] @ query
    chosen = residual.best(query, some, first, 40)
    assert together[np.isin(some, chosen)].min() >= np.sort(together)[-40] - 1e-3
    assert len(set(chosen.tolist())) == 40
    assert len(residual.best(query, some, np.zeros_like(first), 5)) == 5  # nothing parts their first scores
    again = ResidualCodes.restore(residual.state())
    assert np.array_equal(again.decode(again.codes), decoded)


def test_the_number_of_candidates_is_estimated_from_a_sample() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((20, 5000)).astype(np.float32)
    neighbours = [np.full(10, 2.3263, np.float32)] * 20  # one in a hundred scores higher
    assert estimate_num_candidates(scores, neighbours, 100_000, {10: 0.5}) == pytest.approx([1000], rel=0.2)
    harder = [np.append(near, np.full(10, 1.2816, np.float32)) for near in neighbours]  # and these one in ten
    assert estimate_num_candidates(scores, harder, 100_000, {10: 0.5}) == pytest.approx([1000], rel=0.2)
    assert estimate_num_candidates(scores, harder, 100_000, {10: 0.5, 20: 0.9})[1] == pytest.approx(10_000, rel=0.2)
    # More than a search would ever take still say how dear such codes are.
    assert estimate_num_candidates(scores, harder, 10**7, {20: 0.9}) == pytest.approx([10**6], rel=0.2)


def test_a_scan_of_blocks_finds_the_best(gallery: Any, queries: Any) -> None:
    blocks = [(i, gallery[i : i + 100]) for i in range(0, 3000, 100)]
    exact = queries @ gallery.T
    scores, rows = scan_blocks(queries, blocks, 30, None)
    assert np.allclose(np.sort(scores, axis=1), np.sort(exact, axis=1)[:, -30:], atol=1e-6)
    assert np.allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=1e-6)
    _, few = scan_blocks(queries, blocks, 30, RowFilter(3000, rows=np.array([5, 1700])))
    assert all(sorted(row) == [-1] * 28 + [5, 1700] for row in few.tolist())


def test_rows_find_the_newest_of_equal_ids() -> None:
    rows = Rows([9, 4, 7, 4, 2**40])
    assert rows.find(np.array([4, 9, 5, 2**40, -1])).tolist() == [3, 0, -1, 4, -1]
    rows.mark_deleted(np.array([3]))
    assert rows.find(np.array([4])).tolist() == [-1]
    assert rows.live == 4
    longer = rows.extended(np.array([4, 11]))
    assert longer.find(np.array([4, 11, 9])).tolist() == [5, 6, 0]
    assert longer.deleted == 1


def test_ids_that_run_on_take_no_memory() -> None:
    running, gaps = Rows(np.arange(80_000) + 7), Rows(np.arange(80_000) * 3)
    assert running.memory_bytes == 10_000
    assert gaps.memory_bytes == 4 * 80_000 + 10_000
    assert running.find(np.array([7, 80_006, 80_007, 6])).tolist() == [0, 79_999, -1, -1]


def test_the_best_are_sorted_with_ties_by_id() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.5, 0.1] * 5, np.float32)
    found, ids = best(scores, np.arange(25)[::-1].copy(), 7)
    assert found.tolist() == pytest.approx([0.9] * 5 + [0.5] * 2)
    assert ids.tolist() == sorted(ids[:5].tolist()) + sorted(ids[5:].tolist())
    assert ids[5:].tolist() == [1, 2]


def test_exact_scores_do_not_depend_on_their_company(gallery: Any, queries: Any) -> None:
    halves = gallery.astype(np.float16)
    for dim in (64, 60, 33):
        query, rows = queries[0, :dim], np.ascontiguousarray(halves[:, :dim])
        together = inner_products(query, rows)
        alone = [inner_products(query, rows[i : i + 1])[0] for i in range(0, 3000, 97)]
        assert np.array_equal(together[::97], np.array(alone))
        assert np.allclose(together, rows.astype(np.float64) @ query, atol=1e-6)


def test_the_best_rows_come_with_their_ties(gallery: Any, queries: Any) -> None:
    copies = np.concatenate([np.repeat(gallery[:1], 300, axis=0), gallery[1:]]).astype(np.float16)
    store, rows = DescriptorStore.of(copies), np.arange(0, len(copies), 2)
    exact = inner_products(queries[3], copies[rows])
    for k in (1, 10, 100, 5000):
        scores, found = best_rows(queries[3], rows, store, k)
        assert np.array_equal(scores, exact[found // 2])
        least = np.sort(exact)[-min(k, len(exact))]
        assert set(rows[exact >= least]) <= set(found.tolist())
    assert set(np.arange(0, 300, 2)) <= set(best_rows(gallery[0], rows, store, 10)[1].tolist())
    assert len(best_rows(queries[0], rows[:0], store, 3)[1]) == 0


def test_candidates_grow_with_k_and_with_the_gallery() -> None:
    calibration = RecallCalibration(
        num_candidates_10=100,
        num_candidates_100=1000,
        num_rescored_10=40,
        num_rescored_100=220,
        nprobe=8,
        recall=0.99,
        total=9000,
    )
    assert [calibration.num_candidates_for(k, 9000) for k in (1, 10, 55, 100, 250)] == [100, 100, 550, 1000, 2500]
    assert [calibration.num_rescored_for(k, 9000) for k in (1, 10, 55, 100, 250)] == [40, 40, 130, 220, 550]
    assert [calibration.num_candidates_for(100, total) for total in (4, 36_000, 225_000)] == [1000, 2000, 5000]
    assert calibration.num_rescored_for(250, 36_000) == 1100
    assert RecallCalibration.from_values(calibration.to_values()) == calibration


def test_nprobe_is_the_one_that_costs_least() -> None:
    """With two lists everything is found, with four it is found higher up: which is better is a matter of cost."""
    calibration_set = CalibrationSet(
        np.array([1000, 1001]), np.zeros((2, 4), np.float32), np.tile(np.arange(100), (2, 1))
    )

    def search_candidates(queries: Any, count: int, nprobe: int) -> tuple[Any, Any]:
        strangers = np.arange(2000, 2000 + {1: 0, 2: 500, 4: 100}[nprobe])
        known = np.arange(50 if nprobe == 1 else 100)
        rows = np.tile(np.concatenate([strangers, known]), (2, 1))
        return rows, -np.arange(rows.shape[1], dtype=np.float32)[None].repeat(2, axis=0)

    def candidates(c: RecallCalibration) -> float:
        return c.num_candidates_100

    def chosen(nprobe: tuple[int, ...], cost: Callable[[RecallCalibration], float] = candidates) -> int:
        return calibrate(search_candidates, calibration_set, 9999, nprobe=nprobe, target=0.99, cost=cost).nprobe

    assert chosen((1, 2, 4)) == 4
    assert chosen((1, 2, 4), cost=lambda c: c.nprobe) == 2
    assert chosen((1,)) == 1  # not enough, but all there is


def test_lists_are_ordered_between_product_and_distance(gallery: Any, queries: Any) -> None:
    centroids = train_list_centroids(gallery, np.arange(64), 8, seed=0)
    assert np.all(centroids[:, 0] == 0)  # the mean's coordinate says nothing of where a row lies
    lists = InvertedLists(centroids)
    assert len(lists) == 8
    promised = queries @ centroids.T - 0.25 * np.square(centroids).sum(axis=1)
    for query, theirs in zip(queries, promised, strict=True):
        ranks = np.argsort(np.argsort(-theirs))
        homes = np.square(gallery[:99, None] - centroids).sum(axis=2).argmin(axis=1)
        assert np.array_equal(lists.ranks(query[None], gallery[:99]), ranks[homes])
    again = InvertedLists.of_queries(lists.queries)
    assert np.array_equal(again.rows.reconstruct_n(0, 8), centroids)


def fit_coarse_scan(gallery: Any, lists: int = 1, *, last: bool = False) -> CoarseScan:
    store = DescriptorStore.of(gallery)
    calibration_set = CalibrationSet.draw(store, 0)
    coarse, _ = CoarseScan.fit(
        store, calibration_set, coordinates=64, lists=lists, ladder=(64,), last=last, seed=0, target_recall=0.98
    )
    coarse.append(coarse.projection.apply(gallery))
    return coarse


@pytest.mark.parametrize("lists", [1, 4])
def test_a_filter_admits_the_best_of_its_rows(lists: int, gallery: Any, queries: Any) -> None:
    coarse = fit_coarse_scan(gallery, lists)
    asked = coarse.project_queries(queries)
    deep, estimates = coarse.search(asked, 3000, nprobe=lists)
    third, nearly = np.arange(0, 3000, 3), np.setdiff1d(np.arange(3000), deep[0, :50])
    for kept in (third, nearly):
        row_filter = RowFilter(3000, rows=kept)
        for q in range(len(asked)):
            rows, scores = coarse.shortlist(asked[q : q + 1], 600, row_filter, nprobe=lists)
            admitted = np.isin(deep[q], kept)
            assert np.isin(rows, kept).all()
            assert np.array_equal(scores, estimates[q][admitted][:600])
    few, scores = coarse.shortlist(asked[:1], 600, RowFilter(3000, rows=np.arange(5)), nprobe=lists)
    assert sorted(few.tolist()) == list(range(5))
    assert len(scores) == 5


def test_rows_that_come_and_go_are_scanned_like_others(gallery: Any, queries: Any) -> None:
    grown, whole = fit_coarse_scan(gallery), fit_coarse_scan(gallery)
    asked, odd = grown.project_queries(queries), RowFilter(3000, rows=np.arange(1, 3000, 2))
    grown.search(asked, 10, odd)  # copies all rows into a list, which must not outlive them
    grown.append(grown.projection.apply(gallery[:100]))
    grown.select(np.arange(100, 3100))
    turned = np.roll(np.arange(3000), -100)
    for row_filter in (None, RowFilter(3000, rows=np.flatnonzero(turned % 2))):
        found, scores = grown.search(asked, 10, row_filter)
        expected = whole.search(asked, 10, None if row_filter is None else odd)
        assert np.array_equal(scores, expected[1])
        assert np.array_equal(turned[found], expected[0]) or len(np.unique(scores)) < scores.size
    again = CoarseScan.restore(grown.state())
    for coarse in (grown, again):
        coarse.append(coarse.projection.apply(gallery[:7]))
    assert np.array_equal(again.search(asked, 50)[0], grown.search(asked, 50)[0])


@pytest.mark.parametrize(("subspaces", "coded"), [(64, 256), (80, 240), (96, 288)])
def test_more_bytes_code_fewer_coordinates_each(subspaces: int, coded: int, make_descriptors: Any) -> None:
    rows = make_descriptors(1200, 320, seed=5)
    store = DescriptorStore.of(rows)
    coarse, _ = CoarseScan.fit(
        store, CalibrationSet.draw(store, 0), coordinates=288, ladder=(subspaces,), seed=0, target_recall=0.98
    )
    assert (coarse.code_bytes, coarse.dim) == (subspaces // 2, coded)
    coordinates = coarse.projection.apply(rows)
    coarse.append(coordinates)
    asked = coarse.projection.apply_query(rows[:3])
    found, scores = coarse.search(asked, 5)
    assert np.array_equal(found[:, 0], np.arange(3))
    estimates = np.einsum("qd,qkd->qk", asked, coarse.decoded(coordinates)[found])
    assert np.allclose(scores, estimates, atol=0.05)


def test_scores_by_distance_are_products_less_a_share_of_energy(gallery: Any, queries: Any) -> None:
    coarse = fit_coarse_scan(gallery, last=True)
    found, scores = coarse.search(coarse.project_queries(queries), 3000)
    coded = coarse.decoded(coarse.projection.apply(gallery))
    energy = np.square(coded[:, 1:]).sum(axis=1)
    expected = coarse.projection.apply_query(queries) @ coded.T - energy / 6
    for q, rows in enumerate(found):
        # FAISS's tables have eight bits, and its distances are larger by what is the query's own.
        line = np.polyfit(expected[q, rows], scores[q], 1)
        assert line[0] > 0
        missed = (scores[q] - np.polyval(line, expected[q, rows])) / line[0]
        assert np.abs(missed).max() < 0.02


@pytest.mark.parametrize("threads", [1, 2])
def test_flat_holds_every_segment_once_it_is_asked(gallery: Any, queries: Any, threads: int) -> None:
    halves = gallery.astype(np.float16)
    store = DescriptorStore(64, [halves[:1500], halves[1500:1501], halves[1501:]])
    filtered = FlatCodec.fit(store, seed=0, target_recall=1.0).search(
        queries, 2, RowFilter(3000, rows=np.array([4, 9])), store
    )
    assert np.array_equal(np.sort(filtered[1]), [[4, 9]] * len(queries))
    codec = FlatCodec.fit(store, seed=0, target_recall=1.0)
    assert codec.memory_bytes == 3000 * 64 * 4
    with use_threads(threads):
        _, rows = codec.search(queries, 5, None, store)
    assert np.array_equal(np.sort(rows[:, :5]), np.sort(np.argsort(-(queries @ gallery.T), axis=1)[:, :5]))
    codec.append(gallery[:10])
    codec.select(np.arange(5, 3010))
    assert codec.search(gallery[:1], 1, None, store)[1][0, 0] == 2995


@pytest.mark.parametrize("dim", [300, 600])
def test_fast_codes_take_at_most_128_bytes(dim: int, make_descriptors: Any) -> None:
    rows = make_descriptors(600, dim, seed=1)
    index = build_index("fast", np.arange(600), rows)
    assert index.describe()["settings"]["code_bytes"] <= 128
    assert index.search(rows[:20], 1)[1][:, 0].tolist() == list(range(20))


def test_pq1_in_a_batch_and_alone_gives_the_same_answers(gallery: Any, queries: Any) -> None:
    index = build_index("pq1", np.arange(3000), gallery)
    together = index.search(queries, 50)
    for q in range(len(queries)):
        alone = index.search(queries[q], 50)
        assert np.array_equal(alone[1][0], together[1][q])
        assert np.array_equal(alone[0][0], together[0][q])


@pytest.mark.parametrize("target", [0.0, -1.0, 1.5, float("nan")])
def test_a_target_that_is_no_recall_is_refused(target: float, gallery: Any) -> None:
    with pytest.raises(IndexingError, match="target recall"):
        build_index("fast", np.arange(3000), gallery, target_recall=target)


@pytest.mark.parametrize("codec", ["fast", "ivf"])
def test_coded_search_reaches_its_recall(codec: str, gallery: Any, make_descriptors: Any, slow_search: Any) -> None:
    ids = np.arange(3000)
    index = build_index(codec, ids, gallery)
    many = make_descriptors(200, 64, seed=2)
    for asked in (many, many[:12]):
        scores, found = index.search(asked, 100)
        slow_scores, truth = slow_search(gallery, ids, asked, 100)
        assert np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]) >= 0.93 + len(asked) / 10_000
        assert np.mean([np.isin(a[:10], b[:10]).mean() for a, b in zip(truth, found, strict=True)]) >= 0.98
        assert np.allclose(scores[:, 0], slow_scores[:, 0], atol=1e-6)
    assert index.describe()["settings"]["recall"] >= 0.98


def test_a_gallery_that_grows_little_by_little_keeps_its_recall(make_descriptors: Any, slow_search: Any) -> None:
    rows, asked = make_descriptors(6000, 64, seed=1, clusters=400), make_descriptors(20, 64, seed=2, clusters=400)
    index = build_index("fast", np.arange(1000), rows[:1000])
    for start in range(1000, 6000, 500):
        index.add(np.arange(start, start + 500), rows[start : start + 500])
        index.maintain(force=True)
    truth = slow_search(rows, np.arange(6000), asked, 100)[1]
    found = index.search(asked, 100)[1]
    assert index.grown == 6.0
    assert np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]) >= 0.95


def test_drift_is_one_on_the_same_kind_and_more_on_another(make_descriptors: Any) -> None:
    index = build_index("pq8", np.arange(3000), make_descriptors(3000, 64, seed=1))
    assert index.drift() == 1.0
    index.add(np.arange(1000) + 5000, make_descriptors(1000, 64, seed=6))
    assert index.drift() < DRIFT_RATIO
    strange = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    index.add(np.arange(1000) + 9000, strange / np.linalg.norm(strange, axis=1, keepdims=True))
    assert index.drift() > DRIFT_RATIO


def test_a_codec_fitted_on_a_handful_is_fitted_again(gallery: Any) -> None:
    for codec in ("pq8", "fast"):
        index = build_index(codec, np.arange(20), gallery[:20])
        index.add(np.arange(20, 3000), gallery[20:])
        index.maintain(force=True)
        fresh = build_index(codec, np.arange(3000), gallery)
        assert index.size == 3000
        assert np.array_equal(index.search(gallery[:3], 5)[1], fresh.search(gallery[:3], 5)[1])


def test_auto_goes_by_size() -> None:
    assert [choose_codec(n) for n in (0, FLAT_ROWS, FLAT_ROWS + 1, FAST_ROWS, FAST_ROWS + 1)] == [
        "flat",
        "flat",
        "fast",
        "fast",
        "ivf",
    ]
    assert {"flat", "pq1", "pq8", "fast", "ivf"} <= set(CODECS)


@pytest.mark.parametrize("codec", list(CODECS))
@pytest.mark.parametrize("count", [1, 5, 700])
def test_copies_of_one_descriptor_are_all_found(codec: str, count: int, gallery: Any) -> None:
    index = build_index(codec, np.arange(count), np.repeat(gallery[:1], count, axis=0))
    _, ids = index.search(gallery[1:2], 600)
    found = min(count, 600)
    assert sorted(ids[0, :found].tolist()) == sorted(set(ids[0, :found].tolist()) & set(range(count)))
    assert (ids[0, found:] == -1).all()


@pytest.mark.parametrize("codec", list(CODECS))
def test_descriptors_that_are_no_numbers_are_refused(codec: str, gallery: Any) -> None:
    rows = gallery[:300].copy()
    rows[7, 3] = np.nan
    with pytest.raises(IndexingError, match=r"id 17 .* not finite"):
        build_index(codec, np.arange(10, 310), rows)
