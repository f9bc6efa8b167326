"""One form for all schemas that mean the same, so that a hash tells whether two do.

Dropped is what says nothing about which data is valid: titles, descriptions, examples, defaults. Sorted is what has
no order: keys, ``required``, ``enum``, the members of a union. Definitions are numbered in the order in which they
are met, so that a renamed class is still the same. Two schemas that mean the same may differ all the same after this
(there are many ways to say a thing); that costs a version that says nothing new, and no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

Schema: TypeAlias = dict[str, Any]

#: Says nothing about which data is valid.
ANNOTATIONS: Final = frozenset([
    "$comment", "$id", "$schema", "default", "deprecated", "description", "discriminator", "examples", "readOnly",
    "title", "writeOnly",
])  # fmt: skip
MAPS: Final = frozenset(["properties", "patternProperties", "dependentSchemas"])
LISTS: Final = frozenset(["anyOf", "oneOf", "allOf", "prefixItems"])
INNER: Final = frozenset([
    "items", "additionalProperties", "propertyNames", "not", "contains", "if", "then", "else", "unevaluatedItems",
    "unevaluatedProperties",
])  # fmt: skip
_UNORDERED: Final = frozenset(["anyOf", "oneOf", "allOf", "enum", "required", "type"])
_DEFINITIONS: Final = ("$defs", "definitions")

_encode = msgspec.json.Encoder(order="sorted").encode


def is_annotation(keyword: str) -> bool:
    """Whether a keyword says nothing about which data is valid."""
    return keyword in ANNOTATIONS or keyword.startswith("x-")


def resolve(node: Schema, root: Schema) -> Schema:
    """A node without references at its top; what stands beside one is kept."""
    seen: set[str] = set()
    while "$ref" in node:
        name = node["$ref"]
        target = definition(root, name)
        if target is None or name in seen:
            return node
        seen.add(name)
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    return node


def definition(root: Schema, reference: str) -> Schema | None:
    """What a reference such as ``#/$defs/Alert`` leads to; None if it leads nowhere."""
    if reference == "#":
        return root
    for part in _DEFINITIONS:
        if reference.startswith(f"#/{part}/"):
            found: Schema | None = root.get(part, {}).get(reference.removeprefix(f"#/{part}/"))
            return found
    return None


def digest(schema: Schema) -> str:
    """The same for schemas that mean the same.

    >>> digest({"type": "integer", "title": "A"}) == digest({"title": "B", "type": "integer"})
    True
    >>> digest({"type": "integer"}) == digest({"type": "number"})
    False
    """
    import hashlib

    return hashlib.sha256(canonical(schema)).hexdigest()


def canonical(schema: Schema) -> bytes:
    """The schema in its one form, as JSON.

    >>> canonical({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "title": "A", "properties": {}}}})
    b'{"defs":[],"root":{"properties":{},"type":"object"}}'
    """
    numbers: dict[str, int] = {}
    waiting: list[str] = []

    def refer(reference: str) -> str:
        if definition(schema, reference) is None:
            return reference
        if reference not in numbers:
            numbers[reference] = len(numbers)
            waiting.append(reference)
        return f"#{numbers[reference]}"

    top = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    if "$ref" in top and not _refers_to(schema, top["$ref"]):
        top = resolve(top, schema)
    root = _normal(top, refer)
    definitions: list[Any] = []
    while len(definitions) < len(waiting):
        definitions.append(_normal(definition(schema, waiting[len(definitions)]), refer))
    return _encode({"root": root, "defs": definitions})


def _refers_to(schema: Schema, reference: str) -> bool:
    """Whether anything but the top refers to it."""
    text = _encode({"$ref": reference})[1:-1]
    found: int = _encode(schema).count(text)
    return found > 1


def _normal(node: Any, refer: Callable[[str], str]) -> Any:
    if not isinstance(node, dict):
        return node
    normal: Schema = {}
    for key in sorted(node):
        value = node[key]
        if is_annotation(key) or key in _DEFINITIONS:
            continue
        if key == "$ref":
            normal[key] = refer(value)
        elif key in MAPS:
            normal[key] = {name: _normal(value[name], refer) for name in sorted(value)}
        elif key in _UNORDERED and isinstance(value, list):
            ordered = sorted(value, key=_encode)  # by what they say before the references are numbered
            normal[key] = [_normal(one, refer) for one in ordered] if key in LISTS else ordered
        elif key in LISTS:
            normal[key] = [_normal(one, refer) for one in value]
        elif key in INNER:
            normal[key] = _normal(value, refer)
        else:
            normal[key] = value
    return normal
