"""Parameter groups and the rate of each step, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tessera.errors import ConfigError
from tessera.train.optimisation.averaging import WeightAverage
from tessera.train.optimisation.optimiser import (
    build_optimiser,
    freeze_parts,
    group_parameters,
    rate_schedule,
    set_rate,
)
from tessera.train.recipe import OptimiserSection, ScheduleSection


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))


def test_biases_and_norms_get_no_decay() -> None:
    groups = group_parameters(network(), OptimiserSection(weight_decay=0.5))
    sizes = {group["weight_decay"]: sorted(tuple(p.shape) for p in group["params"]) for group in groups}
    assert sizes == {0.5: [(2, 4), (4, 3, 3, 3)], 0.0: [(2,), (4,), (4,), (4,)]}


def test_parts_have_their_own_rate_and_zero_freezes() -> None:
    net = network()
    optimiser = build_optimiser(net, OptimiserSection(rates={"0": 0, "2": 0.1, "2.bias": 2.0}))
    set_rate(optimiser, 0.01)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    assert rates[id(net[2].weight)] == pytest.approx(0.001) and rates[id(net[2].bias)] == pytest.approx(0.02)
    assert rates[id(net[1].weight)] == pytest.approx(0.01)
    assert id(net[0].weight) not in rates and not net[0].weight.requires_grad


def test_a_misspelt_part_is_refused_and_so_is_freezing_everything() -> None:
    with pytest.raises(ConfigError, match=r"optimiser.rates 'backbon'"):
        group_parameters(network(), OptimiserSection(rates={"backbon": 0}))
    with pytest.raises(ConfigError, match="no parameter is left"):
        build_optimiser(network(), OptimiserSection(rates={"0": 0, "1": 0, "2": 0}))


def test_frozen_parts_keep_their_statistics() -> None:
    net = network().train()
    freeze_parts(net, {"1": 0})
    assert not net[1].training and net[0].training


def test_linear_ends_at_zero_step_by_step() -> None:
    rate = rate_schedule(ScheduleSection(), 0.01, epochs=2, steps=5)
    assert [rate(step) for step in range(11)] == pytest.approx([0.01 * (1 - step / 10) for step in range(11)])


def test_warm_up_then_half_a_cosine() -> None:
    config = ScheduleSection(kind="cosine", warmup_epochs=1, warmup_rate=0.001, final_rate=0.0001)
    rate = rate_schedule(config, 0.01, epochs=3, steps=4)
    assert [rate(s) for s in range(4)] == pytest.approx([0.001 + 0.009 * s / 4 for s in range(4)])
    assert rate(4) == pytest.approx(0.01)
    assert rate(8) == pytest.approx(0.0001 + 0.0099 * (1 + math.cos(math.pi / 2)) / 2)
    assert rate(12) == pytest.approx(0.0001)


def test_exponential_falls_by_epochs() -> None:
    rate = rate_schedule(ScheduleSection(kind="exponential", decay=0.5), 1.0, epochs=3, steps=2)
    assert [rate(step) for step in range(6)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_an_adam_step_moves_by_the_rate() -> None:
    net = nn.Linear(1, 1, bias=False)
    before = net.weight.item()
    optimiser = build_optimiser(net, OptimiserSection(name="adam", rate=0.1, weight_decay=0.0))
    net(torch.ones(1, 1)).backward()
    set_rate(optimiser, 0.1)
    optimiser.step()
    assert before - net.weight.item() == pytest.approx(0.1, abs=1e-4)


def test_averaged_weights_are_the_exponential_average_and_leave_no_trace() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    average = WeightAverage(net, 0.9)
    expected = 0.0
    for step in range(1, 6):
        nn.init.constant_(net.weight, float(step))
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with average.applied():
        assert net.weight.item() == pytest.approx(expected)
    assert net.weight.item() == 5.0
