"""Train under torchrun on two rendezvous ends of one host; kill one with all its processes, start it again.

    python scripts/scale/kill_training_node.py -o results/scale/training_node.csv

Writes how the loss went on: steps, seconds from the kill to the next step, and how far the losses are from those of a
run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
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
from tessera.train.records.scalars import read_scalars

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
# With a shared store the first node (torch 2.13) does not tell one that comes later where the others meet.
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
WAIT_S = 600.0
LET_GO_S = 25.0  # torchrun believes in a dead node for 15 s, and a new one must not meet it


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_node(rank: int, port: int, work: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    """One end: torchrun's agent, which starts the process that trains."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", run_dir.name]
    command += ["--rdzv-conf", f"is_host={int(rank == 0)}", "--local-addr", "127.0.0.1", "--max-restarts", "3"]
    command += ["-m", "tessera.cli.main", "train", str(work / "tiny.toml"), "--data", str(work / "drawn")]
    command += ["-o", str(run_dir), "--resume"]
    with (work / f"{run_dir.name}-{rank}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **SETTINGS})


def kill(node: subprocess.Popen[bytes], what: str) -> None:
    """process: what trains, which the agent starts again. node: the agent, too, as when a machine loses its power."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    doomed = [node.pid]
    for pid in doomed:
        doomed += [child for child, parent in parents.items() if parent == pid]
    for pid in doomed[what == "process" :]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def read_losses(run_dir: Path) -> list[float]:
    path = run_dir / "scalars.csv"
    return [row["value"] for row in read_scalars(path) if row["name"] == "loss"] if path.is_file() else []


def wait_for_steps(run_dir: Path, steps: int, nodes: list[subprocess.Popen[bytes]]) -> None:
    give_up = time.monotonic() + WAIT_S
    while len(read_losses(run_dir)) < steps:
        if time.monotonic() > give_up or any(node.poll() not in (None, 0) for node in nodes):
            for node in nodes:
                kill(node, "node")
            raise SystemExit(f"{run_dir} did not reach step {steps}.\n{tails(run_dir.parent)}")
        time.sleep(0.02)


def finish(nodes: list[subprocess.Popen[bytes]], work: Path) -> None:
    for node in nodes:
        if node.wait(WAIT_S) != 0:
            raise SystemExit(f"torchrun ended with {node.returncode}.\n{tails(work)}")


def tails(work: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(work.glob("*.log")))


def measure(work: Path, epochs: int, seed: int, what: str) -> dict[str, str | float]:
    draw_images(work / "drawn", classes=8, per_class=6, side=64)
    (work / "tiny.toml").write_text(RECIPE % epochs)
    port = free_port()
    finish([start_node(rank, port, work, work / "alone") for rank in (0, 1)], work)
    undisturbed = read_losses(work / "alone")
    port = free_port()
    nodes = [start_node(rank, port, work, work / "killed") for rank in (0, 1)]
    at = random.Random(seed).randint(2, len(undisturbed) // 2)
    wait_for_steps(work / "killed", at, nodes)
    kill(nodes[1], what)
    killed_at = time.monotonic()
    before = len(read_losses(work / "killed"))
    if what == "node":
        nodes[1].wait()
        time.sleep(LET_GO_S)
        nodes[1] = start_node(1, port, work, work / "killed")
    wait_for_steps(work / "killed", before + 1, nodes)
    seconds = time.monotonic() - killed_at
    finish(nodes, work)
    losses = read_losses(work / "killed")
    if len(losses) != len(undisturbed):
        raise SystemExit(f"{len(losses)} steps instead of {len(undisturbed)}")
    return {
        "killed": what,
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
    parser.add_argument("--kills", type=int, default=2, help="runs of each kind, each killed at another step")
    parser.add_argument("--what", nargs="+", default=["process", "node"], choices=["process", "node"])
    given = parser.parse_args()
    rows = []
    for what in given.what:
        for seed in range(given.kills):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(Path(folder), given.epochs, seed, what))
            print(rows[-1], file=sys.stderr)
    with given.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
