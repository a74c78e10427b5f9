"""What finds by parts: compact features, the inverted file over them, matching and calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.errors import ConfigError, IndexingError
from tessera.local.calibration import EVIDENCE, VERIFIED_INLIERS, Background, Calibration, fall, load_calibration
from tessera.local.compact import BYTES_A_FEATURE, CompactFeatures, aggregate_codes, pack_bits, unpack_bits
from tessera.local.hessian import HessianAffineExtractor
from tessera.local.matching import verify_many
from tessera.local.parts import PartsModel, QueryFeatures
from tessera.local.postings import MAX_DISTANCE, Postings, aggregate_query, verify_files
from tessera.local.turning import turn_picture
from tessera.local.xfeat import XFeatExtractor

SIZE = (480, 360)
WORDS = 50


@pytest.fixture(scope="module")
def model() -> PartsModel:
    return PartsModel.open()


@pytest.fixture(scope="module")
def scene(model):
    return model.extract(paint_scene(0, SIZE))


@pytest.fixture(scope="module")
def regions(scene):
    return scene.kinds[0]


def random_features(seed: int, count: int = 40) -> CompactFeatures:
    random = np.random.default_rng(seed)
    return CompactFeatures(
        random.integers(0, WORDS, count).astype(np.uint16),
        random.integers(0, 1 << 63, count, dtype=np.uint64),
        random.uniform(0, 640, (count, 2)).astype(np.float32),
        random.uniform(1, 30, count).astype(np.float32),
        (640, 480),
    )


# -- the extractor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extractor", "cosine"),
    [(HessianAffineExtractor(740), 0.98), (XFeatExtractor(300), 0.95)],
    ids=["regions", "corners"],
)
def test_features_follow_a_shift_and_are_described_alike(extractor, cosine):
    picture = paint_scene(0, SIZE)
    scene, shifted = (extractor.extract(np.ascontiguousarray(picture[:, start:])) for start in (0, 32))
    apart = scene.positions[:, None] - np.float32([32, 0]) - shifted.positions[None]
    nearest = np.square(apart).sum(axis=-1).argmin(axis=1)
    distance = np.sqrt(np.square(apart).sum(axis=-1).min(axis=1))
    inner = (scene.positions[:, 0] > 96) & (distance < 0.1)
    assert inner.sum() > 0.6 * (scene.positions[:, 0] > 96).sum()
    cosines = (scene.descriptors * shifted.descriptors[nearest]).sum(axis=1)
    assert np.median(cosines[inner]) > cosine


@pytest.mark.parametrize("kind", [0, 1])
def test_words_lie_in_the_groups_that_faiss_would_put_them_in(model, kind):
    import faiss

    vocabulary = model.vocabularies[kind]
    quantiser = vocabulary._quantiser
    lists = quantiser.invlists
    expected = vocabulary._coarse.search(vocabulary.system.codebook.centroids, 1)[1][:, 0]
    assert quantiser.ntotal == len(expected)
    for group in range(quantiser.nlist):
        size = lists.list_size(group)
        ids = faiss.rev_swig_ptr(lists.get_ids(group), size)
        assert np.array_equal(ids, np.flatnonzero(expected == group))


def test_features_are_the_same_twice_strongest_first_and_unit(scene, model):
    for kind, again in zip(scene.kinds, model.extract(paint_scene(0, SIZE)).kinds, strict=True):
        assert np.array_equal(again.descriptors, kind.descriptors)
        assert (np.diff(kind.strengths) <= 0).all()
        assert np.allclose(np.linalg.norm(kind.descriptors, axis=1), 1, atol=1e-5)


def test_words_of_one_kind_are_not_those_of_the_other(scene, model):
    words, of_regions = model.encode(scene).words, len(scene.kinds[0])
    assert of_regions and len(scene.kinds[1])
    first_of_corners = model.vocabularies[1].first_word
    assert words[:of_regions].max() < first_of_corners <= words[of_regions:].min()
    assert words.max() < model.num_words == len(model.match_distances)


@pytest.mark.parametrize("picture", [np.zeros((300, 300, 3), np.uint8), np.full((20, 20, 3), 7, np.uint8)])
def test_black_and_tiny_pictures_have_no_features(model, picture):
    assert len(model.encode(model.extract(picture))) == len(model.encode_query(model.extract(picture))) == 0


def test_a_picture_of_nothing_but_corners_has_as_many_as_are_kept(model):
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024), dtype=np.uint8)
    features = model.extract(np.repeat(noise[:, :, None], 3, axis=2))
    assert 0 < len(features) <= model.most_features
    assert len(model.encode(features).to_bytes()) <= 30_000


def test_turned_pictures_have_their_own_corners(model, scene):
    turned = model.turn(scene, 90)
    again = model.extract(np.ascontiguousarray(np.rot90(paint_scene(0, SIZE))))
    assert np.array_equal(turned.kinds[1].descriptors, again.kinds[1].descriptors)
    assert turned.image_size == SIZE[::-1]


def test_turned_regions_are_those_of_the_turned_picture(model, scene):
    seen = []
    for degrees, regions in model.turn_regions(scene):
        turned = model.extract(turn_picture(paint_scene(0, SIZE), degrees))
        assert regions.image_size == turned.image_size
        (found,) = verify_many(model.encode_query(regions), [model.encode(turned)], model.match_distances)
        assert found.num_inliers > (60 if degrees % 90 else 100)
        assert np.abs(found.transformation / found.transformation[2, 2] - np.eye(3)).max() < 2
        seen.append(degrees)
    assert sorted(seen) == [*range(30, 360, 30)]


# -- compact features ------------------------------------------------------------------------------------------------


def test_compact_features_survive_their_bytes():
    features = random_features(0)
    content = features.to_bytes()
    assert len(content) == 10 + BYTES_A_FEATURE * len(features)
    read = CompactFeatures.from_bytes(content)
    assert np.array_equal(read.words, features.words) and np.array_equal(read.codes, features.codes)
    assert np.abs(read.positions - features.positions).max() <= 0.125
    assert np.abs(read.scales / features.scales - 1).max() < 0.03
    assert read.image_size == (640, 480)
    assert len(CompactFeatures.from_bytes(CompactFeatures.empty().to_bytes())) == 0


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:5], lambda c: b"XXXX" + c[4:], lambda c: c + b"\0"])
def test_bytes_that_are_no_features_are_refused(damage):
    with pytest.raises(IndexingError, match="check --repair"):
        CompactFeatures.from_bytes(damage(random_features(1).to_bytes()))


def test_features_of_a_word_vote_and_the_first_decides():
    bits = np.zeros((4, 64), bool)
    bits[0, :3] = True  # word 7, first
    bits[1, 1:5] = True  # word 7
    bits[2, 9] = True  # word 3, alone
    words, codes = aggregate_codes(np.array([7, 7, 3, 9]), pack_bits(bits))
    assert words.tolist() == [3, 7, 9]
    voted = unpack_bits(codes).astype(bool)
    assert np.flatnonzero(voted[0]).tolist() == [9]
    assert np.flatnonzero(voted[1]).tolist() == [0, 1, 2]


def test_what_lies_inside_a_polygon():
    features = replace(random_features(2, 3), positions=np.float32([[5, 5], [15, 5], [9, 1]]))
    square = np.array([[0.0, 0], [10, 0], [10, 10], [0, 10]])
    assert features.inside(square).tolist() == features.inside(square[::-1]).tolist() == [True, False, True]


# -- the inverted file -----------------------------------------------------------------------------------------------


def slow_score(query: CompactFeatures, image: CompactFeatures) -> float:
    """ASMK*'s selective kernel, written a second time."""
    of_query, of_image = (
        dict(zip(*(part.tolist() for part in aggregate_codes(f.words.astype(np.int64), f.codes)), strict=True))
        for f in (query, image)
    )
    total = 0.0
    for word in of_query.keys() & of_image.keys():
        distance = bin(of_query[word] ^ of_image[word]).count("1")
        if distance <= MAX_DISTANCE:
            total += (1 - 2 * distance / 64) ** 3
    return total / np.sqrt(len(of_query) * len(of_image))


