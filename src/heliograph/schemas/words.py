"""A schema's node in a few words, for errors and differences."""

from __future__ import annotations

from typing import Any

from heliograph.schemas.canonical import Schema, is_annotation, resolve

_VALUES_SHOWN = 6


def called(node: Schema, root: Schema | None = None) -> str:
    """A node as a person would call it.

    >>> called({"type": "array", "items": {"type": "string", "format": "uuid"}})
    'array of string (uuid)'
    >>> called({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    'integer or null'
    >>> called({"enum": ["low", "high"]})
    '"low" or "high"'
    """
    node = _named(node, root)
    if "const" in node:
        return _value(node["const"])
    if "enum" in node:
        return _alternatives([_value(one) for one in node["enum"]])
    members = node.get("anyOf") or node.get("oneOf")
    if members:
        return _alternatives([called(_dict(one), root) for one in members])
    return label(node) + _inside(node, root) + _limits(node)


def label(node: Schema) -> str:
    """What it is, without what is inside."""
    kind = node.get("type", "")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind in ("object", "array") and node.get("title") and ("properties" in node or "prefixItems" in node):
        return f"{kind} {node['title']}"
    return kind or ("anything" if all(map(is_annotation, node)) else "something")


def _named(node: Schema, root: Schema | None) -> Schema:
    return resolve(node, root) if root is not None else node


def _dict(node: Any) -> Schema:
    return node if isinstance(node, dict) else {}


def _value(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _alternatives(found: list[str]) -> str:
    if not found:
        return "nothing"
    more = [f"{len(found) - _VALUES_SHOWN} others"] if len(found) > _VALUES_SHOWN else []
    return " or ".join(found[:_VALUES_SHOWN] + more)


def _inside(node: Schema, root: Schema | None) -> str:
    if node.get("type") == "array" and isinstance(node.get("items"), dict) and node["items"]:
        return f" of {_short(node['items'], root)}"
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        return f" of {_short(node['additionalProperties'], root)}"
    return ""


def _short(node: Schema, root: Schema | None) -> str:
    """An inner node, one level deep: what is further inside has a line of its own."""
    if "$ref" in node:
        return label(_named(node, root))
    return called(node, None)


def _limits(node: Schema) -> str:
    """Format and bounds, as in ``(≥ 1, < 10)``."""
    said: list[str] = [str(node[word]) for word in ("format", "contentEncoding") if word in node]
    for word, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        if word in node:
            said.append(f"{sign} {node[word]}")
    if "multipleOf" in node:
        said.append(f"multiple of {node['multipleOf']}")
    for what, (least, most) in {
        "characters": ("minLength", "maxLength"), "items": ("minItems", "maxItems"),
        "keys": ("minProperties", "maxProperties"),
    }.items():  # fmt: skip
        if least in node or most in node:
            said.append(f"{node.get(least, 0)} to {node.get(most, 'any number of')} {what}")
    if "pattern" in node:
        said.append(f"like {node['pattern']}")
    if node.get("uniqueItems"):
        said.append("each once")
    names = node.get("propertyNames")
    if isinstance(names, dict):
        said.append(f"keys: {called({'type': 'string', **names})}")
    return f" ({', '.join(said)})" if said else ""
