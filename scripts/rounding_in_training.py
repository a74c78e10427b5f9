"""How rounding grows in training: the same run twice, the second from weights that differ in their last bit.

Two processes add up a batch in another order than one does, so their first gradients differ by rounding. This script
shows what that must lead to without any second process: one run from the recipe's weights, one from the same weights
with each number moved to its neighbour in floating point, up or down by lot. The largest difference of the losses over
the steps is printed for each rate and precision. What two processes may differ by is no less than this.

`--smooth` puts a GELU in the place of every ReLU: the gradient of a ReLU jumps where its input changes sign, which
rounding in float32 does to some of a million inputs a step, and rounding in float64 to none.

    python scripts/rounding_in_training.py [--rates 2e-5 1e-4 1e-3 1e-2] [--steps 20] [--smooth]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tessera.config import from_mapping
from tessera.train.build_run import build_run, load_data
from tessera.train.distributed import World
from tessera.train.dryrun import draw_images
from tessera.train.loop import Trainer
from tessera.train.recipe import Recipe
from tessera.train.records.scalars import read_scalars


def make_recipe(data_dir: Path, rate: float, precision: str, scale: float) -> Recipe:
    """A Token network on a tiny backbone over drawn pictures, with the paper's loss and optimiser."""
    network = {"backbone": "tiny", "channels": 32, "dim": 32, "heads": 4, "dropout": 0.0}
    return from_mapping(
        Recipe,
        {
            "name": "rounding",
            "data": {"name": "folder", "root": str(data_dir), "held_out": 0.0},
            "model": {"name": "token", "weights": "none", "config": network},
            "loss": {"config": {"margin_rad": 0.2, "scale": scale}},
            "transform": {"crop": 96},
            "optimiser": {"rate": rate},
            "schedule": {"kind": "constant"},
            "loop": {"epochs": 7, "batch_size": 16, "log_every": 1, "workers": 1, "precision": precision},
        },
    )


def train(recipe: Recipe, steps: int, run_dir: Path, *, moved: bool) -> torch.Tensor:
    """The losses of the first steps (21 at most); moved: every weight starts at its neighbour in floating point."""
    run = build_run(recipe, load_data(recipe), World(), run_dir)
    trainer = Trainer(run, run_dir)
    if moved:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in run.objective.parameters():
                up = torch.rand(parameter.shape, generator=generator) < 0.5
                goal = torch.where(up, torch.inf, -torch.inf).to(parameter.dtype)
                parameter.copy_(torch.nextafter(parameter, goal))
    trainer.train()
    rows = [row["value"] for row in read_scalars(run_dir / "scalars.csv") if row["name"] == "loss"]
    return torch.tensor(rows[:steps], dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-5, 1e-4, 1e-3, 1e-2])
    parser.add_argument("--scale", type=float, default=32.0, help="of ArcFace")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--smooth", action="store_true")
    options = parser.parse_args()
    if options.smooth:
        nn.ReLU.forward = lambda self, input: functional.gelu(input)  # type: ignore[method-assign]
        functional.relu = functional.gelu  # type: ignore[assignment]
    torch.set_num_threads(1)
    print("| rate | first loss | last loss | largest difference, float32 | float64 |\n|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        draw_images(Path(name) / "drawn", classes=8, per_class=6, side=64)
        for rate in options.rates:
            cells = []
            for precision in ("fp32", "fp64"):
                recipe = make_recipe(Path(name) / "drawn", rate, precision, options.scale)
                runs = [
                    train(recipe, options.steps, Path(name) / f"{rate}-{precision}-{moved}", moved=moved)
                    for moved in (False, True)
                ]
                cells.append(f"{float((runs[0] - runs[1]).abs().max()):.1e}")
            print(f"| {rate:g} | {runs[0][0]:.3f} | {runs[0][-1]:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
