"""The command tree: flags shown as `--json`, not as `--json <bool>`, values taken at once and completed by a shell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

_CHOICES = re.compile(r"[a-z][\w-]*(\|[a-z][\w-]*)+$")  # what a metavar such as auto|cpu|cuda says


class CommandGroup(TyperGroup):
    """A flag takes nothing, so its help names no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _prepared(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, CommandGroup):
            _prepared(command.get_params(ctx))
        return command


class PlainCoercion:
    """Takes a value that is what the option wants; any other goes to Typer.

    Typer asks pydantic about every value, even one that was not given, and loading pydantic takes 70 ms: a tenth of a
    search. A Typer that does not look for this attribute coerces as ever.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        wanted = param.type_descriptor.annotation
        if several and isinstance(value, list | tuple) and wanted == list[str] and all(type(v) is str for v in value):
            return list(value)
        if not several and not param.type_descriptor.is_ranged:
            if type(value) is wanted or (wanted is Path and isinstance(value, Path)):
                return value
            if wanted is Path and type(value) is str:
                return Path(value)
            if wanted is int and type(value) is str and value.isascii() and value.isdigit():
                return int(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _complete_choice(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """What the help page says may be given, for a shell that completes."""
    return [choice for choice in param.metavar.split("|") if choice.startswith(incomplete)]


def _prepared(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param._custom_shell_complete is None and _CHOICES.match(param.metavar or ""):
            param._custom_shell_complete = _complete_choice
        if getattr(param, "_runtime_param", param) is None:
            param._runtime_param = PlainCoercion()
    return params
