"""One row with one seed: train it, describe the pictures of the evaluation, score, and write the figures down.

Figures go to results/figures.csv, what was run to results/runs.csv; a row that stands there is not run again. The lines
of a row are written together, so that a row that was stopped has all of its figures or none.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from maps import PictureMaps, describe_maps
from rows import BACKBONE, COMMON, RATES, REFERENCES, ROWS, SIZE, SMOKE, Row
from sets import CHOICE_SET, TEST_SETS, Photo, benchmark_of, read_photos, thin_out, unseen_photos, write_training_list

from tessera.cli.main import app
from tessera.data.sets.benchmark import Benchmark
from tessera.evaluate.protocol import KAPPAS
from tessera.evaluate.rankers import rank_by_index, rank_exactly
from tessera.evaluate.run import score_rankings
from tessera.models.backbones import build_backbone
from tessera.models.model_registry import build_model
from tessera.storage import atomic_path, write_atomically

REPOSITORY = Path(__file__).parents[2]
CODE = ("src", "scripts/results")  # what decides a figure
FIGURES = ("row", "seed", "codec", "set", "distractors", "map", "mp1", "mp10", "queries", "gallery", "dim")
RUNS = ("row", "seed", "rate", "images", "classes", "steps", "loss", "train_cpu_s", "train_s", "describe_s", "commit")
CHOICES = ("row", "seed", "rate", "set", "map", "commit")


@dataclass(frozen=True)
class Bench:
    """Where things lie. data: the folder of both sets. work: runs and maps. results: the CSVs.

    smoke: a few photos and steps, to see that every path works.
    """

    data: Path
    work: Path
    results: Path = REPOSITORY / "results"
    smoke: bool = False

    @cached_property
    def photos(self) -> list[Photo]:
        photos = read_photos(self.data)
        return thin_out(photos) if self.smoke else photos

    @cached_property
    def training_list(self) -> Path:
        path = self.work / "train.csv"
        write_training_list(self.photos, path)
        return path.absolute()

    @cached_property
    def pictures(self) -> PictureMaps:
        """Every photo that training did not see; their maps may not be there yet."""
        paths = [self.data / photo.file for photo in unseen_photos(self.photos)]
        return PictureMaps(self.work / "pictures" / f"{BACKBONE}-{SIZE}", paths, SIZE)

    @cached_property
    def maps(self) -> PictureMaps:
        """The same with the maps of the backbone as ImageNet left it, computed on first use."""
        self.pictures.prepare(build_backbone(BACKBONE, weights="imagenet"), say)
        return self.pictures

    def run_dir(self, row: Row, seed: int, rate: float) -> Path:
        return self.work / "runs" / f"{row.name}-{rate:g}-s{seed}"


@contextlib.contextmanager
def locked(bench: Bench, name: str, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that processes share, so that several can make the tables together. False: another one has it."""
    path = bench.work / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def make_row(bench: Bench, row: Row, seed: int) -> None:
    """Train and measure a row unless its figures are there."""
    wanted = {(row.name, str(seed), codec) for codec in row.codecs}
    if wanted <= {(found["row"], found["seed"], found["codec"]) for found in read_csv(bench.results / "figures.csv")}:
        return
    rate = choose_rate(bench, ROWS[row.rate_of or row.name])
    train(bench, row, seed, rate)
    started = time.monotonic()
    descriptors = describe(bench, row, seed, rate)
    run_dir = bench.run_dir(row, seed, rate)
    trained = json.loads((run_dir / "trained.json").read_text(encoding="utf-8"))
    figures = [
        line
        for codec in row.codecs
        for line in measure_descriptors(bench, {"row": row.name, "seed": seed, "codec": codec}, descriptors)
    ]
    append_csv(bench.results / "figures.csv", FIGURES, *figures)
    described_s = round(time.monotonic() - started, 1)
    append_csv(
        bench.results / "runs.csv",
        RUNS,
        {"row": row.name, "seed": seed, "rate": rate, **trained, "describe_s": described_s, "commit": commit()},
    )


