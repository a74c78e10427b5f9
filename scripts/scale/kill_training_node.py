"""Train under torchrun on two rendezvous ends of one host; kill one with all its processes, start it again.

    python scripts/scale/kill_training_node.py -o results/scale/training_node.csv

Writes how the loss went on: steps, seconds from the kill to the next step, and how far the losses are from those of a
run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tessera.train.dryrun import draw_images
from tessera.train.scalars import read_scalars

RECIPE = """
name = "tiny"
[data]
name = "folder"
held_out = 0.0
[model]
name = "token"
weights = "none"
config = { backbone = "tiny", channels = 32, dim = 32, heads = 4, dropout = 0.1 }
[transform]
crop = 96
[optimiser]
rate = 0.001
[loss]
config = { scale = 8.0 }
[loop]
batch_size = 16
epochs = %d
log_every = 1
workers = 1
checkpoint_minutes = 0.0
"""
WAIT_S = 600.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_node(rank: int, port: int, work: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    """One end: torchrun's agent, in a session of its own, so that it can be killed with everything it started."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", run_dir.name]
    command += ["--rdzv-conf", f"is_host={int(rank == 0)}", "--local-addr", "127.0.0.1", "--max-restarts", "3"]
    command += ["-m", "tessera.cli.main", "train", str(work / "tiny.toml"), "--data", str(work / "drawn")]
    command += ["-o", str(run_dir), "--resume"]
    with (work / f"{run_dir.name}-{rank}.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


def read_losses(run_dir: Path) -> list[float]:
    path = run_dir / "scalars.csv"
    return [row["value"] for row in read_scalars(path) if row["name"] == "loss"] if path.is_file() else []


def wait_for_steps(run_dir: Path, steps: int, nodes: list[subprocess.Popen[bytes]]) -> None:
    give_up = time.monotonic() + WAIT_S
    while len(read_losses(run_dir)) < steps:
        if time.monotonic() > give_up or any(node.poll() not in (None, 0) for node in nodes):
            raise SystemExit(f"{run_dir} did not reach step {steps}: see the logs beside it.")
        time.sleep(0.02)


def finish(nodes: list[subprocess.Popen[bytes]]) -> None:
    for node in nodes:
        if node.wait(WAIT_S) != 0:
            raise SystemExit(f"torchrun ended with {node.returncode}: see the logs.")


def measure(work: Path, epochs: int, seed: int) -> dict[str, float]:
    draw_images(work / "drawn", classes=8, per_class=6, side=64)
    (work / "tiny.toml").write_text(RECIPE % epochs)
    port = free_port()
    finish([start_node(rank, port, work, work / "alone") for rank in (0, 1)])
    undisturbed = read_losses(work / "alone")
    port = free_port()
    nodes = [start_node(rank, port, work, work / "killed") for rank in (0, 1)]
    at = random.Random(seed).randint(2, len(undisturbed) // 2)
    wait_for_steps(work / "killed", at, nodes)
    os.killpg(nodes[1].pid, signal.SIGKILL)
    killed_at = time.monotonic()
    nodes[1].wait()
    before = len(read_losses(work / "killed"))
    nodes[1] = start_node(1, port, work, work / "killed")
    wait_for_steps(work / "killed", before + 1, nodes)
    seconds = time.monotonic() - killed_at
    finish(nodes)
    losses = read_losses(work / "killed")
    if len(losses) != len(undisturbed):
        raise SystemExit(f"{len(losses)} steps instead of {len(undisturbed)}")
    return {
        "steps": len(losses),
        "killed_after": before,
        "to_next_step_s": round(seconds, 1),
        "first_loss": round(losses[0], 4),
        "loss_before": round(losses[before - 1], 4),
        "loss_after": round(losses[before], 4),
        "last_loss": round(losses[-1], 4),
        "largest_difference": max(abs(a - b) for a, b in zip(losses, undisturbed, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--kills", type=int, default=3, help="runs, each killed at another step")
    given = parser.parse_args()
    rows = []
    for seed in range(given.kills):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), given.epochs, seed))
        print(rows[-1], file=sys.stderr)
    with given.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
