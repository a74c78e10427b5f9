"""How the golden networks' weights were filled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fill(golden_dir: Path) -> ModuleType:
    """The module that makes the weights and inputs which the golden numbers were made with."""
    spec = importlib.util.spec_from_file_location("golden_fill", golden_dir / "fill.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
