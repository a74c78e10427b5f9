"""Make the gallery that stands for those of an earlier version: run once with that version, in a folder of its own.

python tests/golden/galleries/make.py FOLDER        FOLDER/gallery.tessera, FOLDER/photos, FOLDER/bundle

`gallery-0.1.zip` is what version 0.1 made of it (catalogue version 2), with FOLDER at /mnt. Six pictures, two of them
copies, one with metadata that is not a number, one that cannot be read; one more was added and removed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from PIL import Image

import tessera
from tessera.models.bundle import Bundle, ModelCard, Preprocessing


def make_bundle(path: Path, dim: int = 8) -> Path:
    weights = np.random.default_rng(0).normal(size=(dim, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "weights"], ["maps"], strides=[4, 4], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("ReduceMean", ["positive"], ["raw"], axes=[2, 3], keepdims=0),
        helper.make_node("LpNormalization", ["raw"], ["descriptor"], axis=1, p=2),
    ]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 3, "H", "W"])]
    outputs = [helper.make_tensor_value_info("descriptor", TensorProto.FLOAT, ["B", dim])]
    graph = helper.make_graph(nodes, "old", inputs, outputs, [numpy_helper.from_array(weights, "weights")])
    path.mkdir(parents=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path / "model.onnx"))
    architecture = {"model": "small", "config": {}}
    preprocessing = Preprocessing(size=32, scales=(1.0,))
    return Bundle.seal(path, ModelCard("old", "global", architecture, dim, preprocessing=preprocessing)).path


def main(folder: Path) -> None:
    photos = folder / "photos"
    photos.mkdir(parents=True)
    for seed in range(6):
        blocks = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((24, 18), Image.Resampling.NEAREST).save(photos / f"photo{seed}.png")
    (photos / "copy.png").write_bytes((photos / "photo0.png").read_bytes())
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    (folder / "labels.csv").write_text("path,place,year\nphotos/photo1.png,Pisa,1990\nphotos/photo2.png,Rome,2004\n")
    for path in photos.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    time.sleep(0.1)
    with tessera.Gallery(folder / "gallery.tessera", make_bundle(folder / "bundle")) as gallery:
        gallery.index(photos)
        gallery.index(folder / "labels.csv")
        gallery.index(photos / "photo3.png", metadata={"score": float("nan"), "place": "Bari"})
        gallery.remove(photos / "photo5.png")
        gallery.index(local="sift")
        print(gallery.stats())
    (photos / "photo5.png").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
