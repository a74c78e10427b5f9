"""Every option's key in the settings file and its environment variable, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

import typer
from markup import code, page, table

from tessera.cli.main import app
from tessera.cli.settings import Setting, settings_of

INTRODUCTION = """
Every option can be given in four places. The command line wins, then the environment, then the file, then the default.

```toml
# tessera.toml: here, or in ~/.config/tessera/, or wherever --config (TESSERA_CONFIG) says
gallery = "photos.tessera"   # above all tables: for every command that has the option

[serve]
host = "0.0.0.0"
key = "a long secret"        # then nobody else should be able to read this file
max_in_flight = 32

[bench.search]
json = true
```

The same in the environment: `TESSERA_GALLERY`, `TESSERA_SERVE_HOST`, `TESSERA_KEY`, `TESSERA_SERVE_MAX_IN_FLIGHT`,
`TESSERA_BENCH_SEARCH_JSON`. An option that may be repeated is a list in the file, and its values stand with spaces
between them in the environment. A key that no command knows is refused, with the nearest one that there is.
"""


def make_page() -> str:
    settings = settings_of(typer.main.get_command(app))
    by_command = groupby(settings, key=lambda setting: setting.command)
    return page("Settings", INTRODUCTION, (_section(command, several) for command, several in by_command))


def _section(command: str, settings: Iterable[Setting]) -> str:
    title = f"## tessera {command}".strip()
    where = f"Table `[{command.replace(' ', '.')}]`." if command else ""
    rows = [
        [code(setting.flag), code(setting.key), code(setting.variable), _default(setting.default), setting.help]
        for setting in settings
    ]
    parts = [title, where, table(["option", "key", "variable", "default", "what it does"], rows)]
    return "\n\n".join(part for part in parts if part)


def _default(default: str) -> str:
    return code(default) if re.fullmatch(r"[\w.:/,-]+", default) else default
