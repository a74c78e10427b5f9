"""Every address of the HTTP API, from the OpenAPI schema that the service itself gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markup import code, page, table

from tessera.serve.app import create_app
from tessera.serve.settings import Settings

Schema = dict[str, Any]


def make_page() -> str:
    schema = create_app(Settings(gallery_path=Path("gallery.tessera"))).openapi()
    operations = [
        (path, method, operation) for path, item in schema["paths"].items() for method, operation in item.items()
    ]
    parts = []
    for tag in schema["tags"]:
        parts.append(f"## {tag['name'].capitalize()}\n\n{tag['description']}")
        parts += [_operation(*one, schema) for one in operations if tag["name"] in one[2]["tags"]]
    parts.append("## Answers\n\nThe fields of what is sent and answered. Those in italics may be missing.")
    parts += [_fields(name, one) for name, one in sorted(schema["components"]["schemas"].items())]
    introduction = (
        f"{schema['info']['description'].strip()}\n\nA running service gives the schema itself, with examples, at "
        "`/openapi.json`; clients can be generated from it."
    )
    return page("HTTP API", introduction, parts)


def _operation(path: str, method: str, operation: Schema, schema: Schema) -> str:
    parts = [f"### {method.upper()} {path}", f"**{operation['summary']}.**", operation.get("description", "")]
    rows = list(_inputs(operation, schema))
    if rows:
        parts.append(table(("input", "in", "type", "default", "what it is"), rows))
    answers = [
        [status, _content(response), response["description"]]
        for status, response in sorted(operation["responses"].items())
    ]
    parts.append(table(("status", "answer", "when"), [[s, a, "" if s < "300" else when] for s, a, when in answers]))
    return "\n\n".join(part for part in parts if part)


def _inputs(operation: Schema, schema: Schema) -> Iterator[list[str]]:
    for one in operation.get("parameters", ()):
        inner = one["schema"]
        default = "required" if one["required"] else _default(inner)
        description = one.get("description", inner.get("description", ""))
        yield [code(one["name"]), one["in"], _type(inner), default, description]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        form = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        for name, field in form["properties"].items():
            default = "required" if name in form.get("required", ()) else _default(field)
            yield [code(name), "body", _type(field), default, field.get("description", "")]


def _content(response: Schema) -> str:
    kinds = [
        _type(content["schema"]) if content.get("schema") else media
        for media, content in response.get("content", {}).items()
    ]
    return ", ".join(kinds)


def _fields(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        [code(field) if field in required else f"*{code(field)}*", _type(inner), inner.get("description", "")]
        for field, inner in schema.get("properties", {}).items()
    ]
    return "\n\n".join(
        part
        for part in (f"### {name}", schema.get("description", ""), table(("field", "type", "what it is"), rows))
        if part
    )


def _default(schema: Schema) -> str:
    return code(schema["default"]) if schema.get("default") not in (None, [], "") else ""


def _type(schema: Schema) -> str:
    """A schema in words: `integer from 1 to 200`, `list of Hit`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if schema.get("contentMediaType"):
        return "file"
    bounds = [
        f" {word} {_plain(schema[key])}"
        for word, key in (("from", "minimum"), ("above", "exclusiveMinimum"), ("to", "maximum"))
        if key in schema
    ]
    return str(schema.get("type", "anything")) + "".join(bounds)


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
