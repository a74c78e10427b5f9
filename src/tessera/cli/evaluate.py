"""`tessera evaluate`: score a model on the field's benchmarks or on a folder, or ranks from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tessera.evaluate.result import Result

evaluate = typer.Typer(
    name="evaluate",
    help="Score a model on Revisited Oxford and Paris or on a labelled folder, or score ranks from a file.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@evaluate.command(
    "ranks",
    epilog="Example: tessera evaluate ranks --ground-truth gnd_roxford5k.pkl --ranks ranks.npy --json",
)
def ranks(
    ground_truth: Annotated[Path, typer.Option(help="A .pkl or .json: easy/hard/junk lists, or gnd/imlist/qimlist.")],
    ranks: Annotated[
        Path, typer.Option(help="A .npy (N x Q, best first down each column) or a .json (a list a query).")
    ],
    protocol: Annotated[
        list[str] | None, typer.Option(help="easy, medium or hard; may be repeated. All of them by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score ranks that any system has made, by the revisited protocol.

    Figures are equal to those of the field's own tool. Rankings may be truncated: what is missing was never found.
    """
    from tessera.evaluate.ranks import evaluate_ranks

    _show(evaluate_ranks(ground_truth, ranks, protocols=protocol or ()), as_json)


def _show(result: Result, as_json: bool) -> None:
    for note in result.notes:
        typer.secho(f"note: {note}", fg="yellow", err=True)
    typer.echo(json.dumps(result.to_json()) if as_json else result.to_text())
