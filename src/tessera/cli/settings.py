"""Every option in `tessera.toml` and in the environment.

What is given on the command line wins, then the environment, then the file, then the default. The commands themselves
are the table of settings: a key of the file is an option's name, in the table of its command, or above all tables for
every command that has it. `docs/reference/settings.md` is made from the same walk.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import ConfigError, unknown_name

PREFIX = "TESSERA"
FILE_NAME = "tessera.toml"
log = logging.getLogger("tessera.cli")
_NOT_SETTINGS = {"help", "version", "config", "install_completion", "show_completion"}


@dataclass(frozen=True)
class Setting:
    """One option of a command. command: "serve", "bench search", "" for `tessera` itself. key: its name in the file."""

    command: str
    key: str
    parameter: str
    flag: str
    variable: str
    default: str
    help: str


def settings_of(group: Any, names: tuple[str, ...] = ()) -> Iterator[Setting]:
    """The options of a command and of those below it, in their order. group: what `typer.main.get_command` gives."""
    for option in group.params:
        if option.param_type_name != "option" or option.name in _NOT_SETTINGS:
            continue
        flag = max(option.opts, key=len)
        given = option.envvar if isinstance(option.envvar, str) else next(iter(option.envvar or ()), None)
        automatic = "_".join((PREFIX, *names, option.name)).upper().replace("-", "_")
        shown = option.show_default if isinstance(option.show_default, str) else _plain(option.default)
        yield Setting(
            " ".join(names),
            flag.lstrip("-").replace("-", "_"),
            option.name,
            flag,
            given or automatic,
            shown,
            " ".join((option.help or "").split()),
        )
    for name, command in getattr(group, "commands", {}).items():
        yield from settings_of(command, (*names, name))


def read_settings(group: Any, path: Path | None) -> dict[str, Any]:
    """What a settings file says, as the defaults of a command line. path: None looks where one may lie."""
    found = find_file() if path is None else path
    if found is None:
        return {}
    log.debug("settings are read from %s", found)
    try:
        values = tomllib.loads(found.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(
            f"The settings file {found} cannot be read: {reason}. See docs/reference/settings.md."
        ) from error
    return _defaults(group, values, {}, f"{found}: ")


def find_file() -> Path | None:
    """`tessera.toml` here, else in the user's folder for settings."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path(FILE_NAME), home / "tessera" / FILE_NAME) if path.is_file()), None)


def hide_variables(group: Any) -> None:
    """Help pages name only the variables that have a name of their own: the page of settings has them all."""
    for option in group.params:
        option.show_envvar = option.envvar is not None
    for command in getattr(group, "commands", {}).values():
        hide_variables(command)


def _defaults(group: Any, values: Mapping[str, Any], above: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The defaults for a command. above: what its parents' tables say for every command that has the key."""
    commands = getattr(group, "commands", {})
    below = list(settings_of(group))
    given = {key.replace("-", "_"): value for key, value in values.items() if not isinstance(value, dict)}
    for key in given:
        if all(setting.key != key for setting in below):
            raise ConfigError(where + unknown_name("key", key, {setting.key for setting in below}))
    for key, value in values.items():
        if isinstance(value, dict) and key not in commands:
            raise ConfigError(where + unknown_name("table", key, commands))
    inherited = {**above, **given}
    here = {setting.key: setting.parameter for setting in below if not setting.command}
    defaults = {parameter: inherited[key] for key, parameter in here.items() if key in inherited}
    for name, command in commands.items():
        defaults[name] = _defaults(command, values.get(name, {}), inherited, f"{where}{name}.")
    return defaults


def _plain(value: Any) -> str:
    if value is None or value == () or callable(value):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
