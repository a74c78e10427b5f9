"""What is imported is declared, what is declared is pinned, and what CONTRIBUTING names is there."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tessera

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {extra: [Requirement(line) for line in lines] for extra, lines in PROJECT["optional-dependencies"].items()}
# Optional packages that need not be installed here, so that nothing can be asked which distribution brings them.
ELSEWHERE = {
    "openvino": {"openvino"},
    "pillow_heif": {"pillow-heif"},
    "scann": {"scann"},
    "svs": {"scalable-vs"},
    "timm": {"timm"},
    "turbovec": {"turbovec"},
}
FOR_DEVELOPERS = {"dev", "docs"}


def third_party_imports(source: str) -> Iterator[str]:
    """The top-level names that a module imports, anywhere in it, by a statement or by `import_module("name")`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case ast.Call(func=ast.Attribute(attr="import_module" | "find_spec"), args=[ast.Constant(str(module)), *_]):
                modules = [module]
            case _:
                continue
        tops = {module.partition(".")[0] for module in modules}
        yield from tops - sys.stdlib_module_names - {"tessera"}


def test_every_import_is_declared() -> None:
    runtime = [*CORE, *(one for extra, lines in EXTRAS.items() if extra not in FOR_DEVELOPERS for one in lines)]
    declared = {canonicalize_name(one.name) for one in runtime}
    installed = packages_distributions()
    undeclared = {
        (name, str(path.relative_to(ROOT)))
        for path in (ROOT / "src" / "tessera").rglob("*.py")
        for name in third_party_imports(path.read_text())
        if declared.isdisjoint(map(canonicalize_name, installed.get(name) or ELSEWHERE.get(name, ())))
    }
    assert undeclared == set()


def test_an_import_in_a_function_and_one_by_name_would_be_found() -> None:
    source = "def f():\n    import scipy.sparse\n    from sklearn import svm\n    importlib.import_module('scann')\n"
    assert set(third_party_imports(source)) == {"scipy", "sklearn", "scann"}


def test_what_is_declared_is_pinned_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    wrong = [
        str(one)
        for one in [*CORE, *(one for lines in EXTRAS.values() for one in lines)]
        if not one.specifier.contains(pins.get(canonicalize_name(one.name), "0"), prereleases=True)
    ]
    assert wrong == []


def test_the_version_stands_once_and_leads_the_changelog() -> None:
    assert "version" in PROJECT["dynamic"]
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    released = [version for version, _ in headings if version != "Unreleased"]
    assert all(date for version, date in headings if version != "Unreleased")
    if ".dev" in tessera.__version__:
        assert headings[0] == ("Unreleased", "")
        assert tessera.__version__.partition(".dev")[0] not in released
    else:
        assert released[0] == tessera.__version__


def test_every_extra_is_in_the_guide() -> None:
    table = (ROOT / "docs" / "index.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))) == set(EXTRAS)


def test_hooks_are_local() -> None:
    assert set(re.findall(r"repo: (\S+)", (ROOT / ".pre-commit-config.yaml").read_text())) == {"local"}


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
NAMED_PATH = re.compile(r"`((?:src|tests|scripts|docs|results|recipes)/[^`\s]*|[A-Za-z.-]+\.(?:md|toml|txt|yml|yaml))`")


def test_every_path_that_contributing_names_exists() -> None:
    named = NAMED_PATH.findall(CONTRIBUTING)
    assert len(named) > 20
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


def test_the_places_of_changes_hold_what_they_are_said_to() -> None:
    places = re.findall(r"`(\w+)` in `(\S+)`", CONTRIBUTING)
    assert len(places) >= 10
    defined = r"^(?:def |class )?{}\b(?::| =|\()"
    lacking = [
        (name, path)
        for name, path in places
        if not re.search(defined.format(name), (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert lacking == []


def test_every_room_is_on_the_map_with_a_file_to_start_at() -> None:
    rows = dict(re.findall(r"^\| `(\w+)/` \|.*\| (?:`(\w+\.py)`)? ?\|$", CONTRIBUTING, re.MULTILINE))
    package = ROOT / "src" / "tessera"
    rooms = {folder.name for folder in package.iterdir() if (folder / "__init__.py").is_file()}
    assert set(rows) == rooms
    assert [room for room, start in rows.items() if start and not (package / room / start).is_file()] == []