def near(features: CompactFeatures, seed: int) -> CompactFeatures:
    """The same features with some signs turned, so that there is something to score."""
    random = np.random.default_rng(seed)
    flips = pack_bits(random.random((len(features), 64)) < 0.2)
    return replace(features, codes=features.codes ^ flips)


def test_scores_are_the_kernels(tmp_path: Path):
    images = {10 * i: random_features(i) for i in range(1, 8)}
    images[80] = CompactFeatures.empty()
    query = near(images[30], 5)
    postings = Postings(WORDS)
    postings.add(list(images.items())[:3])
    postings.add(list(images.items())[3:])
    words, codes = aggregate_codes(query.words.astype(np.int64), query.codes)
    expected = [slow_score(query, image) if len(image) else 0.0 for image in images.values()]
    assert postings.ids.tolist() == list(images)
    assert postings.scores(words, codes) == pytest.approx(expected, abs=1e-6)
    assert int(np.argmax(expected)) == 2 and expected[2] > 0.1
    postings.save(tmp_path / "saved", {"generation": 5})
    loaded, state = Postings.load(tmp_path / "saved")
    assert (state["generation"], loaded.ids.tolist()) == (5, list(images))
    assert loaded.scores(words, codes) == pytest.approx(expected, abs=1e-6)
    assert verify_files(tmp_path / "saved") == []
    assert postings.scores(words[:0], codes[:0]).tolist() == [0.0] * 8


