"""From a folder of photos to descriptors on disk: Tessera beside what a user would run instead, one after the other.

    python scripts/time_folder.py PHOTOS... --peers PEERS/bin/python -o folder.csv

PEERS is an environment of its own with torch, torchvision, timm, open_clip_torch and imagededup. Weights are drawn at
random there: a network takes as long with them. Each runs in a process of its own with every core, starting included.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

_SUFFIXES = {".jpg", ".jpeg", ".png"}
_BATCH = 32
OURS = {
    "tessera index": ["index", "FOLDER", "-g", "OUTPUT"],
    "tessera embed": ["embed", "PICTURES", "-o", "OUTPUT"],
    "tessera embed, one scale, 224 px": ["embed", "PICTURES", "-o", "OUTPUT", "--scales", "1", "--size", "224"],
}
PEERS = {
    "timm efficientnet_lite0, 224 px": "timm:efficientnet_lite0",
    "timm resnet50, 224 px": "timm:resnet50",
    "open_clip ViT-B-32, 224 px": "open_clip:ViT-B-32",
    "imagededup CNN (MobileNetV3 small)": "imagededup:cnn",
    "imagededup PHash": "imagededup:phash",
}


def pictures_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)


def run_peer(kind: str, folder: Path, output: Path) -> None:
    """What a plain script does: a loader with two workers, batches, one array at the end."""
    import numpy as np
    import torch

    # Its operators do not load beside every torch; none of them is used, so nobody need describe them.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("none")
    package, name = kind.split(":")
    if package == "imagededup":
        _run_imagededup(name, folder)
        return
    model: Any
    if package == "timm":
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=0).eval()
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
        describe = model
    else:
        import open_clip

        model, _, transform = open_clip.create_model_and_transforms(name, pretrained=None)
        model.eval()
        describe = model.encode_image
    loader = torch.utils.data.DataLoader(_Pictures(pictures_in(folder), transform), batch_size=_BATCH, num_workers=2)
    with torch.inference_mode():
        rows = [torch.nn.functional.normalize(describe(batch), dim=-1).numpy() for batch in loader]
    np.save(output, np.concatenate(rows))


class _Pictures:
    def __init__(self, paths: list[Path], transform: Any) -> None:
        self._paths, self._transform = paths, transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        from PIL import Image

        return self._transform(Image.open(self._paths[number]).convert("RGB"))


def _run_imagededup(name: str, folder: Path) -> None:
    if name == "phash":
        from imagededup.methods import PHash

        PHash(verbose=False).encode_images(folder, recursive=True)
        return
    import torchvision
    from imagededup.methods import CNN
    from imagededup.utils import CustomModel

    network = torchvision.models.mobilenet_v3_small(weights=None)
    network.classifier = torchvision.ops.Permute([0, 1])
    transform = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT.transforms()
    config = CustomModel(name="mobilenet_v3_small", model=network.eval(), transform=transform)
    CNN(verbose=False, model_config=config).encode_images(folder, recursive=True, num_enc_workers=2)


def time_command(command: list[str]) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[:6]} failed:\n{done.stderr[-2000:]}")
    elapsed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        run_peer(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--peers", help="the Python of the peers' environment")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    with options.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["photos", "what", "pictures_a_second", "ms_a_picture", "cpu_ms_a_picture"])
        for folder in options.folders:
            pictures = pictures_in(folder)
            words = {"FOLDER": [str(folder)], "PICTURES": list(map(str, pictures))}
            for name, given in [*OURS.items(), *(PEERS.items() if options.peers else ())]:
                with tempfile.TemporaryDirectory() as work:
                    output = str(Path(work) / "out.npz")
                    if isinstance(given, list):
                        expanded = [word for part in given for word in {**words, "OUTPUT": [output]}.get(part, [part])]
                        command = [sys.executable, "-m", "tessera", *expanded]
                    else:
                        command = [
                            options.peers,
                            os.fspath(Path(__file__).resolve()),
                            "--peer",
                            given,
                            str(folder),
                            output,
                        ]
                    seconds, processor = time_command(command)
                count = len(pictures)
                figures = [f"{count / seconds:.1f}", f"{1e3 * seconds / count:.1f}", f"{1e3 * processor / count:.1f}"]
                row = [f"{folder.name} ({count})", name, *figures]
                writer.writerow(row)
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main()
