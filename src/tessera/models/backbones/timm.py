"""Any model of timm as a backbone, through the `timm` extra."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from tessera.errors import ConfigError, MissingExtraError, ModelError
from tessera.models.backbones.base import Backbone

_BY_ONNX = "Where it runs, torch.onnx.export makes a file of it that `tessera convert` takes"


class TimmBackbone(Backbone):
    """`timm:NAME`: the last two maps of timm's feature extraction interface. timm names the normalisation itself."""

    def __init__(self, name: str, *, pretrained: bool = False) -> None:
        super().__init__()
        timm = _import_timm(name)
        if not timm.is_model(name):
            raise ConfigError(f"timm has no model '{name}'. `timm.list_models()` names them.")
        try:
            self.model = timm.create_model(name, pretrained=pretrained, features_only=True)
        except Exception as error:  # no such tag, no weights, no maps, no network: timm and the hub raise many kinds
            raise ModelError(
                f"timm does not give the maps of '{name}': {_first_line(error)} `timm.list_pretrained()` names the "
                "models that have weights."
            ) from error
        channels, strides = self.model.feature_info.channels(), self.model.feature_info.reduction()
        if len(channels) < 2:
            raise ModelError(f"timm gives one map of '{name}', and a backbone has two. {_BY_ONNX}.")
        self.channels, self.stride = int(channels[-1]), int(strides[-1])
        self.stage_channels = (int(channels[-2]), int(channels[-1]))
        self.channels_last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
        settings = self.model.pretrained_cfg
        self.mean, self.std = tuple(settings["mean"]), tuple(settings["std"])

    def conv4(self, images: Tensor) -> Tensor:
        raise ConfigError(
            "a timm backbone gives its maps only together: nothing can be put between its stages (SOLAR)."
        )

    def forward_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = cast(list[Tensor], self.model(images))[-2:]
        before, last = (map_.permute(0, 3, 1, 2) for map_ in maps) if self.channels_last else maps
        return before, last

    def check_sizes(self, name: str) -> None:
        """A picture may have any size; some networks take one, or multiples of their patch."""
        try:
            with torch.inference_mode():
                self(torch.zeros(1, 3, 161, 97))
        except Exception as error:  # timm asserts, torch raises
            raise ModelError(
                f"timm's '{name}' does not take pictures of every size: {_first_line(error)} {_BY_ONNX} with --size N, "
                "stretching pictures to it."
            ) from error


def _import_timm(name: str) -> Any:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # torchvision that does not fit its torch raises RuntimeError
        if find_spec("timm") is None:
            raise MissingExtraError(f"the backbone 'timm:{name}'", "timm") from error
        raise ModelError(
            f"the backbone 'timm:{name}' needs timm, which is installed and cannot be imported: {_first_line(error)} "
            f"It needs the torchvision of torch {torch.__version__}. {_BY_ONNX} here, without timm."
        ) from error
    return timm


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0].rstrip('.') if lines else type(error).__name__}."
