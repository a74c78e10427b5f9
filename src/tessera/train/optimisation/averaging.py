"""An exponential average of the weights: smoother than the last step, and often better at no cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """The running average of every parameter and buffer of a module. decay 0 keeps none and swaps nothing."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._module = module
        self.values = {key: value.detach().clone() for key, value in module.state_dict().items()} if decay else {}
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the present weights; the first steps move faster, or the start would weigh for too long."""
        if not self.decay:
            return
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for key, value in self._module.state_dict().items():
            if value.is_floating_point():
                self.values[key].lerp_(value, 1 - decay)
            else:
                self.values[key].copy_(value)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the module has the averaged weights."""
        if not self.decay:
            yield
            return
        kept = {key: value.detach().clone() for key, value in self._module.state_dict().items()}
        self._module.load_state_dict(self.values)
        try:
            yield
        finally:
            self._module.load_state_dict(kept)

    def restore(self, values: Mapping[str, Tensor], updates: int) -> None:
        for key, value in values.items():
            self.values[key].copy_(value)
        self.updates = updates
