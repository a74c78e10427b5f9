"""`tessera models` and `tessera models get`: the networks there are, and those that others published."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tessera.cli import models as listing
from tessera.cli.options import JsonOption
from tessera.cli.output import print_json, print_table, say, size_text

EXAMPLE = "Example: tessera models get dinov2-b14 -o bundles/dinov2-b14"


class ModelsGroup(TyperGroup):
    """`tessera models NAME...` lists networks, as `tessera models` does; only `get` is a command below it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] != ["get"]:
            ctx.meta["names"] = [word for word in args if not word.startswith("-")]
            args = [word for word in args if word.startswith("-")]
        return super().parse_args(ctx, args)


models = typer.Typer(
    name="models",
    cls=ModelsGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="[NAME]... | get NAME",
    epilog=listing.EXAMPLE,
)


@models.callback(help=listing.models.__doc__)
def _list(
    ctx: typer.Context,
    measure: listing.MeasureOption = False,
    json: JsonOption = False,
) -> None:
    if ctx.invoked_subcommand is None:
        listing.models(ctx.meta.get("names") or None, measure, json)


def _complete_name(incomplete: str) -> list[str]:
    from tessera.models.published.known import KNOWN

    return [name for name in KNOWN if name.startswith(incomplete)]


@models.command("get", epilog=EXAMPLE)
def get(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Of the table; without it, the table.", autocompletion=_complete_name),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="BUNDLE", help="The folder to write; NAME by default.")
    ] = None,
    pooling: Annotated[str | None, typer.Option("--pooling", metavar="cls|gem|both", show_default="cls")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Accept a licence that is not a free one without being asked.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Download a published network from the Hugging Face hub, check its hash, and make a bundle of it.

    What is fetched, from where, how large it is and its licence are said first; a licence that is not a free one is
    asked about once. Nothing is ever downloaded but by this command. HF_ENDPOINT names another hub.
    """
    from tessera.models.published.known import find_known

    if name is None:
        _print_known(json)
        return
    known = find_known(name)
    from tessera.errors import MissingExtraError, UsageError
    from tessera.models.published.download import fetch, list_files

    try:
        from tessera.models.convert import convert_checkpoint
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise MissingExtraError("tessera models get", "train") from error
        raise
    remote = list_files(known)
    say(f"{known.repo}, {size_text(remote.num_bytes)}. Licence: {known.licence}.")
    if not known.is_free and not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"the licence of {name} is not a free one. Read it, and give --yes to accept it.")
        typer.confirm("This is not a free licence. Have you read it, and do you accept it?", abort=True, err=True)
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        files = fetch(known, remote, Path(folder))
        origin = {"repo": known.repo, "commit": remote.commit}
        bundle = convert_checkpoint(
            files, output or Path(name), name=name, pooling=pooling, licence=known.licence, origin=origin
        )
    if json:
        answer = {"bundle": str(bundle.path), "name": name, "licence": known.licence, "dim": bundle.card.dim}
        print_json({**answer, **origin, "fingerprint": bundle.card.fingerprint})
        return
    print(bundle.path)


_FIGURES = {"oxford_hard": "Oxford Hard", "knn": "k-NN", "zero_shot": "zero-shot"}


def _print_known(json: bool) -> None:
    from tessera.models.published.known import KNOWN, shape_facts

    rows = [
        {"name": known.name, "repo": known.repo, "licence": known.licence, "free": known.is_free, **shape_facts(known)}
        for known in KNOWN.values()
    ]
    if json:
        print_json({"published": rows})
        return
    cells = [
        [
            row["name"],
            str(row["dim"]),
            f"{row['parameters'] / 1e6:.0f} M",
            str(row["size"]),
            "-" if row["seconds"] is None else f"{row['seconds']:.2f} s",
            ", ".join(f"{_FIGURES[key]} {value}" for key, value in row["published"].items()) or "-",
            row["licence"].split(" (")[0],
            row["repo"],
        ]
        for row in rows
    ]
    print_table(["name", "D", "parameters", "px", "a photo", "published", "licence", "on the hub"], cells)