def test_damage_in_the_file_is_noticed(tmp_path: Path):
    postings = Postings(WORDS)
    postings.add([(1, random_features(0))])
    postings.save(tmp_path, {})
    path = tmp_path / "postings.faiss"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert len(verify_files(tmp_path)) == 1
    path.write_bytes(content[:50])
    with pytest.raises(IndexingError, match="inverted file"):
        Postings.load(tmp_path)
    path.unlink()
    with pytest.raises(IndexingError, match="inverted file"):
        Postings.load(tmp_path)


def test_words_of_another_codebook_are_refused():
    with pytest.raises(IndexingError, match="another one"):
        Postings(10).add([(1, random_features(0))])


def test_a_query_has_several_words_a_feature(model, scene):
    query = model.encode_query(scene)
    assert query.words.shape == (len(scene), 8)
    stored = model.encode(scene)
    assert (query.words[:, 0] == stored.words).mean() > 0.95
    words, _ = aggregate_query(query)
    assert (np.diff(words) > 0).all()
    assert len(words) > len(np.unique(stored.words))


# -- matching --------------------------------------------------------------------------------------------------------


def test_another_view_is_verified_and_strangers_are_not(model, scene):
    homography = draw_homography(3, SIZE)
    view = model.encode_query(model.extract(warp(paint_scene(0, SIZE), homography, 3)))
    strangers = [model.encode(model.extract(paint_scene(seed, SIZE))) for seed in range(1, 9)]
    found = verify_many(view, [model.encode(scene), *strangers, CompactFeatures.empty()], model.match_distances)
    assert found[0].num_inliers > 3 * VERIFIED_INLIERS
    assert max(one.num_inliers for one in found[1:]) < VERIFIED_INLIERS
    fitted = np.linalg.inv(found[0].transformation)
    assert np.abs(fitted / fitted[2, 2] - homography / homography[2, 2])[:2, :2].max() < 0.05
    assert (np.diff(np.sort(found[0].matches[:, 0])) > 0).all()


