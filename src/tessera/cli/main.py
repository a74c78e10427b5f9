"""The `tessera` command. One file a command; a command's module imports nothing heavy until it runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tessera import __version__
from tessera.cli import (
    bench,
    check,
    convert,
    embed,
    evaluate,
    explain,
    export,
    index,
    migrate,
    models,
    remove,
    search,
    serve,
    stats,
    system,
    train,
)
from tessera.errors import TesseraError

app = typer.Typer(
    name="tessera",
    help="Find the same place or object in a collection of images, and see why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tessera {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


app.command("index", cls=index.IndexCommand, epilog=index.EXAMPLE)(index.index)
app.command("search", epilog=search.EXAMPLE)(search.search)
app.command("remove", epilog=remove.EXAMPLE)(remove.remove)
app.command("stats", epilog=stats.EXAMPLE)(stats.stats)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("migrate", epilog=migrate.EXAMPLE)(migrate.migrate)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain)
app.command("serve", epilog=serve.EXAMPLE)(serve.serve)
app.command("export")(export.export)
app.command("train")(train.train)
app.command("embed")(embed.embed)
app.command("models", epilog=models.EXAMPLE)(models.models)
app.command("convert", epilog=convert.EXAMPLE)(convert.convert)
app.add_typer(evaluate.evaluate)
app.add_typer(system.system)
app.add_typer(bench.bench)


def main() -> None:
    """Run the command line; a TesseraError becomes one sentence on stderr and its exit code."""
    try:
        app()
    except TesseraError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.secho("interrupted", fg="red", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe has gone (`tessera ... | head`): not an error, but stdout must not be flushed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
