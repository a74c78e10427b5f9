"""`tessera export`: a run to a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tessera.errors import MissingExtraError


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or one of its checkpoints.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the bundle.")],
    name: Annotated[str | None, typer.Option("--name", help="The model's name (default: the recipe's).")] = None,
    licence: Annotated[str, typer.Option("--licence", help="Under which the weights are given.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the bundle's card as JSON.")] = False,
) -> None:
    """Make a bundle of a run's best weights: what every other command takes with --model.

    Example: tessera export runs/token-r50 -o bundles/token-r50
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("exporting a run", "train") from error
    from tessera.config import to_mapping
    from tessera.train.run_export import export_run

    bundle = export_run(run, output, name=name, licence=licence)
    typer.echo(json.dumps(to_mapping(bundle.card)) if as_json else f"{bundle.path}  {bundle.card.fingerprint}")
