"""The VQ tokenizer over processes: its words move as if one process had seen the whole batch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import distributed

from tessera.models.parts.tokenizers import QuantisedTokenizer


def test_words_move_by_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of a real gloo group, as threads of one process: each has one of the two halves."""
    torch.manual_seed(0)
    features = torch.randn(4, 9, 6, dtype=torch.float64)
    alone = QuantisedTokenizer(6, 3, decay=0.5).double()
    halves = [QuantisedTokenizer(6, 3, decay=0.5).double() for _ in range(2)]
    for half in halves:
        half.load_state_dict(alone.state_dict())
    for _ in range(3):
        alone.train()(features)
    store, mine = distributed.HashStore(), threading.local()

    def reduce(values: torch.Tensor) -> None:
        mine.group.allreduce([values]).wait()

    def train(rank: int) -> None:
        mine.group = distributed.ProcessGroupGloo(store, rank, 2, timedelta(seconds=120))
        for _ in range(3):
            halves[rank].train()(features[2 * rank : 2 * rank + 2])

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", reduce)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(2)))
    for half in halves:
        torch.testing.assert_close(half.tokens, alone.tokens, rtol=0, atol=1e-12)
