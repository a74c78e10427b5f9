"""Half precision where the hardware has it, with the loss scaling that float16 needs."""

from __future__ import annotations

import contextlib
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

    @property
    def scales(self) -> bool:
        """Whether steps with an infinite gradient are expected now and then: float16 passes over them by itself."""
        return self._scaler is not None

    def step(self, optimiser: torch.optim.Optimizer, module: nn.Module, clip_norm: float) -> float:
        """Clip and step. Returns the gradient's norm before clipping; one that is no number moves no weight."""
        if self._scaler is not None:
            self._scaler.unscale_(optimiser)
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if clip_norm > 0:
            nn.utils.clip_grads_with_norm_(module.parameters(), clip_norm, norm)
        if self._scaler is not None:
            self._scaler.step(optimiser)
            self._scaler.update()
        elif torch.isfinite(norm):
            optimiser.step()
        return float(norm)

    def state(self) -> dict[str, Any]:
        return {} if self._scaler is None else self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
