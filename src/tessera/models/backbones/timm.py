"""Any model of timm as a backbone, through the `timm` extra."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from tessera.errors import ConfigError, MissingExtraError
from tessera.models.backbones.base import Backbone


class TimmBackbone(Backbone):
    """`timm:NAME`: the last two maps of timm's feature extraction interface. timm names the normalisation itself."""

    def __init__(self, name: str, *, pretrained: bool = False) -> None:
        super().__init__()
        try:
            import timm
        except (ImportError, RuntimeError) as error:  # torchvision that does not fit its torch raises RuntimeError
            raise MissingExtraError(f"the backbone 'timm:{name}'", "timm") from error
        if name not in timm.list_models():
            raise ConfigError(f"timm has no model '{name}'. `timm.list_models()` names them.")
        self.model = timm.create_model(name, pretrained=pretrained, features_only=True)
        channels, strides = self.model.feature_info.channels(), self.model.feature_info.reduction()
        self.channels, self.stride = int(channels[-1]), int(strides[-1])
        self.stage_channels = (int(channels[-2]), int(channels[-1]))
        settings = self.model.pretrained_cfg
        self.mean, self.std = tuple(settings["mean"]), tuple(settings["std"])

    def conv4(self, images: Tensor) -> Tensor:
        raise ConfigError(
            "a timm backbone gives its maps only together: nothing can be put between its stages (SOLAR)."
        )

    def forward_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = cast(list[Tensor], self.model(images))
        return maps[-2], maps[-1]
