"""Every command and option, from the Typer application itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from markup import code, page, table

from tessera.cli.main import app

_NOT_HERE = re.compile(r" \(not installed: .*?\)(?=\.)")  # true of one machine
INTRODUCTION = """
Answers go to stdout, progress and notes to stderr; `--json` answers as JSON. The exit code is 0 when all went well, 1
for an error that a sentence explains, 2 for a command that cannot be meant. The option `--help` of each says the same.
"""


def make_page() -> str:
    return page("Commands", INTRODUCTION, (_section(name, command) for name, command in commands()))


def commands() -> Iterator[tuple[str, Any]]:
    """Each command with its whole name, those of groups too."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        yield f"tessera {name}", command
        for inner, below in getattr(command, "commands", {}).items():
            yield f"tessera {name} {inner}", below


def _section(name: str, command: Any) -> str:
    parts = [f"## {name}"]
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if not hasattr(command, "commands"):
        arguments = " ".join(_argument_usage(one) for one in shown if one.param_type_name == "argument")
        options = " [OPTIONS]" if any(one.param_type_name == "option" for one in shown) else ""
        parts.append(f"```\n{name}{options} {arguments}".rstrip() + "\n```")
    parts.append(_unwrapped(command.help or ""))
    if shown:
        rows = [[_names(one), _NOT_HERE.sub("", one.help or ""), _default(one)] for one in shown]
        parts.append(table(("argument or option", "what it does", "default"), rows))
    if command.epilog:
        parts.append(f"```\n{command.epilog.removeprefix('Example: ')}\n```")
    return "\n\n".join(part for part in parts if part)


def _argument_usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs == -1 and not name.endswith("..."):
        name += "..."
    return name if argument.required else f"[{name}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(_argument_usage(parameter))
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    flag = parameter.is_flag or parameter.count
    return code(names if flag else f"{names} {parameter.metavar or _type_name(parameter)}")


def _type_name(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    return {"int": "INTEGER", "float": "NUMBER", "Path": "PATH"}.get(getattr(annotation, "__name__", ""), "TEXT")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        shown = code(parameter.show_default)
    elif parameter.default is None or parameter.default is False or callable(parameter.default):
        shown = ""
    else:
        value = parameter.default
        shown = code(" ".join(map(str, value)) if isinstance(value, (list, tuple)) else value)
    variable = parameter.envvar
    return f"{code('$' + variable)}{', else ' + shown if shown else ''}" if isinstance(variable, str) else shown


def _unwrapped(text: str) -> str:
    """Paragraphs on one line each, so that a line's end in the source is none on the page."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.replace("\b", "").split("\n\n"))
