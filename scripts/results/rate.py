"""What a training image of the paper costs here: forward and backward of a network at 512 px, in processor time.

OMP_NUM_THREADS=1 python scripts/results/rate.py [--model token-r101] [--crop 512] [--batch 2]
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from tessera.models.losses import build_loss
from tessera.models.model_registry import build_model

CLASSES = 81_313  # of GLDv2-clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="token-r101")
    parser.add_argument("--crop", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    network = build_model(given.model).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss = build_loss("arcface", dim=network.dim, num_classes=CLASSES, margin_rad=0.2, scale=32.0)
    images = torch.randn(given.batch, 3, given.crop, given.crop).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(given.batch)
    started = time.process_time()
    loss(network.describe_raw(images), labels).backward()
    spent = (time.process_time() - started) / given.batch
    print(json.dumps({"model": given.model, "crop": given.crop, "cpu_s_an_image": round(spent, 2)}))


if __name__ == "__main__":
    main()