def test_nothing_is_matched_with_nothing(model):
    nothing = np.zeros((0, 2), np.float32)
    empty = QueryFeatures(np.zeros((0, 8), np.int64), np.zeros((0, 8), np.uint64), nothing, nothing[:, 0], (0, 0))
    assert [one.num_inliers for one in verify_many(empty, [random_features(0)], model.match_distances)] == [0]


# -- calibration -----------------------------------------------------------------------------------------------------


def test_scores_are_measured_in_deviations_of_strangers():
    background = Background(global_mean=0, global_deviation=1, weight=0)
    others = np.concatenate([np.full(49, 1.0), np.full(49, 3.0), np.full(2, 99.0)]).astype(np.float32)
    assert background.standardise("global", np.float32([2, 4]), others) == pytest.approx([0, 2])
    alone = Background(global_mean=0.5, global_deviation=0.25, weight=50)
    assert alone.standardise("global", np.float32([1.0]), np.empty(0, np.float32)) == pytest.approx([2])


def test_evidence_raises_the_probability(model):
    calibration = load_calibration(model.folder)

    def probability(zg: float, zl: float, inliers: int, cosine: float = 0.3) -> float:
        evidence = calibration.evidence(
            np.float32([zg]), np.float32([zl]), np.array([inliers]), np.array([60]), np.float32([cosine])
        )
        assert evidence.shape == (1, len(EVIDENCE))
        return float(calibration.probabilities(calibration.scores(evidence))[0])

    assert probability(0, 0, -1) < 0.05
    steps = [
        probability(0, 0, 0),
        probability(3, 0, 0),
        probability(3, 3, 0),
        probability(3, 3, 8),
        probability(3, 3, 40),
    ]
    assert steps == sorted(steps) and len(set(steps)) == len(steps)
    assert probability(3, 3, 40) > calibration.certain > probability(4, 1, 0)
    assert probability(3, 0, -1, cosine=1.0) > 0.99


def test_being_near_to_what_is_verified_ranks_and_is_no_evidence():
    calibration = Calibration(weights=(0.5, 0.4, 1.5, 3.0, 1.0, 25.0), diffused=4.0)
    none = np.zeros(3, np.int64)
    global_z = np.float32([1, 6, 20])
    evidence = calibration.evidence(global_z, np.zeros(3, np.float32), none, none, np.zeros(3, np.float32))
    scores = calibration.scores(evidence)
    assert np.allclose(calibration.rank_scores(evidence, np.zeros(3, np.float32)), scores)
    raised = calibration.rank_scores(evidence, np.ones(3, np.float32))
    moved = calibration.evidence(global_z + 4, np.zeros(3, np.float32), none, none, np.zeros(3, np.float32))
    assert np.allclose(raised, calibration.scores(moved), atol=1e-5)
    assert raised[0] - scores[0] == pytest.approx(2.0)  # in full,
    assert raised[2] - scores[2] == pytest.approx(0.1)  # and hardly where the descriptor says all it can
    assert np.array_equal(calibration.scores(evidence), scores)


def test_probabilities_fall_with_rank_and_keep_their_mean():
    assert np.allclose(fall(np.array([0.9, 0.5, 0.7, 0.6, 0.1])), [0.9, 0.6, 0.6, 0.6, 0.1])
    assert fall(np.zeros(0)).shape == (0,)
    random = np.random.default_rng(0)
    for _ in range(50):
        given = random.random(random.integers(1, 30))
        made = fall(given)
        assert (np.diff(made) <= 1e-12).all() and made.mean() == pytest.approx(given.mean())
        # The nearest of all that fall: a slow second writing (min-max formula of isotonic regression).
        means = [
            min(max(given[i : j + 1].mean() for j in range(k, len(given))) for i in range(k + 1))
            for k in range(len(given))
        ]
        assert np.allclose(made, means)


def test_a_calibration_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="weights"):
        Calibration(weights=(1.0,))
