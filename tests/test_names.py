"""One meaning a name: no two modules of the package are called the same, and no two classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tessera"
# A file of cli/ is named after its command, a schema of the HTTP API after what it describes.
MODULES = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" and path.parent.name != "cli"]
SCHEMAS = PACKAGE / "serve" / "api" / "schemas.py"


def repeated(named: list[tuple[str, Path]]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name, path in named:
        found[name].append(str(path.relative_to(PACKAGE)))
    return {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


def test_a_file_name_has_one_meaning():
    assert repeated([(path.name, path) for path in MODULES]) == {}


def test_a_class_name_has_one_meaning():
    classes = [
        (node.name, path)
        for path in MODULES
        if path != SCHEMAS
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert len(classes) > 100
    assert repeated(classes) == {}
