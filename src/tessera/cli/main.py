"""The `tessera` command. One file a command; a command's module imports nothing heavy until it runs."""

from __future__ import annotations

import logging
import os
import platform
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tessera import __version__
from tessera.cli import (
    adapt,
    bench,
    check,
    convert,
    duplicates,
    embed,
    evaluate,
    explain,
    export,
    export_descriptors,
    group,
    index,
    migrate,
    models_get,
    remove,
    search,
    serve,
    stats,
    system,
    train,
    watch,
)
from tessera.cli.commands import CommandGroup
from tessera.cli.output import LogLevel, log_to_stderr
from tessera.cli.settings import PREFIX, hide_variables, read_settings
from tessera.errors import TesseraError, printable

_INTERRUPTED = 130
log = logging.getLogger("tessera.cli")

app = typer.Typer(
    name="tessera",
    cls=CommandGroup,
    help="Find the same place or object in a collection of images, and see why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tessera {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="TESSERA_CONFIG",
            help="Settings for every option.",
            show_default="tessera.toml here, or the user's own",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", envvar="TESSERA_VERBOSE", help="Say on stderr what is done: the level debug."),
    ] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            envvar="TESSERA_LOG_LEVEL", help="What is logged to stderr.", show_default="warning; info for serve"
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    hide_variables(context.command)
    context.auto_envvar_prefix = PREFIX  # of the commands; here it would read TESSERA_VERSION as --version
    context.obj = LogLevel.DEBUG if verbose else log_level
    log_to_stderr(context.obj or LogLevel.WARNING)
    log.debug("tessera %s, Python %s, %s", __version__, platform.python_version(), context.invoked_subcommand)
    context.default_map = read_settings(context.command, config)


app.command("index", cls=index.IndexCommand, epilog=index.EXAMPLE)(index.index)
app.command("search", epilog=search.EXAMPLE)(search.search)
app.command("remove", epilog=remove.EXAMPLE)(remove.remove)
app.command("stats", epilog=stats.EXAMPLE)(stats.stats)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("export-descriptors", epilog=export_descriptors.EXAMPLE)(export_descriptors.export_descriptors)
app.command("duplicates", epilog=duplicates.EXAMPLE)(duplicates.duplicates)
app.command("group", epilog=group.EXAMPLE)(group.group)
app.command("watch", epilog=watch.EXAMPLE)(watch.watch)
app.command("migrate", epilog=migrate.EXAMPLE)(migrate.migrate)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain)
app.command("serve", epilog=serve.EXAMPLE)(serve.serve)
app.command("export")(export.export)
app.command("train")(train.train)
app.command("embed", epilog=embed.EXAMPLE)(embed.embed)
app.add_typer(models_get.models)
app.command("adapt", epilog=adapt.EXAMPLE)(adapt.adapt)
app.command("convert", epilog=convert.EXAMPLE)(convert.convert)
app.add_typer(evaluate.evaluate)
app.add_typer(system.system)
app.add_typer(bench.bench)


def main() -> None:
    """Run the command line; a TesseraError becomes one sentence on stderr and its exit code."""
    try:
        app()
    except TesseraError as error:
        _leave(f"error: {error}", error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has gone (`tessera ... | head`): not an error, but stdout must not be flushed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # a file or a folder that is out of reach, wherever it was met
        what = "" if error.filename is None else f"{printable(os.fsdecode(error.filename))}: "
        _leave(f"error: {what}{error.strerror or error}. Check the path and its permissions.", 1)
    except SystemExit as leaving:
        if leaving.code == _INTERRUPTED:  # Typer says nothing of Ctrl-C
            _leave("interrupted", _INTERRUPTED)
        raise


def _leave(message: str, code: int) -> NoReturn:
    typer.secho(message, fg="red", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
