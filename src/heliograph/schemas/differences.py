"""What differs between two schemas, field by field, for people."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from heliograph.schemas.canonical import Schema, resolve
from heliograph.schemas.words import called


class Change(NamedTuple):
    """One line of a difference."""

    kind: Literal["added", "removed", "changed"]
    path: str
    before: str
    now: str


def differences(old: Schema, new: Schema) -> list[Change]:
    """What was added, removed and changed, in the order of the fields.

    >>> old = {"type": "object", "properties": {"level": {"type": "integer"}}, "required": ["level"]}
    >>> new = {"type": "object", "properties": {"level": {"type": "number"}, "by": {"type": "string"}}}
    >>> for change in differences(old, new):
    ...     print(change.kind, change.path, change.before, "->", change.now)
    changed $.level integer, required -> number, optional
    added $.by  -> string, optional
    """
    had, has = fields(old), fields(new)
    found: list[Change] = []
    for path in [*had, *(path for path in has if path not in had)]:
        before, now = had.get(path, ""), has.get(path, "")
        if before != now:
            kind: Literal["added", "removed", "changed"] = (
                "changed" if path in had and path in has else "removed" if path in had else "added"
            )
            found.append(Change(kind, path, before, now))
    return found


def fields(schema: Schema) -> dict[str, str]:
    """Every field of a schema by its path, in words. What holds itself is described once.

    >>> fields({"type": "object", "title": "A", "properties": {"n": {"type": "integer", "default": 1}}})
    {'$': 'object A', '$.n': 'integer, optional, default 1'}
    """
    found: dict[str, str] = {}
    _describe(schema, schema, "$", "", (), found)
    return found


def _describe(
    node: Any, root: Schema, path: str, suffix: str, above: tuple[str, ...], found: dict[str, str]
) -> None:  # fmt: skip
    if not isinstance(node, dict):
        return
    reference = node.get("$ref", "")
    if suffix or path == "$" or path not in found:
        found.setdefault(path, called(node, root) + suffix)
    if reference in above:
        return
    if reference:
        above = (*above, reference)
    whole = resolve(node, root)
    for name, inner in whole.get("properties", {}).items():
        _describe(inner, root, f"{path}.{name}", _presence(name, inner, whole), above, found)
    for at, inner in enumerate(whole.get("prefixItems", [])):
        _describe(inner, root, f"{path}[{at}]", "", above, found)
    _within(whole.get("items"), root, f"{path}[]", above, found)
    _within(whole.get("additionalProperties"), root, f"{path}.*", above, found)
    if whole.get("additionalProperties") is False:
        found[path] += ", no other fields"
    for word in ("anyOf", "oneOf"):
        for inner in whole.get(word, []):
            _within(inner, root, f"{path}<{_tag(inner, root)}>", above, found)


def _within(node: Any, root: Schema, path: str, above: tuple[str, ...], found: dict[str, str]) -> None:
    """What is inside arrays, dicts and unions gets lines of its own only if it has fields."""
    if isinstance(node, dict) and {"properties", "prefixItems", "anyOf", "items", "additionalProperties"} & set(
        resolve(node, root)
    ):
        _describe(node, root, path, "", above, found)


def _tag(node: Any, root: Schema) -> str:
    """What a member of a union is called."""
    whole = resolve(node, root) if isinstance(node, dict) else {}
    return str(whole.get("title") or whole.get("type") or "member")


def _presence(name: str, inner: Any, parent: Schema) -> str:
    import msgspec

    if name in parent.get("required", []):
        return ", required"
    if isinstance(inner, dict) and "default" in inner:
        return f", optional, default {msgspec.json.encode(inner['default']).decode()}"
    return ", optional"