def open_reference(name: str) -> Any:
    """A pooling with nothing behind it; its backbone's weights are not loaded."""
    return build_model(f"{REFERENCES[name]}-r50", backbone=BACKBONE, dim=None, whitening="global")


def make_reference(bench: Bench, name: str) -> None:
    """Measure a pooling of the maps with nothing trained."""
    if any(found["row"] == name for found in read_csv(bench.results / "figures.csv")):
        return
    descriptors = describe_maps(open_reference(name).head, bench.maps.scaled_groups(), len(bench.pictures.paths))
    figures = measure_descriptors(bench, {"row": name, "seed": 0, "codec": "flat"}, descriptors)
    append_csv(bench.results / "figures.csv", FIGURES, *figures)


def measure_descriptors(
    bench: Bench, what: dict[str, Any], descriptors: npt.NDArray[np.float32]
) -> list[dict[str, Any]]:
    def score(benchmark: Benchmark) -> Any:
        return score_descriptors(bench, benchmark, descriptors, what["codec"])

    return measure(bench, {**what, "dim": descriptors.shape[1]}, score)


def measure(bench: Bench, what: dict[str, Any], score: Callable[[Benchmark], Any]) -> list[dict[str, Any]]:
    """The lines of figures.csv: a score on both test sets, alone and with distractors."""
    lines = []
    for name in TEST_SETS:
        for distractors in (False, True):
            benchmark = benchmark_of(name, bench.photos, bench.data, distractors=distractors)
            found = score(benchmark)
            line = {
                **{"set": name, "distractors": int(distractors)},
                **{"map": round(found.map, 5), "mp1": round(found.mp[1], 5), "mp10": round(found.mp[10], 5)},
                **{"queries": len(benchmark.queries), "gallery": len(benchmark.gallery)},
            }
            lines.append({**what, **line})
            say(f"{what['row']}, seed {what['seed']}, {what['codec']}: {benchmark.name} {100 * found.map:.1f}")
    return lines


def choose_rate(bench: Bench, row: Row) -> float:
    """The rate with the best mAP on val landmarks, seed 0; test is not used."""
    path = bench.results / "choices.csv"
    with locked(bench, f"choice-{row.name}"):
        for rate in RATES:
            if any(found["row"] == row.name and float(found["rate"]) == rate for found in read_csv(path)):
                continue
            train(bench, row, 0, rate)
            descriptors = describe(bench, row, 0, rate)
            score = score_descriptors(bench, benchmark_of(CHOICE_SET, bench.photos, bench.data), descriptors, "flat")
            found = {"row": row.name, "seed": 0, "rate": rate, "set": CHOICE_SET, "map": round(score.map, 5)}
            append_csv(path, CHOICES, {**found, "commit": commit()})
    tried = {float(found["rate"]): float(found["map"]) for found in read_csv(path) if found["row"] == row.name}
    return max(tried, key=lambda rate: tried[rate])


def command_of(bench: Bench, row: Row, seed: int, rate: float) -> list[str]:
    """The command that trains a row, from the repository's folder."""
    settings = (
        "data.name=csv",
        f'data.options={{file="{bench.training_list}"}}',
        *COMMON,
        f'frozen.dir="{(bench.work / "maps").absolute()}"',
        *row.settings,
        f"optimiser.rate={rate:g}",
        f"seed={seed}",
        *(SMOKE if bench.smoke else ()),
    )
    laid = [word for setting in settings for word in ("--set", setting)]
    out = ["--data", str(bench.data), "-o", str(bench.run_dir(row, seed, rate)), "--resume", "--json"]
    return ["tessera", "train", row.recipe.removesuffix(".toml"), *laid, *out]


def train(bench: Bench, row: Row, seed: int, rate: float) -> None:
    """Train a run to its end, from where it stands; what it took is kept in `trained.json`."""
    run_dir = bench.run_dir(row, seed, rate)
    with locked(bench, run_dir.name):
        if not (run_dir / "trained.json").is_file():
            _train(bench, row, seed, rate)


