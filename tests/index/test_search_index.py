"""The life of an index: searching, adding, removing, filtering, maintaining, saving."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.errors import IndexingError
from tessera.index.build import build_index, load_index
from tessera.index.codecs import CODECS
from tessera.index.files import MANIFEST, read_manifest, verify, write_manifest
from tessera.index.search_index import SearchIndex

IDS = np.arange(3000) * 3 + 5


@pytest.fixture(scope="module", params=list(CODECS))
def saved(request: pytest.FixtureRequest, gallery: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index a codec, built once; tests open their own."""
    path = tmp_path_factory.mktemp("saved") / str(request.param)
    build_index(str(request.param), IDS, gallery).save(path)
    return path


@pytest.fixture
def index(saved: Path) -> SearchIndex:
    return load_index(saved)


def test_search_finds_each_descriptor_itself_first(index: SearchIndex, gallery: Any) -> None:
    chosen = np.arange(0, 3000, 251)
    scores, ids = index.search(gallery[chosen], 3)
    if index.codec == "pq8":  # eight bytes a descriptor here: among the first is all one can ask
        assert np.mean((ids == IDS[chosen][:, None]).any(axis=1)) > 0.9
    else:
        assert np.array_equal(ids[:, 0], IDS[chosen])
    assert np.all(np.diff(scores, axis=1) <= 0)


def test_flat_is_the_slow_search(gallery: Any, queries: Any, slow_search: Any) -> None:
    index = build_index("flat", IDS, gallery)
    scores, ids = index.search(queries, 25)
    slow_scores, slow_ids = slow_search(gallery, IDS, queries, 25)
    assert np.array_equal(ids, slow_ids)
    assert np.allclose(scores, slow_scores, atol=1e-6)


def test_scores_do_not_depend_on_the_batch(index: SearchIndex, queries: Any, make_descriptors: Any) -> None:
    index.add([1], make_descriptors(1, 64, seed=5))
    together = index.search(queries, 10)
    alone = [index.search(query, 10) for query in queries]
    if index.exact:
        assert np.array_equal(together[0], np.concatenate([scores for scores, _ in alone]))
    assert np.allclose(together[0], np.concatenate([scores for scores, _ in alone]), atol=1e-6)


def test_ties_are_broken_by_id_however_many_copies(gallery: Any) -> None:
    copies = np.concatenate([np.repeat(gallery[:1], 300, axis=0), gallery[1:]])
    index = build_index("flat", np.arange(len(copies))[::-1], copies)
    _, ids = index.search(gallery[0], 20)
    last = len(copies) - 1
    assert ids[0].tolist() == [last - 299 + i for i in range(20)]


def test_an_added_descriptor_is_found_at_once_and_a_removed_one_is_not(
    index: SearchIndex, gallery: Any, make_descriptors: Any
) -> None:
    new = make_descriptors(5, 64, seed=7)
    index.add([20001, 20000, 20002, 20004, 20003], new)
    assert index.size == 3005
    scores, ids = index.search(new, 1)
    assert ids[:, 0].tolist() == [20001, 20000, 20002, 20004, 20003]
    assert np.allclose(scores[:, 0], 1, atol=1e-3)
    assert index.remove([20000, IDS[7], 999_999]) == 2
    assert index.size == 3003
    _, ids = index.search(np.stack([new[1], gallery[7]]), 3003)
    assert not np.isin([20000, IDS[7]], ids).any()


def test_an_id_added_again_has_its_new_descriptor(index: SearchIndex, gallery: Any, make_descriptors: Any) -> None:
    moved = make_descriptors(2, 64, seed=8)
    index.add([IDS[3]], moved[:1])
    index.add([IDS[3]], moved[1:])
    assert index.size == 3000
    assert index.search(moved[1], 1)[1][0, 0] == IDS[3]
    assert (index.search(gallery[3], 3000)[1] == IDS[3]).sum() == 1
    index.maintain(force=True)
    assert index.size == 3000
    assert np.array_equal(index.descriptors([IDS[3]])[0], moved[1])
    assert index.remove([IDS[3]]) == 1
    assert index.size == 2999


def test_a_filter_is_inside_the_search(index: SearchIndex, gallery: Any, queries: Any, slow_search: Any) -> None:
    allowed = IDS[::100]
    scores, ids = index.search(queries, 40, allowed=[*allowed.tolist(), 77_777])
    assert (ids[:, :30] >= 0).all()
    assert (ids[:, 30:] == -1).all()
    assert np.isneginf(scores[:, 30:]).all()
    assert all(sorted(row[:30].tolist()) == allowed.tolist() for row in ids)
    _, wide = index.search(queries, 10, allowed=IDS[:1500])
    assert np.isin(wide, IDS[:1500]).all()
    _, expected = slow_search(gallery[:1500], IDS[:1500], queries, 10)
    overlap = np.mean([np.isin(a, b).mean() for a, b in zip(wide, expected, strict=True)])
    assert overlap >= {"flat": 1.0, "pq8": 0.4}.get(index.codec, 0.7)


def test_a_filter_sees_the_tail_and_tombstones(index: SearchIndex, queries: Any) -> None:
    index.add([30_000], queries[:1])
    index.remove([IDS[10]])
    _, ids = index.search(queries[0], 4, allowed=[30_000, IDS[10], IDS[11]])
    assert ids[0].tolist() == [30_000, IDS[11], -1, -1]


