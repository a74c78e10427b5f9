"""Every kind of checkpoint at every depth, from the file to the descriptor: the table of results/networks.md.

Each file is made with seeded weights under the names of its own format, then goes through `tessera convert`; the
bundle's graph is compared with torch at six sizes, none of them the one it was traced with. Where there are golden
numbers (ResNet-50), `tessera embed --scales 1` describes the golden pictures with both runtimes, torch describes one
in float64, and the extractor runs the authors' test: cut queries, three scales.

    python scripts/check_networks.py tests/golden [--depths 18 50 101] [--only SOLAR]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

from tessera.cli.main import app
from tessera.extract.extractor import Extractor
from tessera.models.bundle import Bundle
from tessera.models.convert import FORMATS
from tessera.models.convert.formats import Format
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import check_graph, load_network

SIZES = ((1, 3, 224, 160), (3, 3, 160, 224), (1, 3, 33, 33), (1, 3, 37, 201), (3, 3, 65, 40), (1, 3, 27, 384))
GOLDEN = {
    "Token (from April 2022)": "token",
    "Token (before April 2022)": "token_legacy",
    "NetVLAD of the Token authors": "netvlad",
    "SOLAR of the Token authors": "solar",
    "DELG of the Token authors": "delg",
    "R-MAC of the Token authors": "rmac",
}
SEED = 1234
# What a cirtorch file may hold beside GeM and one layer, each a row of its own.
CIRTORCH: dict[str, dict[str, Any]] = {
    "cirtorch": {},
    "cirtorch, regional and local whitening": {"whitening": "both", "local": True},
    "cirtorch, R-MAC": {"pooling": "rmac"},
}


def load_fill(golden_dir: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill", golden_dir / "fill.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_file(
    found: Format, depth: int, golden_dir: Path, fill: ModuleType, path: Path, config: dict[str, Any]
) -> None:
    """A checkpoint of seeded weights: of the golden specification where there is one, else of the network's own."""
    spec_path = golden_dir / "nets" / f"{GOLDEN.get(found.name)}_r{depth}_spec.json"
    if spec_path.is_file():
        spec = json.loads(spec_path.read_text())
    else:
        channels = 512 if depth == 18 else 2048
        if "whitening" in config:
            config = {**config, "dim": channels}
        with torch.device("meta"):
            network = build_model(found.model, backbone=f"resnet{depth}", **config)
        spec = fill.spec_of({found.to_theirs(key): value for key, value in network.state_dict().items()})
    state = fill.seeded_state_dict(spec, SEED)
    if depth == 18:  # as `fill` does for bottlenecks: without it activations grow from block to block
        state = {key: value * 0.1 if key.endswith("bn2.weight") else value for key, value in state.items()}
    meta = {
        "pooling": config.get("pooling", "gem"),
        "regional": "whitening" in config,
        "architecture": f"resnet{depth}",
    }
    torch.save({"state_dict": state, "meta": meta} if found.name in ("cirtorch", "SOLAR") else state, path)


def tessera(*arguments: str | Path) -> None:
    """The command itself, in this process."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app([str(argument) for argument in arguments], standalone_mode=False)


def golden_errors(bundle_dir: Path, name: str, golden_dir: Path, fill: ModuleType, folder: Path) -> list[float]:
    """The largest difference of the descriptors from the golden ones: by each runtime, and by torch in float64."""
    with np.load(golden_dir / "nets" / f"{name}_r50.npz") as file:
        golden = dict(file)
    pictures = {"a": fill.synthetic_rgb(224, 320, 1), "b": fill.synthetic_rgb(320, 256, 2)}
    for letter, pixels in pictures.items():
        Image.fromarray(pixels).save(folder / f"{letter}.png")
    errors = []
    for runtime in ("onnx", "torch"):
        output = folder / f"{runtime}.npz"
        options: list[str | Path] = ["--model", bundle_dir, "--scales", "1", "--runtime", runtime]
        tessera("embed", folder / "a.png", folder / "b.png", "-o", output, *options)
        with np.load(output) as file:
            expected = np.stack([golden["out_a"], golden["out_b"]])
            errors.append(float(np.abs(file["descriptors"] - expected).max()))
    network = load_network(Bundle.open(bundle_dir)).double()
    with torch.inference_mode():
        double = network(fill.imagenet_normalise(pictures["a"]).double())["descriptor"][0].numpy()
    errors.append(float(np.abs(double - golden["out64_a"]).max()))
    with np.load(golden_dir / "extract" / "vectors_r50.npz") as file:
        vectors = {key.removeprefix(f"{name}_"): file[key] for key in file if key.startswith(f"{name}_")}
    return [*errors, extraction_error(bundle_dir, vectors, golden_dir / "extract")] if vectors else errors


def extraction_error(bundle_dir: Path, expected: dict[str, np.ndarray], folder: Path) -> float:
    """The authors' test-time extraction: gallery pictures and cut queries, at one scale and at three."""
    meta = json.loads((folder / "meta.json").read_text())
    paths = [folder / f"{name}.png" for name in meta["images"]]
    worst = 0.0
    for suffix, scales in (("ss", [1.0]), ("ms", meta["scales"])):
        extractor = Extractor(bundle_dir, size=meta["imsize"], scales=scales)
        for kind, boxes in (("db", [None] * len(paths)), ("q", [tuple(box) for box in meta["bbx_x0_y0_x1_y1"]])):
            extracted = extractor.extract(paths, boxes=boxes, loader="benchmark")
            found = [row.descriptor for row in extracted if row.descriptor is not None]
            worst = max(worst, float(np.abs(np.stack(found) - expected[f"{kind}_{suffix}"]).max()))
    return worst


def check(found: Format, config: dict[str, Any], depth: int, golden_dir: Path, fill: ModuleType) -> list[float]:
    """ONNX against torch: descriptors, other outputs; and where there are golden numbers, the distance from them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_file(found, depth, golden_dir, fill, folder / "file.pth", config)
        tessera("convert", folder / "file.pth", "-o", folder / "bundle")
        bundle = Bundle.open(folder / "bundle")
        assert bundle.card.provenance["format"] == found.name
        worst = check_graph(load_network(bundle), bundle.onnx_path, SIZES)
        first = next(iter(worst))  # descriptor, or the features of a local network
        figures = [worst.pop(first), max(worst.values(), default=0.0)]
        if depth == 50 and found.name in GOLDEN:
            figures += golden_errors(folder / "bundle", GOLDEN[found.name], golden_dir, fill, folder)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[18, 50, 101])
    parser.add_argument("--only", default="", help="part of a file's name in the table")
    options = parser.parse_args()
    fill = load_fill(options.golden)
    print("| file | ResNet | ONNX, six sizes | its other outputs | embed, onnx | embed, torch | float64 | extraction |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for found in FORMATS:
        kinds = CIRTORCH if found.name == "cirtorch" else {found.name: {}}
        for kind, config in kinds.items():
            for depth in options.depths if options.only in kind else ():
                figures = check(found, config, depth, options.golden, fill)
                cells = [f"{figure:.1e}" for figure in figures] + [""] * (6 - len(figures))
                print(f"| {kind} | {depth} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
