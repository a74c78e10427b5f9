"""The `tessera` command. One file a command; a command's module imports nothing heavy until it runs."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tessera import __version__
from tessera.cli.commands import CommandGroup
from tessera.cli.output import LogLevel, log_to_stderr, say
from tessera.cli.settings import PREFIX, find_file, hide_variables, read_settings
from tessera.errors import TesseraError, printable

_INTERRUPTED = 130
log = logging.getLogger("tessera.cli")

# In the order of the help page, part by part; each with its module in `tessera.cli`, where it has its own name.
PARTS = {
    "Your photos": {
        "index": "index",
        "search": "search",
        "serve": "serve",
        "explain": "explain",
        "duplicates": "duplicates",
        "group": "group",
        "watch": "watch",
    },
    "The gallery": {
        "stats": "stats",
        "check": "check",
        "remove": "remove",
        "export-descriptors": "export_descriptors",
        "migrate": "migrate",
    },
    "Networks and research": {
        "models": "models_get",
        "embed": "embed",
        "adapt": "adapt",
        "convert": "convert",
        "train": "train",
        "export": "export",
        "evaluate": "evaluate",
        "system": "system",
        "bench": "bench",
    },
}
COMMANDS = {name: module for part in PARTS.values() for name, module in part.items()}


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tessera {__version__}")
        raise typer.Exit()


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
            envvar="TESSERA_LOG_LEVEL",
            help="What is logged to stderr.",
            show_default="warning; info for serve where stderr is no terminal",
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


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands."""
    made = typer.Typer(
        name="tessera",
        cls=CommandGroup,
        help="Find the same place or object in a collection of images, and see why.",
        epilog="Begin with: tessera index PHOTOS, then tessera search PICTURE, or tessera serve for the page.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    panels = {name: part for part, held in PARTS.items() for name in held}
    for name in names:
        module = importlib.import_module(f"tessera.cli.{COMMANDS[name]}")
        command = getattr(module, name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            made.add_typer(command, rich_help_panel=panels[name])
        else:
            register = made.command(
                name,
                cls=getattr(module, "COMMAND_CLASS", None),
                epilog=getattr(module, "EXAMPLE", None),
                rich_help_panel=panels[name],
            )
            register(command)
    return made


def __getattr__(name: str) -> typer.Typer:
    """`app`, the whole command line, made when it is first asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _whole_app()


@functools.cache
def _whole_app() -> typer.Typer:
    return make_app()


def _app_for(words: Sequence[str]) -> typer.Typer:
    """Only the command that is run, where it is named first: to make the others takes as long as a search.

    A settings file speaks of all of them, and is checked against them.
    """
    if words and words[0] in COMMANDS and "TESSERA_CONFIG" not in os.environ and find_file() is None:
        return make_app(words[:1])
    return _whole_app()


def main() -> None:
    """Run the command line; a TesseraError becomes one sentence on stderr and its exit code."""
    try:
        _app_for(sys.argv[1:])()
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
    say(message, "red")
    sys.exit(code)


if __name__ == "__main__":
    main()
