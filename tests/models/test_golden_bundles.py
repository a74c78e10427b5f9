"""Files of the Token authors' code, from the checkpoint to the descriptor, against the numbers of that code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tessera.models.convert import FORMATS
from tessera.models.convert.formats import Format

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_networks.py"
AUTHORS = [found for found in FORMATS if "Token" in found.name]
BARS = {"onnx": 1e-5, "other outputs": 1e-4, "embed onnx": 1e-5, "embed torch": 1e-5, "float64": 1e-9, "extract": 1e-5}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_networks", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1500)  # seconds alone, minutes on a machine that is busy
@pytest.mark.parametrize("found", AUTHORS, ids=lambda found: found.name)
def test_convert_then_embed_gives_the_golden_descriptors(found: Format, script: ModuleType, golden_dir: Path) -> None:
    figures = script.check(found, {}, 50, golden_dir, script.load_fill(golden_dir))
    measured = dict(zip(BARS, figures, strict=False))
    assert len(measured) == (6 if found.model in ("token-released", "solar-released", "delg-released") else 5)
    assert {name: figure for name, figure in measured.items() if not figure <= BARS[name]} == {}