def _train(bench: Bench, row: Row, seed: int, rate: float) -> None:
    run_dir = bench.run_dir(row, seed, rate)
    command = command_of(bench, row, seed, rate)
    say(f"train {run_dir.name}")
    started, before = time.monotonic(), time.process_time()
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"{' '.join(command)}\n")
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            app(command[1:], standalone_mode=False)  # the command itself, without starting a process for each run
    described = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    losses = [found for found in read_csv(run_dir / "scalars.csv") if found["name"] == "loss"]
    trained = {
        "images": described["training_images"],
        "classes": described["classes"],
        "steps": int(losses[-1]["step"]),
        "loss": round(float(np.mean([float(found["value"]) for found in losses[-5:]])), 4),
        "train_cpu_s": round(time.process_time() - before),
        "train_s": round(time.monotonic() - started),
    }
    write_atomically(run_dir / "trained.json", json.dumps(trained).encode())


def describe(bench: Bench, row: Row, seed: int, rate: float) -> npt.NDArray[np.float32]:
    """Descriptors of every photo that training did not see, in the order of `unseen_photos`; kept beside the run.

    A run that is not there is trained: another row may ask for it whose figures are there already.
    """
    file = bench.run_dir(row, seed, rate) / "descriptors.npy"
    if not file.is_file():
        train(bench, row, seed, rate)
        say(f"describe {file.parent.name}")
        network, count = load_network(file.parent), len(bench.pictures.paths)
        groups = bench.pictures.stream(network.backbone) if row.trained else bench.maps.scaled_groups()
        descriptors = describe_maps(network.head, groups, count)
        with atomic_path(file) as temporary, temporary.open("wb") as opened:
            np.save(opened, descriptors.astype(np.float16))
    loaded = np.load(file).astype(np.float32)
    unit: npt.NDArray[np.float32] = loaded / np.linalg.norm(loaded, axis=1, keepdims=True)
    return unit


def load_network(run_dir: Path) -> Any:
    """The network of a run with its last weights; the optimiser's state goes, the weights stay."""
    small, whole = run_dir / "weights.pt", run_dir / "last.pt"
    state = torch.load(small if small.is_file() else whole, map_location="cpu", weights_only=True)
    model = state["recipe"]["model"]
    network = build_model(model["name"], **model["config"])
    weights = {key: value for key, value in state["objective"].items() if key.startswith("network.")}
    network.load_state_dict({key.removeprefix("network."): value for key, value in weights.items()})
    if not small.is_file():
        with atomic_path(small) as temporary:
            torch.save({"recipe": state["recipe"], "objective": weights}, temporary)
        whole.unlink()
    return network


def score_descriptors(bench: Bench, benchmark: Benchmark, descriptors: npt.NDArray[np.float32], codec: str) -> Any:
    """The score of one protocol, `all`: rankings by the dot product, exactly or through a codec."""
    row_of = {photo.file: row for row, photo in enumerate(unseen_photos(bench.photos))}
    gallery = descriptors[[row_of[name] for name in benchmark.gallery_names]]
    queries = descriptors[[row_of[name] for name in benchmark.query_names]]
    rankings = rank_exactly(gallery, queries) if codec == "flat" else rank_by_index(codec, gallery, queries)
    scores, _, _ = score_rankings(benchmark, rankings, KAPPAS, partial=codec != "flat")
    return scores["all"]


def read_csv(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append_csv(path: Path, columns: Sequence[str], *lines: dict[str, Any]) -> None:
    """Lines more, the header first, in one write: what stops between two lines leaves a row that looks whole."""
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, columns)
    if not path.is_file():
        writer.writeheader()
    writer.writerows(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(written.getvalue())


def commit() -> str:
    """The commit that is measured, with a + where the code is not what was committed."""
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    head = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
    same = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *CODE], cwd=REPOSITORY, check=False).returncode == 0
    return head if same else f"{head}+"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