def test_maintenance_changes_no_answer(index: SearchIndex, queries: Any, make_descriptors: Any) -> None:
    index.add(np.arange(400) + 50_000, make_descriptors(400, 64, seed=9))
    index.remove(IDS[:600])
    before = index.search(queries, 10)
    assert index.needs_maintenance
    assert index.maintain(force=True)
    assert index.tail_size == 0
    assert index.deleted == 0
    assert index.size == 2800
    after = index.search(queries, 10)
    if index.codec == "flat":
        assert np.array_equal(before[1], after[1])
        assert np.array_equal(before[0], after[0])
    # The others go from exact to coded scores for the tail, or scan other lists: nearly the same answers.
    assert np.mean([np.isin(a, b).mean() for a, b in zip(before[1], after[1], strict=True)]) > 0.75


def test_saving_and_loading_give_the_same_answers(
    index: SearchIndex, queries: Any, tmp_path: Path, make_descriptors: Any
) -> None:
    index.add([90_000, 90_001], make_descriptors(2, 64, seed=11))
    index.remove([IDS[5], 90_001])
    index.save(tmp_path / "index")
    loaded = load_index(tmp_path / "index")
    assert loaded.codec == index.codec
    assert loaded.size == index.size == 3000
    assert np.array_equal(loaded.ids(), index.ids())
    for a, b in zip(index.search(queries, 20), loaded.search(queries, 20), strict=True):
        assert np.array_equal(a, b)
    loaded.remove([90_000])
    loaded.save(tmp_path / "index")
    assert load_index(tmp_path / "index").size == 2999
    assert verify(tmp_path / "index") == []


def test_a_second_save_leaves_no_old_files(index: SearchIndex, tmp_path: Path, make_descriptors: Any) -> None:
    index.save(tmp_path)
    index.add(np.arange(100) + 60_000, make_descriptors(100, 64, seed=3))
    index.maintain(force=True)
    index.save(tmp_path)
    again = load_index(tmp_path)
    assert again.size == 3100
    kept = {path.name for path in tmp_path.iterdir()}
    again.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_every_damaged_file_is_refused(index: SearchIndex, tmp_path: Path) -> None:
    index.save(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        if not content:
            continue
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
        if path.name == MANIFEST:
            path.write_bytes(content.replace(b'"dim": 64', b'"dim": 65'))
        with pytest.raises(IndexingError):
            load_index(tmp_path)
        path.write_bytes(content)
    assert load_index(tmp_path).size == 3000


def test_an_index_of_an_older_layout_is_refused(gallery: Any, tmp_path: Path) -> None:
    build_index("pq1", np.arange(3000), gallery).save(tmp_path)
    manifest = read_manifest(tmp_path)
    del manifest["files"]["codec.matrix"]
    write_manifest(tmp_path, manifest)
    with pytest.raises(IndexingError, match="older Tessera"):
        load_index(tmp_path)


def test_the_same_input_gives_the_same_files_on_one_and_two_threads(gallery: Any, tmp_path: Path) -> None:
    for codec in CODECS:
        for threads in (1, 2):
            build_index(codec, IDS[:1100], gallery[:1100, :32], threads=threads, seed=4).save(
                tmp_path / f"{codec}{threads}"
            )
        one, two = ({p.name: p.read_bytes() for p in (tmp_path / f"{codec}{t}").iterdir()} for t in (1, 2))
        assert one == two, codec


def test_searches_run_while_the_index_changes(index: SearchIndex, queries: Any, make_descriptors: Any) -> None:
    failures: list[BaseException] = []

    def look() -> None:
        try:
            for _ in range(15):
                _, ids = index.search(queries[:2], 5)
                assert (ids >= 0).all()
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(10):
        index.add([70_000 + i], make_descriptors(1, 64, seed=i))
        index.remove([IDS[i]])
        index.maintain(force=True)
    for reader in readers:
        reader.join()
    assert failures == []
    assert index.size == 3000


def test_nonsense_is_refused(gallery: Any) -> None:
    with pytest.raises(IndexingError, match="Did you mean 'flat'"):
        build_index("flta", IDS, gallery)
    with pytest.raises(IndexingError, match="distinct"):
        build_index("flat", np.zeros(3000), gallery)
    with pytest.raises(IndexingError, match="3000"):
        build_index("flat", IDS[:10], gallery)
    index = build_index("flat", IDS, gallery)
    with pytest.raises(IndexingError, match="64"):
        index.search(np.zeros((1, 65)), 3)
    with pytest.raises(IndexingError, match="finite"):
        index.add([1], np.full((1, 64), np.nan))
    with pytest.raises(IndexingError, match="at least 1"):
        index.search(gallery[0], 0)


def test_an_index_may_start_empty(tmp_path: Path, make_descriptors: Any) -> None:
    index = build_index("auto", [], np.empty((0, 64), np.float32))
    scores, ids = index.search(np.ones((2, 64)), 3)
    assert np.isneginf(scores).all()
    assert (ids == -1).all()
    index.add([4], make_descriptors(1, 64, seed=1))
    index.save(tmp_path)
    assert load_index(tmp_path).search(np.ones(64), 1)[1][0, 0] == 4
