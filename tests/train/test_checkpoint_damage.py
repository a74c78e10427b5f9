"""A checkpoint with a flipped bit is not loaded."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tessera.errors import CheckpointError  # noqa: E402
from tessera.train.records.checkpoint import FORMAT, load_checkpoint  # noqa: E402


def same(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_no_flipped_bit_changes_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.manual_seed(0)
    state = {"format": FORMAT, "network": {"weight": torch.randn(64, 64), "bias": torch.randn(64)}, "step": 7}
    torch.save(state, path)
    assert same(load_checkpoint(path), state)
    whole = path.read_bytes()
    refused, numbers = 0, random.Random(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[numbers.randrange(len(whole))] ^= 1 << numbers.randrange(8)
        path.write_bytes(damaged)
        try:
            assert same(load_checkpoint(path), state)  # in a gap between two tensors
        except CheckpointError:
            refused += 1
    assert refused > 150
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="another checkpoint"):
            load_checkpoint(path)
