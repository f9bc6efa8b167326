"""The fields of JSON payloads: what is there, counted by the tasks, and what a schema says should be there.

Paths are written as in ``helio types diff``: ``$`` is the payload, ``$.limits.cpu`` a field, ``$.tags[]`` the members
of a list. An object with very many names is one whose names are data: ``$.readings.*``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from heliograph.schemas.canonical import Schema, resolve

NAMES_MAX: Final = 100
"""More names than this in one object, and they are no fields."""
VALUES_MAX: Final = 200
"""So many values of a field are counted by a task for a stretch of messages; the rarest are left out."""
VALUE_CHARS: Final = 60
UNREADABLE: Final = "unreadable"
"""The kind of a payload that Python has nothing for."""
COUNTS: Final = "channel STRING, type STRING, path STRING, kind STRING, value STRING, count BIGINT"
"""A row: so many values of a kind at a path; with ``value``: so many of them are this one."""
_KINDS: Final = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}


class Counts:
    """What is there, in the messages of one channel and type."""

    def __init__(self) -> None:
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.values: dict[str, Counter[str]] = {}
        self._names: dict[str, set[str]] = {}

    def add(self, value: Any, path: str = "$") -> None:
        """Count a value and whatever is in it."""
        if isinstance(value, dict):
            self.kinds[path, "object"] += 1
            names = self._names.setdefault(path, set())
            for name, inner in value.items():
                if len(names) < NAMES_MAX:
                    names.add(name)
                self.add(inner, f"{path}.{name}" if name in names else f"{path}.*")
            return
        kind = _KINDS[type(value)]
        self.kinds[path, kind] += 1
        if isinstance(value, list):
            for inner in value:
                self.add(inner, f"{path}[]")
        elif value is not None:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            self.values.setdefault(path, Counter())[text[:VALUE_CHARS]] += 1

    def rows(self) -> Iterator[tuple[str, str, str | None, int]]:
        """Path, kind, value, count."""
        for (path, kind), count in self.kinds.items():
            yield path, kind, None, count
        for path, values in self.values.items():
            for value, count in values.most_common(VALUES_MAX):
                yield path, "", value, count


def count_fields(batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: record batches with channel, type and data become rows of counts."""
    import pyarrow as pa

    decode = msgspec.json.Decoder().decode
    names = [column.split(" ")[0] for column in COUNTS.split(", ")]
    for batch in batches:
        found: dict[tuple[str, str], Counts] = {}
        for channel, kind, text in zip(*(batch[name].to_pylist() for name in ("channel", "type", "data")), strict=True):
            counts = found.setdefault((channel, kind), Counts())
            try:
                counts.add(None if text is None else decode(text))
            except (msgspec.MsgspecError, RecursionError):  # 1e999 is good JSON, and so is a list a thousand deep
                counts.kinds["$", UNREADABLE] += 1
        rows = [(*key, *row) for key, counts in found.items() for row in counts.rows()]
        if rows:
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            columns[4] = columns[4].cast(pa.string())  # perhaps all are null
            yield pa.RecordBatch.from_arrays(columns, names)


# -- what a schema says -----------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """What a schema says of a path."""

    kinds: frozenset[str]
    """What may be there; empty: anything."""
    required: bool


def registered(schema: Schema) -> dict[str, Field]:
    """The fields of a schema by their paths; what holds itself is told once.

    >>> found = registered({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    >>> sorted(found["$.n"].kinds), found["$.n"].required
    (['integer'], True)
    """
    found: dict[str, Field] = {}
    _walk(schema, schema, "$", True, (), found)
    return found


def _walk(node: Any, root: Schema, path: str, required: bool, above: tuple[str, ...], found: dict[str, Field]) -> None:
    if not isinstance(node, dict):
        return
    reference = node.get("$ref", "")
    whole = resolve(node, root)
    before = found.get(path)
    kinds = _kinds(whole, root)
    if before is not None:
        kinds = kinds | before.kinds if kinds and before.kinds else frozenset()
    found[path] = Field(kinds, required and (before is None or before.required))
    if reference in above:
        return
    if reference:
        above = (*above, reference)
    needed = whole.get("required", ())
    for name, inner in whole.get("properties", {}).items():
        _walk(inner, root, f"{path}.{name}", name in needed, above, found)
    _walk(whole.get("items"), root, f"{path}[]", False, above, found)
    for inner in whole.get("prefixItems", ()):
        _walk(inner, root, f"{path}[]", False, above, found)
    _walk(whole.get("additionalProperties"), root, f"{path}.*", False, above, found)
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in whole.get(word, ()):
            if isinstance(inner, dict):
                _inside(inner, root, path, above, found)


def _inside(node: Schema, root: Schema, path: str, above: tuple[str, ...], found: dict[str, Field]) -> None:
    """The fields of a member of a union: none of them is in every payload."""
    inner: dict[str, Field] = {}
    _walk(node, root, path, False, above, inner)
    for place, field in inner.items():
        if place != path:
            before = found.get(place)
            kinds = field.kinds | before.kinds if before is not None and field.kinds and before.kinds else field.kinds
            found[place] = Field(kinds, False)


def _kinds(node: Schema, root: Schema) -> frozenset[str]:
    told = node.get("type")
    if told is not None:
        found = {told} if isinstance(told, str) else set(told)
    elif "const" in node or "enum" in node:
        found = {_KINDS.get(type(value), "object") for value in node.get("enum", [node.get("const")])}
    else:
        found = set()
        for word in ("anyOf", "oneOf"):
            for member in node.get(word, ()):
                kinds = _kinds(resolve(member, root), root) if isinstance(member, dict) else frozenset()
                if not kinds:
                    return frozenset()
                found |= kinds
    return frozenset(found | ({"integer"} if "number" in found else set()))
