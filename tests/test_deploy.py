"""The files that run the service elsewhere agree with it: options, variables, addresses."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import typer

from tessera.cli.main import app
from tessera.cli.settings import settings_of

DEPLOY = Path(__file__).parent.parent / "deploy"
VARIABLES = {setting.variable: setting for setting in settings_of(typer.main.get_command(app))}


def test_every_variable_in_them_is_a_setting() -> None:
    for path in DEPLOY.iterdir():
        named = set(re.findall(r"\bTESSERA_[A-Z_]+\b", path.read_text()))
        assert named <= VARIABLES.keys(), path.name
        assert "TESSERA_KEY" in named or path.name == "README.md", path.name


def test_their_port_is_the_default_one() -> None:
    port = VARIABLES["TESSERA_SERVE_PORT"].default
    assert f"EXPOSE {port}" in (DEPLOY / "Containerfile").read_text()
    for name in ("Containerfile", "compose.yaml"):
        assert f"http://127.0.0.1:{port}/health" in (DEPLOY / name).read_text()


def test_the_container_copies_what_there_is_and_runs_as_nobody_special() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            assert all((DEPLOY.parent / name).exists() for name in line.split()[1:-1]), line
    assert lines.index("USER tessera") < lines.index('CMD ["serve"]')


def test_the_script_that_tries_the_container_fits_it() -> None:
    script = DEPLOY.parent / "scripts" / "container.sh"
    subprocess.run(["bash", "-n", script], check=True)
    text, recipe = script.read_text(), (DEPLOY / "Containerfile").read_text()
    assert set(re.findall(r"--build-arg (\w+)=", text)) <= set(re.findall(r"^ARG (\w+)", recipe, re.MULTILINE))
    assert set(re.findall(r"\bTESSERA_[A-Z_]+\b", text)) <= VARIABLES.keys()
    uid = re.search(r"useradd .*--uid (\d+)", recipe)
    assert uid is not None and f'id -u)" = {uid[1]} ]' in text


def test_the_unit_stops_later_than_the_service_and_is_hardened() -> None:
    from tessera.serve.server import GRACE_S

    unit = configparser.RawConfigParser(strict=False, allow_no_value=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "tessera.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > GRACE_S
    for key, value in {"ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": ""}.items():
        assert service[key] == value
