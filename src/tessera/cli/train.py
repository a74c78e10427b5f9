"""`tessera train`: a recipe to a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tessera.errors import MissingExtraError


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a packaged one.")],
    *,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, dotted; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run (default: runs/NAME).")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the data set; the same as data.root.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    try_out: Annotated[
        bool, typer.Option("--dry-run", help="Build network, loss and sampler, take one small step, keep nothing.")
    ] = False,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Train so many seeds and keep the median one.")] = 1,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Train a network from a recipe file; under torchrun, on every process it starts.

    Examples:

      tessera train table1/c-token-r50 --data gldv2 -o runs/token-r50

      torchrun --nproc-per-node 4 --no-python tessera train table1/c-token-r50 --data gldv2
    """
    from tessera.config import find_config
    from tessera.train.recipe import load_recipe

    wanted = [*(settings or [])]
    if data is not None:
        wanted.append(f"data.root={json.dumps(str(data))}")
    chosen = load_recipe(find_config("recipes", recipe), wanted)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("training", "train") from error
    from tessera.train.distributed import open_world
    from tessera.train.dryrun import dry_run
    from tessera.train.runs import train_run, train_runs

    with open_world(device) as world:

        def say(text: str) -> None:
            if world.is_main:
                typer.echo(text, err=True)

        run_dir = output or Path("runs") / chosen.name
        if try_out:
            outcome = dry_run(chosen, world, say)
        elif runs > 1:
            outcome = train_runs(chosen, run_dir, world, say, count=runs, resume=resume)
        else:
            outcome = train_run(chosen, run_dir, world, say, resume=resume)
        if world.is_main:
            typer.echo(json.dumps(outcome) if as_json else _written(outcome))


def _written(outcome: dict[str, Any]) -> str:
    if "sampler" in outcome:
        lines = [f"{key:<12} {value}" for key, value in outcome.items() if key != "stand_ins"]
        return "\n".join([*lines, *(f"stand-in     {text}" for text in outcome["stand_ins"].values())])
    if "runs" in outcome:
        lines = [f"seed {run['seed']:<4} best {run['scores']['best']:.4f}  {run['run_dir']}" for run in outcome["runs"]]
        return "\n".join(
            [*lines, f"median: {outcome['median']['run_dir']}; its weights are {outcome['run_dir']}/best.pt"]
        )
    scores = "  ".join(f"{name} {value:.4f}" for name, value in outcome["scores"].items())
    return f"{outcome['run_dir']}  {scores}"
