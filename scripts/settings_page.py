"""Write docs/settings.md from the commands' own options: python scripts/settings_page.py"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import typer

from tessera.cli.main import app
from tessera.cli.settings import Setting, settings_of

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Made by `python scripts/settings_page.py` from the commands' own options; do not edit it.

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
    parts = [HEAD]
    for command, settings in groupby(settings_of(typer.main.get_command(app)), key=lambda setting: setting.command):
        title = f"tessera {command}".strip()
        table = f"Table `[{command.replace(' ', '.')}]`.\n\n" if command else ""
        rows = "\n".join(map(_row, settings))
        parts.append(f"## {title}\n\n{table}| option | key | variable | default | |\n|---|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(setting: Setting) -> str:
    default = f"`{setting.default}`" if re.fullmatch(r"[\w.:/,-]+", setting.default) else setting.default
    cells = (f"`{setting.flag}`", f"`{setting.key}`", f"`{setting.variable}`", default, setting.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(make_page())
