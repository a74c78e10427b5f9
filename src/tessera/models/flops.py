"""What a network costs: parameters and multiply-adds at 1024 x 768, counted by torch, and measured time.

Counting runs on torch's meta device, which computes shapes and no numbers. It still takes a second or more a network,
so the registry's figures are kept in `costs.json`; a test counts them again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.config import fingerprint
from tessera.models.entry import ModelEntry
from tessera.models.model_registry import MODELS

if TYPE_CHECKING:
    from torch import nn

WIDTH, HEIGHT = 1024, 768
COSTS_PATH = Path(__file__).parent / "costs.json"


@dataclass(frozen=True)
class Cost:
    """parameters: all of them, those of branches that the descriptor does not need too.

    multiply_adds: of one image; torch counts two operations for each, and none for normalisation and the like.
    """

    parameters: int
    multiply_adds: int


def model_cost(name: str) -> Cost:
    """The cost of a registered network: from the table (no torch needed), counted where it has no entry that fits."""
    entry = MODELS[name]
    stored = _table().get(name)
    if stored and stored.get("entry") == entry_fingerprint(entry):
        return Cost(stored["parameters"], stored["multiply_adds"])
    return count_entry(entry)


def count_entry(entry: ModelEntry, width: int = WIDTH, height: int = HEIGHT) -> Cost:
    """Count a registered network without ever allocating it."""
    import torch

    with torch.device("meta"):
        network = entry.build(entry.resolve())
    return count_network(network, width, height)


def count_network(network: nn.Module, width: int = WIDTH, height: int = HEIGHT) -> Cost:
    """Count one forward pass of a network in evaluation mode."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Cost(parameters, sum(count_modules(network, width, height).values()))


def count_modules(network: nn.Module, width: int = WIDTH, height: int = HEIGHT) -> dict[str, int]:
    """The multiply-adds of each part, by the first two parts of its name (`backbone.layer3`, `head.refinement`)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    device = next(network.parameters()).device
    image = torch.empty(1, 3, height, width, device=device)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network.eval()(image)
    root = type(network).__name__
    totals = {
        name.removeprefix(root).removeprefix("."): sum(by_operator.values()) // 2
        for name, by_operator in counter.get_flop_counts().items()
        if name != "Global"
    }
    own = dict(totals)  # what a module does itself: its total less those of the modules it calls
    for name, total in totals.items():
        if name:
            own[_caller(name, totals)] -= total
    parts: dict[str, int] = {}
    for name, count in own.items():
        if count:
            short = ".".join(name.split(".")[:2])
            parts[short] = parts.get(short, 0) + count
    return parts


def _caller(name: str, totals: Mapping[str, int]) -> str:
    """The nearest module above that was called; a list of blocks, for one, is not."""
    pieces = name.split(".")
    above = (".".join(pieces[:count]) for count in range(len(pieces) - 1, 0, -1))
    return next((candidate for candidate in above if candidate in totals), "")


def time_networks(
    networks: Sequence[nn.Module], rounds: int = 5, width: int = WIDTH, height: int = HEIGHT
) -> list[float]:
    """Median seconds of a forward pass of each; they take turns, so that a busy moment hits all alike."""
    import torch

    image = torch.zeros(1, 3, height, width)
    seconds: list[list[float]] = [[] for _ in networks]
    with torch.inference_mode():
        for round_number in range(rounds + 1):
            for network, taken in zip(networks, seconds, strict=True):
                start = time.perf_counter()
                network(image)
                if round_number > 0:  # the first warms up
                    taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def entry_fingerprint(entry: ModelEntry) -> str:
    return fingerprint({"target": entry.target, "config": dict(entry.config)})


def write_costs(path: Path = COSTS_PATH) -> None:
    """Count every registered network anew and write the table."""
    table = {name: {**asdict(count_entry(entry)), "entry": entry_fingerprint(entry)} for name, entry in MODELS.items()}
    path.write_text(json.dumps(table, indent=1) + "\n")


def _table() -> dict[str, dict[str, Any]]:
    table = json.loads(COSTS_PATH.read_text()) if COSTS_PATH.is_file() else {}
    assert isinstance(table, dict)
    return table


if __name__ == "__main__":
    write_costs()
