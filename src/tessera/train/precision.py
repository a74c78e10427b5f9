"""Half precision where the hardware has it, with the loss scaling that float16 needs."""

from __future__ import annotations

import contextlib
import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from tessera.errors import ConfigError


class Precision:
    """What a step computes in. `auto`: bfloat16, else float16, on a GPU; float32 on a CPU, where half is no faster."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "auto":
            name = "fp32" if device.type == "cpu" else ("bf16" if torch.cuda.is_bf16_supported() else "fp16")
        if name == "fp16" and device.type == "cpu":
            raise ConfigError("loop.precision fp16 needs a GPU: choose fp32, or bf16 where the processor has it.")
        self.name, self.device = name, device
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        if self.name in ("fp32", "fp64"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def scale(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    def step(self, optimiser: torch.optim.Optimizer, module: nn.Module, clip_norm: float) -> float:
        """Clip and step. Returns the gradient's norm before clipping, NaN where nothing asks for it."""
        norm = math.nan
        if self._scaler is not None:
            self._scaler.unscale_(optimiser)
        if clip_norm > 0:
            norm = float(nn.utils.clip_grad_norm_(module.parameters(), clip_norm))
        if self._scaler is None:
            optimiser.step()
        else:
            self._scaler.step(optimiser)
            self._scaler.update()
        return norm

    def state(self) -> dict[str, Any]:
        return {} if self._scaler is None else self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
