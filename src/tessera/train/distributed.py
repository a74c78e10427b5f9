"""The processes of a run: one alone, or as many as torchrun starts (gloo on CPUs, NCCL on GPUs)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from tessera.errors import TrainingError, UsageError

_TIMEOUT = timedelta(minutes=60)  # a mining pass or a validation on one process must not end the others


@dataclass(frozen=True)
class World:
    """Who this process is among `size` of them; with one, every collective is the identity."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """One plain object a process, in the order of ranks, on every process."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def gather_rows(self, rows: Tensor, total: int) -> Tensor:
        """Undo a division of `total` rows by `share`: rows of all processes, in the first order. N D on each."""
        if self.size == 1:
            return rows
        longest = -(-total // self.size)
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.stack(parts, dim=1).flatten(0, 1)[:total]

    def share(self, total: int) -> range:
        """The rows of this process when `total` are dealt out one by one."""
        return range(self.rank, total, self.size)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def open_world(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started, or stand alone; leave them at the end."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = _choose_device(device, local)
    if size == 1:
        yield World(0, 1, chosen)
        return
    if not dist.is_available():
        raise TrainingError("this build of torch has no distributed package: run one process, without torchrun.")
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield World(rank, size, chosen)
    finally:
        if started:
            dist.destroy_process_group()


def _choose_device(device: str, local: int) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return torch.device("cpu")
    if device != "cuda":
        raise UsageError(f"device '{device}' is not known: auto, cpu or cuda.")
    if not torch.cuda.is_available():
        raise UsageError("there is no GPU that torch can use here: choose --device cpu.")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
