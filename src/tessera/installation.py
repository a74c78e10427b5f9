"""How Tessera came onto this machine, and so by which command more of it does."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

PACKAGE = "tessera-retrieval"


def install_command(extra: str) -> str:
    """The command that adds one of Tessera's extras to this installation."""
    origin = _origin()
    tool = _tool()
    if tool in ("pipx", "uv tool"):
        return f"{tool} install --force {shlex.quote(_requirement(origin, extra))}"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"{tool} install {editable}{shlex.quote(_requirement(origin, extra))}"


def add_command(requirement: str) -> str:
    """The command that installs another package beside Tessera."""
    tool = _tool()
    if tool == "pipx":
        return f"pipx inject {PACKAGE} {requirement}"
    if tool == "uv tool":
        return f"uv tool install --with {requirement} {PACKAGE}"
    return f"{tool} install {requirement}"


def _origin() -> dict[str, Any]:
    """Where the package was installed from (PEP 610); nothing for a package index, or where it was not installed."""
    try:
        written = metadata.distribution(PACKAGE).read_text("direct_url.json")
        origin = json.loads(written or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def _requirement(origin: dict[str, Any], extra: str) -> str:
    url = str(origin.get("url", ""))
    if not url:
        return f"{PACKAGE}[{extra}]"
    if "dir_info" in origin:
        return f"{unquote(urlparse(url).path)}[{extra}]"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return f"{PACKAGE}[{extra}] @ {url}"


def _tool() -> str:
    """What installs into the running environment."""
    prefix = Path(sys.prefix)
    if prefix.parent.name == "venvs" and "pipx" in prefix.parts:
        return "pipx"
    if prefix.parent.name == "tools" and "uv" in prefix.parts:
        return "uv tool"
    try:
        installer = (metadata.distribution(PACKAGE).read_text("INSTALLER") or "").strip()
    except metadata.PackageNotFoundError:
        installer = ""
    if installer == "uv":
        return "uv pip"
    found = shutil.which("pip")
    # Another environment's pip may come first on the path: it would install into an environment that is not used.
    is_ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if is_ours else f"{shlex.quote(sys.executable)} -m pip"
