"""Fifty seeded faults, and a planted one that shows that they would be seen (scripts/faults/inject.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, str(ROOT / "scripts" / "faults" / "inject.py")]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not here")]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [*RUN, *options]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, timeout=1700, check=False
    )


@pytest.mark.timeout(1800)
def test_fifty_faults_lose_nothing() -> None:
    done = run("--cases", "50", "--seed", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 cases, 0 failed" in done.stdout


@pytest.mark.timeout(1800)
def test_a_disk_that_forgets_its_syncs_is_noticed() -> None:
    """Seed 25 cuts the power; without syncs, what was acknowledged is lost."""
    done = run("--cases", "1", "--seed", SEED_OF_A_POWER_CUT, "--forget-syncs")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED seed {SEED_OF_A_POWER_CUT}" in done.stdout


SEED_OF_A_POWER_CUT = "25"
