"""The bars on work: what the tokens cost beside a plain backbone, and the table of costs."""

from __future__ import annotations

import pytest
import torch

from tessera.models import flops
from tessera.models.flops import Cost, count_entry, count_modules, count_network, entry_fingerprint, model_cost
from tessera.models.model_registry import MODELS


def test_a_linear_network_is_counted_by_hand() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 2, 3, padding=1))
    assert count_network(network, width=10, height=6) == Cost(24 + 8 + 144 + 2, 60 * 24 + 60 * 144)
    assert count_modules(network, width=10, height=6) == {"0": 60 * 24, "1": 60 * 144}


@pytest.fixture(scope="module")
def plain() -> int:
    return count_entry(MODELS["gem-r50"]).multiply_adds


def test_the_released_network_costs_at_most_12_percent_more(plain: int) -> None:
    assert 1.05 < count_entry(MODELS["token-released"]).multiply_adds / plain <= 1.12


def test_the_papers_network_costs_at_most_8_percent_more_and_its_refinement_next_to_nothing(plain: int) -> None:
    entry = MODELS["token-r50"]
    with torch.device("meta"):
        parts = count_modules(entry.build(entry.resolve()))
    total = sum(parts.values())
    assert 1.02 < total / plain <= 1.08
    assert 0 < parts["head.refinement"] < 0.005 * total
    assert total == count_entry(entry).multiply_adds


def test_the_table_has_every_entry_and_its_figures_hold() -> None:
    stale = [name for name, entry in MODELS.items() if flops._table()[name]["entry"] != entry_fingerprint(entry)]
    assert stale == []
    for name in ("token-lite", "gem-r50", "how-r18"):
        assert model_cost(name) == count_entry(MODELS[name])


def test_an_entry_that_the_table_does_not_know_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "_table", dict)
    assert model_cost("token-lite").multiply_adds == count_entry(MODELS["token-lite"]).multiply_adds


def test_networks_are_timed_in_turns() -> None:
    calls: list[str] = []

    class Recorder(torch.nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            calls.append(self.name)
            return images

    seconds = flops.time_networks([Recorder("a"), Recorder("b")], rounds=2, width=4, height=4)
    assert calls == ["a", "b"] * 3
    assert len(seconds) == 2 and all(second >= 0 for second in seconds)
