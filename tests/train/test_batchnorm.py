"""The batch norm over processes: with one process in the group it is torch's own, gradients and statistics included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch import nn

from tessera.train.distributed import World
from tessera.train.optimisation.batchnorm import SharedBatchNorm, _convert, freeze_batch_norm, share_batch_norm


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 3, 7), (3, 5, 9)])
@pytest.mark.usefixtures("group")
def test_it_equals_torchs_own(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    own = nn.BatchNorm1d(5) if len(shape) < 4 else nn.BatchNorm2d(5)
    own = own.double()
    nn.init.uniform_(own.weight)
    nn.init.uniform_(own.bias)
    wrapped = nn.Sequential(nn.BatchNorm1d(5) if len(shape) < 4 else nn.BatchNorm2d(5)).double()
    wrapped.load_state_dict({f"0.{key}": value for key, value in own.state_dict().items()})
    shared = _convert(wrapped, None)[0]  # type: ignore[index]
    assert isinstance(shared, SharedBatchNorm) and shared.state_dict().keys() == own.state_dict().keys()
    for _ in range(3):
        values = (100 + torch.randn(shape, dtype=torch.float64)).requires_grad_()
        again = values.detach().clone().requires_grad_()
        weights = torch.randn(shape, dtype=torch.float64)
        (own(values) * weights).sum().backward()
        (shared(again) * weights).sum().backward()
        assert torch.allclose(values.grad, again.grad, atol=1e-10)  # type: ignore[arg-type]
    for key, value in own.state_dict().items():
        assert torch.allclose(shared.state_dict()[key], value, atol=1e-12), key
    assert torch.allclose(own.weight.grad, shared.weight.grad)  # type: ignore[arg-type]
    shared.eval()
    own.eval()
    assert torch.allclose(own(values), shared(values))


def test_one_process_keeps_torchs_own_and_frozen_means_evaluation() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    assert share_batch_norm(net, World()) is net and type(net[1]) is nn.BatchNorm2d
    net.train()
    freeze_batch_norm(net)
    assert net[0].training and not net[1].training
