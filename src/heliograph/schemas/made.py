"""The schema of a class, with what JSON Schema's own words do not tell.

msgspec describes a ``datetime`` without a fixed time zone as any text, and says nothing of the keys of a
``dict[int, …]``. Somebody who turns a text into a time would not be noticed. So the formats below are added where the
class has them::

    any-date-time       a datetime with or without time zone; partial-date-time: without
    any-time            a time with or without time zone
    integer, number …   in propertyNames: keys that are the text of one
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from heliograph.plain import is_pydantic
from heliograph.schemas.canonical import Schema, definition

_KEYS: Final = {
    "IntType": "integer", "FloatType": "number", "BoolType": "boolean", "UUIDType": "uuid", "DateType": "date",
    "DateTimeType": "any-date-time", "TimeType": "any-time", "TimeDeltaType": "duration", "DecimalType": "decimal",
}  # fmt: skip


def schema_of(cls: Any) -> Schema:
    """The JSON Schema of what msgspec knows: a Struct, dataclass, TypedDict, NamedTuple or plain type.

    >>> from datetime import datetime
    >>> schema_of(dict[int, datetime])["additionalProperties"]
    {'type': 'string', 'format': 'any-date-time'}
    """
    borrowed: Schema = {}

    def foreign(kind: type) -> Schema:
        """A pydantic model inside; its own definitions are held by the whole."""
        if not is_pydantic(kind):
            raise NotImplementedError
        inner: Schema = kind.model_json_schema()  # type: ignore[attr-defined]
        borrowed.update(inner.pop("$defs", {}))
        return inner

    schema = msgspec.json.schema(cls, schema_hook=foreign)
    if borrowed:
        schema["$defs"] = {**borrowed, **schema.get("$defs", {})}
    _Telling(schema).tell(msgspec.inspect.type_info(cls), schema)
    return schema


class _Telling:
    """Walks through a type and its schema side by side."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._done: set[str] = set()

    def tell(self, info: Any, node: Any) -> None:
        """Add to a node what its type knows better. ``info`` is of msgspec.inspect, known by its attributes."""
        info, node = _bare(info), self._once(node)
        if node is None:
            return
        if isinstance(info, msgspec.inspect.DateTimeType):
            node.setdefault("format", "partial-date-time" if info.tz is False else "any-date-time")
        elif isinstance(info, msgspec.inspect.TimeType):
            node.setdefault("format", "any-time")
        elif isinstance(info, msgspec.inspect.UnionType):
            self._union(info.types, node)
        elif hasattr(info, "fields"):
            self._fields(info, node)
        elif hasattr(info, "key_type"):
            self._keys(info.key_type, node)
            self.tell(info.value_type, node.get("additionalProperties"))
        elif hasattr(info, "item_type"):
            self.tell(info.item_type, node.get("items"))
        elif hasattr(info, "item_types"):
            for one, inner in zip(info.item_types, node.get("prefixItems", []), strict=False):
                self.tell(one, inner)

    def _once(self, node: Any) -> Schema | None:
        """The node, or what it refers to the first time."""
        reference = node.get("$ref") if isinstance(node, dict) else None
        if reference is None:
            return node if isinstance(node, dict) else None
        if reference in self._done:
            return None
        self._done.add(reference)
        return definition(self._root, reference)

    def _fields(self, info: Any, node: Schema) -> None:
        items = node.get("prefixItems")
        if items is not None:
            items = items[len(items) - len(info.fields) :]  # the tag comes first
        for at, field in enumerate(info.fields):
            self.tell(field.type, node["properties"][field.encode_name] if items is None else items[at])

    def _keys(self, info: Any, node: Schema) -> None:
        info = _bare(info)
        if isinstance(info, msgspec.inspect.EnumType):
            node["propertyNames"] = {"enum": sorted(str(one.value) for one in info.cls)}
        elif isinstance(info, msgspec.inspect.LiteralType):
            node["propertyNames"] = {"enum": sorted(map(str, info.values))}
        elif type(info).__name__ in _KEYS:
            node["propertyNames"] = {"format": _KEYS[type(info).__name__]}

    def _union(self, types: tuple[Any, ...], node: Schema) -> None:
        """msgspec allows one text, one array and one dict in a union; classes are known by their titles."""
        members = _members(node)
        for info in map(_bare, types):
            for member in members:
                if self._described(info) == self._kind(member):
                    self.tell(info, member)
                    break

    def _described(self, info: Any) -> str:
        if isinstance(info, msgspec.inspect.EnumType) or hasattr(info, "fields"):
            return f"class {getattr(info.cls, '__origin__', info.cls).__name__}"
        if hasattr(info, "key_type"):
            return "object"
        return "array" if hasattr(info, "item_type") or hasattr(info, "item_types") else "string"

    def _kind(self, member: Schema) -> str:
        if "$ref" in member:
            title: str = (definition(self._root, member["$ref"]) or {}).get("title", "")
            return f"class {title.partition('[')[0]}"
        return str(member.get("type"))


def _bare(info: Any) -> Any:
    """A type without what is said about it."""
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    return info


def _members(node: Schema) -> list[Schema]:
    """The members of a union, of those inside it, too."""
    found: list[Schema] = []
    for one in node.get("anyOf", [node]):
        found += _members(one) if "anyOf" in one else [one]
    return found
