"""The bundle that ships: whole, small, and true to what its card and docs/models.md say."""

import numpy as np
import pytest

from tessera.extract.runtime import open_runtime
from tessera.models.bundle import Bundle

MAX_BYTES = 25_000_000


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.open("lite")


@pytest.fixture(scope="module")
def outputs(bundle: Bundle) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).standard_normal((2, 3, 96, 160)).astype(np.float32)
    return open_runtime(bundle, threads=1).run(images, outputs=("descriptor", "attention", "parts"))


def test_files_are_those_of_the_card_and_small(bundle):
    bundle.verify()
    assert sum(file.stat().st_size for file in bundle.path.iterdir()) <= MAX_BYTES


def test_card_says_what_it_is(bundle):
    card = bundle.card
    assert (card.kind, card.dim, card.num_tokens, card.stride) == ("global", 1024, 4, 32)
    assert card.licence
    assert card.training_data
    assert card.provenance["command"].startswith("python scripts/lite/fit_lite.py")
    assert card.figures, "figures are part of the card: scripts/lite/write_card.py puts them there"


def test_outputs_have_their_shapes(outputs):
    assert outputs["descriptor"].shape == (2, 1024)
    assert outputs["attention"].shape == (2, 4, 3, 5)
    assert outputs["parts"].shape == (2, 5, 1024)
    np.testing.assert_allclose(np.linalg.norm(outputs["descriptor"], axis=1), 1, atol=1e-5)


def test_parts_sum_to_the_descriptor(outputs):
    total = outputs["parts"].sum(axis=1)
    np.testing.assert_allclose(total / np.linalg.norm(total, axis=1, keepdims=True), outputs["descriptor"], atol=1e-5)


def test_tokens_look_at_different_places(outputs):
    maps = outputs["attention"].reshape(2, 4, -1)
    maps = maps / maps.sum(axis=2, keepdims=True)
    overlaps = [np.minimum(maps[:, a], maps[:, b]).sum(axis=1) for a in range(4) for b in range(a)]
    assert np.mean(overlaps) < 0.95
