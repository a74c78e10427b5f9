"""Showing a file in the file manager of this machine's desktop, where it has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tessera.serve.problems import ProblemError


def find_file_manager() -> list[str] | None:
    """The command that shows a file, without the file; None where there is no desktop."""
    if sys.platform == "darwin":
        return ["open", "-R"]
    if sys.platform == "win32":
        return ["explorer", "/select,"]
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    program = shutil.which("xdg-open")
    return [program] if program and has_screen else None


def reveal(path: Path) -> None:
    """Open the file manager at a file; on Linux, at its folder. Does not wait for it."""
    command = find_file_manager()
    if command is None:
        raise ProblemError(501, "The machine that the service runs on has no file manager.")
    target = path.parent if command[0].endswith("xdg-open") else path
    subprocess.Popen(
        [*command, str(target)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
