"""Files of the Token authors' code, from the checkpoint to the descriptor, against the numbers of that code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tessera.models.convert import FORMATS
from tessera.models.convert.formats import Format

AUTHORS = [found for found in FORMATS if "Token" in found.name]
BARS = {"onnx": 1e-5, "other outputs": 1e-4, "embed onnx": 1e-5, "embed torch": 1e-5, "float64": 1e-9, "extract": 1e-5}


@pytest.fixture(scope="module")
def script(load_module: Callable[[str], ModuleType]) -> ModuleType:
    return load_module("scripts/check_networks.py")


@pytest.mark.slow
@pytest.mark.timeout(1500)  # seconds alone, minutes on a machine that is busy
@pytest.mark.parametrize("found", AUTHORS, ids=lambda found: found.name)
def test_convert_then_embed_gives_the_golden_descriptors(found: Format, script: ModuleType, golden_dir: Path) -> None:
    figures = script.check(found, {}, 50, golden_dir, script.load_fill(golden_dir))
    measured = dict(zip(BARS, figures, strict=False))
    assert len(measured) == (6 if found.model in ("token-released", "solar-released", "delg-released") else 5)
    assert {name: figure for name, figure in measured.items() if not figure <= BARS[name]} == {}
