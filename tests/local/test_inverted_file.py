"""ASMK against the published package's numbers and against a slow second writing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import ConfigError, IndexingError
from tessera.local.aggregation import aggregate, pack_signs, padded_length
from tessera.local.codebook import Codebook
from tessera.local.inverted_file import InvertedFile, KernelConfig

RUNS = [
    "how_bin",
    "nobin_ma5",
    "bin_ma1",
    "nobin_ma1",
    "bin_idf",
    "nobin_idf",
    "nobin_thr02_a2",
    "how_bin_topk5",
    "bin_dbma2",
]


@pytest.fixture(scope="module")
def golden(golden_dir):
    folder = golden_dir / "asmk"
    return {
        "codebook": Codebook(np.load(folder / "codebook.npy")),
        "data": {
            name: array.astype(np.float32) if "vecs" in name else array
            for name, array in np.load(folder / "descriptors.npz").items()
        },
        "expected": dict(np.load(folder / "expected.npz")),
        "meta": json.loads((folder / "meta.json").read_text()),
    }


def build(golden, run):
    meta = golden["meta"][run]
    config = KernelConfig(
        binary=meta["binary"],
        db_assignment=meta["db_multiple_assignment"],
        query_assignment=meta["query_multiple_assignment"],
        alpha=meta["alpha"],
        threshold=meta["similarity_threshold"],
        idf=meta["use_idf"],
    )
    index = InvertedFile(golden["codebook"], config)
    index.add(golden["data"]["db_imids"].astype(np.int64), golden["data"]["db_vecs"])
    return index, meta


@pytest.mark.parametrize("run", RUNS)
def test_scores_and_ranks_are_the_published_ones(golden, run):
    index, meta = build(golden, run)
    expected = golden["expected"][f"{run}_scores_by_db_id"]
    for query in range(5):
        features = golden["data"]["q_vecs"][golden["data"]["q_imids"] == query]
        ids, scores = index.search(features, meta["topk"])
        np.testing.assert_allclose(scores, expected[query][ids], atol=1e-6, rtol=1e-5)
        ranks = golden["expected"][f"{run}_ranks"][query]
        assert len(ids) == len(ranks)
        gaps = np.abs(np.diff(expected[query][ranks]))
        clear = np.r_[True, gaps > 1e-6] & np.r_[gaps > 1e-6, True]
        np.testing.assert_array_equal(ids[clear], ranks[clear])


def test_words_bits_norms_and_idf_are_the_published_ones(golden):
    codebook, data, expected = golden["codebook"], golden["data"], golden["expected"]
    np.testing.assert_array_equal(codebook.assign(data["db_vecs"])[:, 0], expected["db_words"])
    np.testing.assert_array_equal(codebook.assign(data["q_vecs"], 5), expected["q_words5"])
    for name, vectors, owners, nearest in (("q0", "q_vecs", "q_imids", 5), ("db0", "db_vecs", "db_imids", 1)):
        features = data[vectors][data[owners] == 0]
        zeros = np.zeros(len(features), np.int64)
        direction = aggregate(codebook, features, zeros, nearest=nearest, binary=False)
        bits = aggregate(codebook, features, zeros, nearest=nearest, binary=True)
        np.testing.assert_array_equal(direction.words, expected[f"agg_{name}_words"])
        np.testing.assert_allclose(direction.values, expected[f"agg_{name}_l2"], atol=1e-6)
        # The package packs the first dimension into the highest bit of a 32-bit word.
        ours = bits.values.view(np.uint8).reshape(len(bits), -1, 4)[:, :, ::-1].copy().view(np.uint32)[..., 0]
        np.testing.assert_array_equal(ours, expected[f"agg_{name}_packed_uint32"])
    index, _ = build(golden, "how_bin")
    np.testing.assert_allclose(index.norms(), expected["how_bin_norm_factor"])
    index, _ = build(golden, "bin_idf")
    np.testing.assert_allclose(index.idf(), expected["bin_idf_idf"], rtol=1e-6)
    np.testing.assert_allclose(index.norms(), expected["bin_idf_norm_factor"], rtol=1e-6)


def test_distances_are_normalised_by_the_padded_length(golden):
    bits = pack_signs(golden["expected"]["ham100_in"])
    distance = np.bitwise_count(bits[:, None] ^ bits[None]).sum(axis=2)
    np.testing.assert_allclose(distance / padded_length(100), golden["expected"]["ham100_cdist_default"], atol=1e-6)


def slow_scores(codebook, config, db, query):
    """ASMK word by word, image by image, feature by feature, in float64."""

    def words_of(features, nearest):
        found = {}
        for feature in features.astype(np.float64):
            distances = ((codebook.centroids.astype(np.float64) - feature) ** 2).sum(axis=1)
            for word in np.argsort(distances, kind="stable")[:nearest]:
                found.setdefault(int(word), np.zeros(codebook.dim))
                found[int(word)] += feature - codebook.centroids[word]
        return found

    def similarity(a, b):
        if config.binary:
            differing = sum(int((x > 0) != (y > 0)) for x, y in zip(a, b, strict=True))
            value = 1 - 2 * differing / (32 * -(-codebook.dim // 32))
        else:
            value = a @ b / (np.linalg.norm(a) + 1e-6) / (np.linalg.norm(b) + 1e-6)
        return value**config.alpha if value >= config.threshold else 0.0

    images = {image: words_of(features, config.db_assignment) for image, features in db.items()}
    count = {w: sum(w in words for words in images.values()) for w in range(codebook.size)}
    weight = {w: np.log(len(images) / c) ** 2 if config.idf and c else 1.0 for w, c in count.items()}
    asked = words_of(query, config.query_assignment)
    norm = lambda words: np.sqrt(sum(weight[w] for w in words))  # noqa: E731
    return {
        image: sum(weight[w] * similarity(asked[w], words[w]) for w in asked if w in words)
        / max(norm(words), 1e-6)
        / max(norm(asked), 1e-12)
        for image, words in images.items()
    }


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), binary=st.booleans(), idf=st.booleans(), dim=st.sampled_from([8, 33, 64, 100]))
def test_equal_to_the_definition_after_adds_and_removals(seed, binary, idf, dim):
    random = np.random.default_rng(seed)
    codebook = Codebook(random.normal(size=(6, dim)))
    config = KernelConfig(binary=binary, idf=idf, query_assignment=2, db_assignment=1)
    index = InvertedFile(codebook, config)
    db = {}
    for start in (0, 3, 6):
        batch = {
            image: random.normal(size=(random.integers(1, 6), dim)).astype(np.float32)
            for image in range(start, start + 3)
        }
        owners = np.concatenate([np.full(len(features), image) for image, features in batch.items()])
        index.add(owners, np.concatenate(list(batch.values())))
        db |= batch
    for gone in (1, 7):
        index.remove([gone])
        del db[gone]
    query = random.normal(size=(4, dim)).astype(np.float32)
    for step in range(2):
        ids, scores = index.scores(query)
        expected = slow_scores(codebook, config, db, query)
        assert sorted(ids) == sorted(db)
        np.testing.assert_allclose(scores, [expected[int(image)] for image in ids], atol=1e-6)
        if step == 0:
            index.compact()


def test_saved_and_loaded_it_answers_the_same(golden, tmp_path):
    index, _ = build(golden, "bin_idf")
    index.remove([3])
    query = golden["data"]["q_vecs"][golden["data"]["q_imids"] == 1]
    before = index.search(query)
    index.save(tmp_path / "asmk.bin")
    loaded = InvertedFile.load(tmp_path / "asmk.bin")
    assert loaded.config == index.config
    for ours, theirs in zip(loaded.search(query), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    damaged = bytearray((tmp_path / "asmk.bin").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "asmk.bin").write_bytes(bytes(damaged))
    with pytest.raises(IndexingError, match="damaged"):
        InvertedFile.load(tmp_path / "asmk.bin")


def test_what_cannot_be_indexed_is_said():
    codebook = Codebook(np.eye(4))
    with pytest.raises(IndexingError, match="dimension 4"):
        codebook.assign(np.zeros((3, 5), np.float32))
    with pytest.raises(IndexingError, match="at least that many"):
        Codebook.train(np.zeros((3, 5), np.float32), 4)
    index = InvertedFile(codebook)
    index.add(np.zeros(2, np.int64), np.ones((2, 4), np.float32))
    with pytest.raises(IndexingError, match="image 0 is in the inverted file already"):
        index.add(np.zeros(2, np.int64), np.ones((2, 4), np.float32))


def test_ids_may_be_any_number_and_one_a_feature():
    random = np.random.default_rng(0)
    codebook, features = Codebook(random.normal(size=(6, 33))), random.normal(size=(6, 33)).astype(np.float32)
    small, large = InvertedFile(codebook), InvertedFile(codebook)
    small.add(np.array([2, 2, 0, 0, 1, 1]), features)
    large.add(np.array([2**62, 2**62, -1, -1, 7, 7]), features)
    (ids, scores), (others, same) = small.search(features[:2]), large.search(features[:2])
    assert [{0: -1, 1: 7, 2: 2**62}[i] for i in ids.tolist()] == others.tolist()
    assert np.array_equal(scores, same)
    with pytest.raises(IndexingError, match="6 features, 1 ids"):
        small.add(np.array([3]), features)


@pytest.mark.parametrize("setting", [{"query_assignment": 0}, {"db_assignment": 0}, {"alpha": 0.0}, {"nprobe": -1}])
def test_a_kernel_that_compares_nothing_is_refused(setting):
    with pytest.raises(ConfigError, match="at least one word"):
        KernelConfig(**setting)


def test_what_is_no_codebook_is_said(tmp_path):
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "several.npz", a=np.eye(3))
    np.save(tmp_path / "nan.npy", np.full((2, 3), np.nan))
    for name in ("empty.npy", "several.npz", "gone.npy"):
        with pytest.raises(IndexingError, match=f"{name} is not a codebook"):
            Codebook.load(tmp_path / name)
    with pytest.raises(IndexingError, match="not finite"):
        Codebook.load(tmp_path / "nan.npy")
    with pytest.raises(IndexingError, match="no nearest word"):
        Codebook(np.eye(3)).assign(np.full((1, 3), np.inf, np.float32))


def test_no_features_give_no_score_and_no_crash():
    index = InvertedFile(Codebook(np.eye(4)))
    index.add(np.zeros(2, np.int64), np.ones((2, 4), np.float32))
    ids, scores = index.search(np.empty((0, 4), np.float32))
    assert ids.tolist() == [0]
    assert scores.tolist() == [0.0]


def test_the_same_seed_gives_the_same_words():
    features = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    first, second = (Codebook.train(features, 5, seed=3).centroids for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_an_nprobe_finds_nearly_all_nearest_words_and_is_kept(tmp_path):
    random = np.random.default_rng(0)
    codebook = Codebook(random.normal(size=(8192, 16)))
    features = (codebook.centroids[random.integers(0, 8192, 300)] + 0.2 * random.normal(size=(300, 16))).astype("f4")
    exact, near = codebook.assign(features, 5), codebook.assign(features, 5, nprobe=48)
    assert near.shape == exact.shape
    assert (near[:, 0] == exact[:, 0]).mean() > 0.98
    assert np.array_equal(near, Codebook(codebook.centroids).assign(features, 5, nprobe=48))
    assert (codebook.assign(features, nprobe=256) == exact[:, :1]).mean() >= (near[:, :1] == exact[:, :1]).mean()
    index = InvertedFile(codebook, KernelConfig(nprobe=48))
    index.add(np.repeat(np.arange(30), 10), features)
    assert [int(index.search(features[10 * i : 10 * i + 10], 1)[0][0]) for i in range(30)] == list(range(30))
    index.save(tmp_path / "asmk.bin")
    assert InvertedFile.load(tmp_path / "asmk.bin").config.nprobe == 48


@pytest.mark.parametrize("shape", [(500, 16), (9000, 7)], ids=["few words", "an odd dimension"])
def test_where_groups_make_no_sense_every_word_is_compared(shape):
    random = np.random.default_rng(1)
    codebook = Codebook(random.normal(size=shape))
    features = random.normal(size=(50, shape[1])).astype("f4")
    assert np.array_equal(codebook.assign(features, 3, nprobe=1), codebook.assign(features, 3))
