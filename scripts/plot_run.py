"""Draw the curves of a training run: loss, validation accuracy and mAP from its scalars.csv.

python scripts/plot_run.py results/training/gldv2-50.csv -o docs/figures/training-gldv2-50.png

The picture carries the hash of the file it was drawn from: a test compares it.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tessera.train.scalars import read_scalars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder, or its scalars as a CSV")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    path = arguments.run / "scalars.csv" if arguments.run.is_dir() else arguments.run
    rows = read_scalars(path)
    curves = {name: [(r["step"], r["value"]) for r in rows if r["name"] == name] for name in {r["name"] for r in rows}}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, names in ((left, ("loss", "val_loss")), (right, ("accuracy", "map"))):
        for name in names:
            if name in curves:
                axis.plot(*zip(*curves[name], strict=True), label=name, marker="o" if len(curves[name]) < 20 else None)
        axis.set_xlabel("step")
        axis.legend()
        axis.grid(alpha=0.3)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    source = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    figure.savefig(arguments.output, dpi=110, metadata={"Software": None, "Source": source})


if __name__ == "__main__":
    main()
