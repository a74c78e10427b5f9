"""Batch norm over all processes.

torch's own SyncBatchNorm refuses CPUs; this one is written on an all-reduce that carries gradients, so the statistics
are those of the global batch on gloo as well. On GPUs torch's own is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from tessera.train.distributed import World


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce with its gradient, which is an all-reduce again: every process' loss depends on every summand."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SharedBatchNorm(_BatchNorm):
    """A BatchNorm1d/2d whose batch is that of every process; same parameters, buffers and evaluation.

    Mean first, then squared distances from it: the sum of squares would lose the digits that the comparison with one
    process needs.
    """

    group: dist.ProcessGroup | None = None  # a group of its own: collectives must not interleave with DDP's buckets

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch norm needs B C ..., not {input.dim()} dimensions")

    def forward(self, input: Tensor) -> Tensor:
        """input: B C or B C ... . The same shape comes out."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        count = torch.tensor([wide.numel() / wide.shape[1]], dtype=wide.dtype, device=wide.device)
        totals = self._sum(torch.cat([wide.sum(axes), count]))  # C + 1
        count_all, mean = totals[-1].detach(), totals[:-1] / totals[-1].detach()
        centred = wide - mean.view(shape)
        variance = self._sum(centred.square().sum(axes)) / count_all  # C
        self._track(mean.detach(), variance.detach(), float(count_all))
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _sum(self, values: Tensor) -> Tensor:
        total: Tensor = _SumOverProcesses.apply(values, self.group)  # type: ignore[no-untyped-call]
        return total

    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, weight)
        self.running_var.lerp_(variance * (count / max(count - 1, 1)), weight)


def share_batch_norm(module: nn.Module, world: World) -> nn.Module:
    """Let every batch norm below `module` see the global batch; with one process nothing changes."""
    if world.size == 1:
        return module
    if world.device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return converted
    return _convert(module, dist.new_group())


def freeze_batch_norm(module: nn.Module) -> None:
    """Use the running statistics, and leave them as they are. To be called after each `train()`."""
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.eval()


def _convert(module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
        shared = SharedBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        shared.group = group
        if module.affine:
            shared.weight, shared.bias = module.weight, module.bias
        shared.running_mean, shared.running_var = module.running_mean, module.running_var
        shared.num_batches_tracked = module.num_batches_tracked
        shared.train(module.training)
        return shared
    for name, child in module.named_children():
        converted = _convert(child, group)
        if converted is not child:
            setattr(module, name, converted)
    return module
