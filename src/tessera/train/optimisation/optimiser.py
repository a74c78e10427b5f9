"""Parameter groups, the optimiser and the rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tessera.errors import ConfigError, unknown_name
from tessera.train.recipe import OptimiserSection, ScheduleSection


def build_optimiser(module: nn.Module, config: OptimiserSection) -> torch.optim.Optimizer:
    """One group for each rate and decay; parameters whose rate is 0 are frozen and belong to none."""
    groups = group_parameters(module, config)
    if not groups:
        raise ConfigError("no parameter is left to train: optimiser.rates freezes all of them.")
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.rate, momentum=config.momentum, nesterov=config.nesterov)
    kinds: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config.name](groups, lr=config.rate)  # type: ignore[call-arg]


def group_parameters(module: nn.Module, config: OptimiserSection) -> list[dict[str, Any]]:
    """Groups with `params`, `weight_decay` and `factor`, the multiple of the schedule's rate.

    No decay for biases and 1-D parameters (norms); the longest matching start of a name decides its factor.
    """
    for start in config.rates:
        if not any(_starts(name, start) for name, _ in module.named_parameters()):
            tops = {".".join(name.split(".")[:3]) for name, _ in module.named_parameters()}
            raise ConfigError(unknown_name("the part in optimiser.rates", start, tops))
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        factor = factor_of(name, config.rates)
        if factor == 0:
            parameter.requires_grad_(False)
        if not parameter.requires_grad:
            continue
        decay = 0.0 if parameter.ndim <= 1 or name.endswith(".bias") else config.weight_decay
        groups.setdefault((factor, decay), []).append(parameter)
    return [{"params": members, "weight_decay": decay, "factor": factor} for (factor, decay), members in groups.items()]


def factor_of(name: str, rates: dict[str, Any]) -> float:
    """The factor of a parameter: that of the longest start of its name in `rates`, else 1."""
    fitting = [start for start in rates if _starts(name, start)]
    return float(rates[max(fitting, key=len)]) if fitting else 1.0


def freeze_parts(module: nn.Module, rates: dict[str, Any]) -> None:
    """Put parts whose rate is 0 into evaluation, so that their batch statistics stay too. After each `train()`."""
    for start, factor in rates.items():
        if float(factor) == 0:
            for name, part in module.named_modules():
                if _starts(name, start):
                    part.eval()


def rate_schedule(config: ScheduleSection, rate: float, epochs: int, steps: int) -> Callable[[int], float]:
    """The rate as a function of the step, counted from 0 over the whole run; steps: of one epoch."""
    total = max(1, epochs * steps)
    warmup = round(config.warmup_epochs * steps)

    def at(step: int) -> float:
        if step < warmup:
            return config.warmup_rate + (rate - config.warmup_rate) * step / warmup
        if config.kind == "constant":
            return rate
        if config.kind == "exponential":
            return rate * config.decay ** (step // max(1, steps))
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        if config.kind == "linear":
            return rate + (config.final_rate - rate) * done
        return config.final_rate + (rate - config.final_rate) * (1 + math.cos(math.pi * done)) / 2

    return at


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]


def _starts(name: str, start: str) -> bool:
    return name == start or name.startswith(f"{start}.")
