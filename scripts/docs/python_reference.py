"""What `tessera` exports, from its docstrings and signatures."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from markup import code, page, prose, split_fields, table

import tessera

INTRODUCTION = """
What `import tessera` gives. Everything else may change between versions. Errors are all a `TesseraError`, with a
message that says what was wrong, what was found and what to do.
"""


def make_page() -> str:
    names = [name for name in tessera.__all__ if not name.startswith("_")]
    return page("Python API", INTRODUCTION, (_class(name, getattr(tessera, name)) for name in names))


_LINE = 100


class _Annotation:
    """Shown as it was written; `inspect` would put quotes around it."""

    def __init__(self, written: Any) -> None:
        self._written = written if isinstance(written, str) else inspect.formatannotation(written)

    def __repr__(self) -> str:
        return self._written


def _without_address(parameter: inspect.Parameter) -> inspect.Parameter:
    """A function as a default is shown as dots: its own text has its address in it, which no two runs share."""
    return parameter.replace(default=_Annotation("...")) if inspect.isfunction(parameter.default) else parameter


def signature(function: Any) -> str:
    """A callable's parameters and what it returns, without `self`, annotations as they were written."""
    found = inspect.signature(function)
    named = [_without_address(parameter) for parameter in found.parameters.values()]
    found = found.replace(parameters=named)
    parameters = [
        one if one.annotation is one.empty else one.replace(annotation=_Annotation(one.annotation))
        for one in found.parameters.values()
        if one.name not in ("self", "cls")
    ]
    returned = found.return_annotation
    shown = str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    if len(shown) > _LINE:
        shown = "\n".join(["(", *(f"    {one}," for one in _with_star(parameters)), ")"])
    return shown if returned in (inspect.Signature.empty, "None", None) else f"{shown} -> {_Annotation(returned)}"


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter | str]:
    """The parameters, with the bare star before the first that only has a name."""
    starred = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        yield one


def _class(name: str, kind: type) -> str:
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    general, said = split_fields(prose(kind), [one.name for one in fields])
    parts = [f"## {name}", general]
    if fields:
        rows = [[code(one.name), code(one.type), _default(one), said.get(one.name, "")] for one in fields]
        parts.append(table(("field", "type", "default", "what it is"), rows))
    elif not issubclass(kind, Exception):
        parts.append(f"```python\n{name}{signature(kind)}\n```")
    bases = [
        base for base in kind.__mro__ if base.__module__.startswith("tessera.") and not issubclass(base, Exception)
    ]
    members: dict[str, Any] = {}
    for base in bases or [kind]:  # its own come first
        members |= {member: value for member, value in vars(base).items() if member not in members}
    parts += [_member(f"{name}.{member}", value) for member, value in members.items() if not member.startswith("_")]
    return "\n\n".join(part for part in parts if part)


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        returned = inspect.signature(value.fget).return_annotation if value.fget else ""
        return f"### {name}\n\n`{_Annotation(returned)}`. {_paragraphs(value)}".rstrip()
    function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    if not inspect.isfunction(function):
        return ""
    return f"### {name}\n\n```python\n{name}{signature(function)}\n```\n\n{_paragraphs(function)}".rstrip()


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return code(repr(field.default))
    factory: Any = field.default_factory
    return "" if factory is dataclasses.MISSING else code(f"{factory.__name__}()")


def _paragraphs(documented: Any) -> str:
    """A docstring as Markdown. `name: what it is` begins a new line, as it does where it was written."""
    return re.sub(r"(?<=\.)\s+(?=[a-z_]+(?:, [a-z_]+)*: )", "\n\n", prose(documented))
