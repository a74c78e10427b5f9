"""Tokens over sets of features: padding changes nothing, training learns, files load strictly."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tessera.config import to_mapping
from tessera.errors import CheckpointError, ModelError, TrainingError
from tessera.local.features import LocalFeatures
from tessera.local.token_training import TokenTrainingConfig, train_tokens
from tessera.local.tokens import SetTokens, SetTokensConfig, load_tokens, pad_sets, save_tokens

CONFIG = SetTokensConfig(features=8, channels=16, hidden=16, heads=2, dim=12, num_tokens=3)


def make_network() -> SetTokens:
    torch.manual_seed(0)
    return SetTokens(CONFIG).eval()


def as_features(values: np.ndarray) -> LocalFeatures:
    zeros = np.zeros(len(values), np.float32)
    return LocalFeatures(values, np.zeros((len(values), 2), np.float32), zeros, zeros)


def test_padding_changes_nothing():
    network = make_network().double()
    values = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = torch.ones(2, 5, dtype=torch.bool)
    padded = torch.cat([values, torch.full((2, 7, 8), 1e3, dtype=torch.float64)], dim=1)
    longer = torch.cat([mask, torch.zeros(2, 7, dtype=torch.bool)], dim=1)
    assert (network(values, mask) - network(padded, longer)).abs().max() < 1e-12
    assert (network(values, mask) - network(padded, torch.ones_like(longer))).abs().max() > 1e-3


def test_a_batch_of_different_sizes_equals_each_alone():
    network = make_network()
    random = np.random.default_rng(2)
    sets = [random.normal(size=(count, 8)).astype(np.float32) for count in (3, 11, 1)]
    together = network(*pad_sets(sets))
    for row, values in zip(together, sets, strict=True):
        assert (network(*pad_sets([values]))[0] - row).abs().max() < 1e-5


def test_the_order_of_features_does_not_matter():
    network = make_network()
    values = np.random.default_rng(3).normal(size=(9, 8)).astype(np.float32)
    first, second = (network.describe_features(as_features(rows)) for rows in (values, values[::-1].copy()))
    assert np.abs(first - second).max() < 1e-6
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)


def test_no_features_give_zeros_and_no_nan():
    network = make_network()
    assert not network.describe_features(as_features(np.zeros((0, 8), np.float32))).any()
    batch, mask = pad_sets([np.zeros((0, 8), np.float32), np.ones((2, 8), np.float32)])
    assert torch.isfinite(network(batch, mask)).all()


def test_every_parameter_gets_a_gradient():
    network = SetTokens(CONFIG).train()
    batch, mask = pad_sets([np.random.default_rng(i).normal(size=(4 + i, 8)) for i in range(3)])
    network(batch, mask).square().sum().backward()
    assert [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


def make_classes(seed: int, images: int = 10) -> tuple[list[np.ndarray], np.ndarray]:
    """Each class has its own few directions, hidden among features that all classes share."""
    random = np.random.default_rng(0)
    own, shared = random.normal(size=(4, 5, 8)), random.normal(size=(20, 8))
    draw = np.random.default_rng(seed)
    sets, labels = [], []
    for label in range(4):
        for _ in range(images):
            clutter = shared[draw.choice(20, draw.integers(4, 9))]
            both = np.concatenate([own[label], clutter]) + 0.1 * draw.normal(size=(5 + len(clutter), 8))
            sets.append(draw.permutation(both).astype(np.float32))
            labels.append(label)
    return sets, np.array(labels, np.int64)


def test_training_on_stored_features_learns_and_repeats():
    sets, labels = make_classes(1)
    config = TokenTrainingConfig(epochs=40, batch_size=10, rate=3e-3)
    network = train_tokens(sets, labels, CONFIG, config)
    fresh, fresh_labels = make_classes(2, images=4)
    rows = np.stack([network.describe_features(as_features(values)) for values in fresh])
    scores = rows @ rows.T - 2 * np.eye(len(rows))
    assert (fresh_labels[scores.argmax(axis=1)] == fresh_labels).mean() > 0.9
    again = train_tokens(sets, labels, CONFIG, config)
    assert np.array_equal(again.describe_features(as_features(fresh[0])), rows[0])


def test_nothing_to_learn_from_is_an_error():
    with pytest.raises(TrainingError, match="two classes"):
        train_tokens([np.zeros((0, 8), np.float32)] * 3, np.array([0, 1, 2]), CONFIG)


class _Extractor:
    name, dim, fingerprint = "made-up", 8, "abc"


def test_a_file_loads_as_it_was_and_refuses_other_features(tmp_path):
    network = make_network()
    save_tokens(network, tmp_path / "tokens.safetensors")
    values = as_features(np.random.default_rng(4).normal(size=(6, 8)).astype(np.float32))
    loaded = load_tokens(tmp_path / "tokens.safetensors", _Extractor())
    assert np.array_equal(loaded.describe_features(values), network.describe_features(values))
    other = _Extractor()
    other.dim = 128
    with pytest.raises(ModelError, match="other local features"):
        load_tokens(tmp_path / "tokens.safetensors", other)
    state = {key: value[:1].clone() for key, value in network.state_dict().items()}
    save_file(state, tmp_path / "cut.safetensors", {"config": json.dumps(to_mapping(network.config))})
    with pytest.raises(CheckpointError, match="does not fit the network"):
        load_tokens(tmp_path / "cut.safetensors", _Extractor())
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no tokens"):
        load_tokens(tmp_path / "bad.safetensors")
