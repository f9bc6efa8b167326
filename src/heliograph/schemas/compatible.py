"""Whether a changed type can read what was written under the one before: backward compatibility.

It is what schema registries call BACKWARD: whoever reads with the *new* schema understands every message that was
written with the *old* one. Readers are brought up to date first, then publishers. A message holds the fields its
schema names and no others; a reader passes over fields it does not know, unless it forbids them.

=============================  =====================================  ========================================
                               compatible                             a conflict
=============================  =====================================  ========================================
a field added                  if it may be absent (has a default)    if it is required
a field removed                always                                 if the new type forbids unknown fields
a field that was optional      stays so                               becomes required
a field's type                 the same, or wider (below)             anything else
numbers                        integer to number                      number to integer, text to number …
bounds, lengths, multiples     the same, looser, gone                 tighter, new
pattern, format, encoding      the same, gone; with time zone or      changed, new
                               without to "any"
enum, literal, constant        more values; any type that holds all   fewer values
                               of them
union                          more members; None added               fewer members; None removed
array, set, tuple              items wider; an item added that may    items narrower; a list made a set;
                               be absent                              an item added that must be there
dict                           values wider; to or from an object     values narrower; keys restricted
                               whose fields all fit
anything (``Any``)             any type to anything                   anything to any type
recursive types                compared as far as they differ
another keyword (``not`` …)    the same                               changed, new, gone: nobody can tell
=============================  =====================================  ========================================
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from heliograph.schemas.canonical import Schema, is_annotation, resolve
from heliograph.schemas.words import called, label

STEPS_MAX: Final = 100_000
"""How many pairs are compared before a type counts as too entangled to tell."""

_ANY: Final[Schema] = {}
_encode = msgspec.json.Encoder(order="deterministic").encode
_KNOWN: Final = frozenset([
    "$ref", "$defs", "definitions", "type", "properties", "required", "additionalProperties", "propertyNames",
    "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "enum", "const",
    "anyOf", "oneOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "contentEncoding", "contentMediaType",
])  # fmt: skip
_WIDER_FORMATS: Final = frozenset([
    ("date-time", "any-date-time"), ("partial-date-time", "any-date-time"), ("time", "any-time"),
    ("partial-time", "any-time"),
])  # fmt: skip
_COUNTS: Final = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


class Conflict(NamedTuple):
    """One reason why the new type cannot read what the old one wrote."""

    path: str
    """Where: ``$.level``."""
    before: str
    """What was there: ``integer``."""
    now: str
    """What is there now: ``string``."""

    def __str__(self) -> str:
        return f"{self.path} was {self.before}, is {self.now}"


def conflicts(old: Schema, new: Schema) -> list[Conflict]:
    """Every reason why a reader of ``new`` may fail on what was written as ``old``; none if it cannot.

    >>> alert = {"type": "object", "properties": {"level": {"type": "integer"}}, "required": ["level"]}
    >>> wider = {"type": "object", "properties": {"level": {"type": "number"}, "by": {"type": "string"}}}
    >>> conflicts(alert, wider)
    []
    >>> [str(one) for one in conflicts(wider, alert)]
    ['$.level was number, optional, is integer, required']
    """
    return _Comparison(old, new).reads(_top(old), _top(new), "$")


class _Comparison:
    """Two schemas side by side. ``reads`` answers for two of their nodes, the others for parts of these."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old = old
        self._new = new
        self._under_way: set[tuple[bytes, bytes]] = set()
        self._steps = 0

    def reads(self, old: Any, new: Any, path: str) -> list[Conflict]:
        """Why not every value of the old node can be read as the new one."""
        old, new = _node(old), _node(new)
        pair = (_encode(old), _encode(new))
        if pair in self._under_way:  # inside itself: it holds if everything else does
            return []
        if pair[0] == pair[1] and b'"$ref"' not in pair[0]:
            return []
        self._under_way.add(pair)
        try:
            return self._compare(resolve(old, self._old), resolve(new, self._new), path)
        finally:
            self._under_way.discard(pair)

    def _compare(self, old: Schema, new: Schema, path: str) -> list[Conflict]:
        self._steps += 1
        if self._steps > STEPS_MAX:
            return [Conflict(path, "too entangled to compare", "as well")]
        if _accepts_all(new) or _accepts_nothing(old):
            return []
        strange = _strange(old, new)
        if strange:
            return [Conflict(path, f"{label(old)} with '{strange}'", f"{label(new)}; nobody can tell whether it fits")]
        members = _members(old)
        if members != [old]:
            found = [self.reads({**_beside(old), **one}, new, path) for one in members]
            return [conflict for some in found for conflict in some]
        return self._single(old, new, path)

    def _single(self, old: Schema, new: Schema, path: str) -> list[Conflict]:
        """An old node that is no union."""
        choices = _members(new)
        if choices != [new]:
            return self._one_of(old, [{**_beside(new), **one} for one in choices], new, path)
        values = _values(old)
        if values is not None:
            wrong = [value for value in values if not self._takes(new, value)]
            return [Conflict(path, called({"enum": wrong}), called(new, self._new))] if wrong else []
        if _values(new) is not None or _accepts_all(old) or not _holds_type(old["type"], new.get("type")):
            return [self._conflict(old, new, path)]
        if not _bounds_hold(old, new):
            return [self._conflict(old, new, path)]
        if old["type"] == "object":
            return self._objects(old, new, path)
        return self._arrays(old, new, path) if old["type"] == "array" else []

    def _conflict(self, old: Schema, new: Schema, path: str) -> Conflict:
        return Conflict(path, called(old, self._old), called(new, self._new))

    def _one_of(self, old: Schema, choices: list[Schema], new: Schema, path: str) -> list[Conflict]:
        """Some member of the new union has to read all of it; if none does, the nearest one says why not."""
        nearest: list[Conflict] | None = None
        if old.get("type") in ("integer", "number"):  # who reads takes a whole number for the integer among them
            whole = {**old, "type": "integer"}
            for choice in choices:
                if resolve(choice, self._new).get("type") == "integer" and self.reads(whole, choice, path):
                    return [self._conflict(old, new, path)]
        for choice in choices:
            found = self.reads(old, choice, path)
            if not found:
                return []
            inside = all(conflict.path != path for conflict in found)
            if inside and (nearest is None or len(found) < len(nearest)):
                nearest = found
        return nearest or [self._conflict(old, new, path)]

    # -- objects ------------------------------------------------------------------------------------------------

    def _objects(self, old: Schema, new: Schema, path: str) -> list[Conflict]:
        had, has = old.get("properties", {}), new.get("properties", {})
        found: list[Conflict] = []
        for name in sorted({*had, *has}):
            found += self._field(name, old, new, f"{path}.{name}")
        rest = _rest(old)
        if rest is not False and not _accepts_nothing(_node(rest)):
            found += self._unnamed(old, new, _node(rest), path)
        return found

    def _field(self, name: str, old: Schema, new: Schema, path: str) -> list[Conflict]:
        before, now = old.get("properties", {}).get(name), new.get("properties", {}).get(name)
        needed = name in new.get("required", []) and name not in old.get("required", [])
        if before is None and _rest(old) is False:
            return [Conflict(path, "absent", f"{called(_node(now), self._new)}, required")] if needed else []
        if needed:
            was = f"{called(_node(before), self._old)}, optional" if before is not None else "one of any keys"
            return [Conflict(path, was, f"{called(_node(now), self._new)}, required")]
        if before is None:  # it may be among the unnamed ones
            return self.reads(_rest(old), now, path)
        if not self._name_fits(name, new):
            return [Conflict(path, called(_node(before), self._old), "no key that is allowed")]
        if now is None:
            now = new.get("additionalProperties", True)
            if now is False:
                return [Conflict(path, called(_node(before), self._old), "an unknown field, which is forbidden")]
        return self.reads(before, now, path)

    def _unnamed(self, old: Schema, new: Schema, rest: Schema, path: str) -> list[Conflict]:
        """Keys that the old schema does not name, as those of a dict."""
        if new.get("additionalProperties", True) is False:
            return [Conflict(path, "with any keys", "with no unknown fields")]
        found = self.reads(rest, new.get("additionalProperties", True), f"{path}.*")
        text = {"type": "string"}
        names = self.reads(
            {**text, **_node(old.get("propertyNames"))}, {**text, **_node(new.get("propertyNames"))}, f"{path} (keys)"
        )
        return found + names

    def _name_fits(self, name: str, new: Schema) -> bool:
        return self._takes({"type": "string", **_node(new.get("propertyNames"))}, name)

    # -- arrays -------------------------------------------------------------------------------------------------

    def _arrays(self, old: Schema, new: Schema, path: str) -> list[Conflict]:
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            return [self._conflict(old, new, path)]
        found: list[Conflict] = []
        length = max(len(old.get("prefixItems", [])), len(new.get("prefixItems", [])))
        for at in range(length):
            if at < _longest(old):
                found += self.reads(_item(old, at), _item(new, at), f"{path}[{at}]")
        if _longest(old) > length:
            found += self.reads(_item(old, length), _item(new, length), f"{path}[]")
        return found

    # -- single values ------------------------------------------------------------------------------------------

    def _takes(self, new: Any, value: Any) -> bool:
        """Whether the new node accepts this one value, for sure."""
        new = resolve(_node(new), self._new)
        if _accepts_all(new):
            return True
        if "anyOf" in new or "oneOf" in new:
            return any(self._takes({**_beside(new), **one}, value) for one in _members(new))
        allowed = _values(new)
        if allowed is not None:
            return any(_same(value, one) for one in allowed)
        if _strange({}, new) or not _holds_type(_type_of(value), new.get("type")):
            return False
        if isinstance(value, str):
            exact = {"type": "string", "minLength": len(value), "maxLength": len(value)}
            return _bounds_hold(exact, new)
        if isinstance(value, int | float) and not isinstance(value, bool):
            exact = {"type": _type_of(value), "minimum": value, "maximum": value, "multipleOf": value}
            return _bounds_hold(exact, new)
        return value is None or isinstance(value, bool)


# -- what a node says -------------------------------------------------------------------------------------------


def _top(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}


def _node(node: Any) -> Schema:
    """A schema may be ``true`` or ``false``, or left out."""
    if node is False:
        return {"enum": []}
    return node if isinstance(node, dict) else _ANY


def _accepts_all(node: Schema) -> bool:
    return all(is_annotation(key) or key in ("$defs", "definitions") for key in node)


def _accepts_nothing(node: Schema) -> bool:
    return node.get("enum") == []


def _strange(old: Schema, new: Schema) -> str:
    """A keyword that is not understood here and that the two do not have in common."""
    for key in sorted({*old, *new}):
        if key in _KNOWN or is_annotation(key):
            continue
        if old.get(key) != new.get(key) or b'"$ref"' in _encode(old.get(key)):
            return key
    typed = [node for node in (old, new) if not _accepts_all(node)]
    if any(not {"type", "enum", "const", "anyOf", "oneOf"} & set(node) for node in typed):
        return "no type"
    return ""


def _members(node: Schema) -> list[Schema]:
    """The members of a union; a node that is none is its own."""
    for word in ("anyOf", "oneOf"):
        if word in node:
            return [_node(one) for one in node[word]]
    if isinstance(node.get("type"), list):
        return [{**node, "type": one} for one in node["type"]]
    return [node]


def _beside(node: Schema) -> Schema:
    """What stands beside a union's members, and holds for each."""
    return {key: value for key, value in node.items() if key not in ("anyOf", "oneOf") and not is_annotation(key)}


def _values(node: Schema) -> list[Any] | None:
    """The only values it has; None if it has others."""
    if "const" in node:
        return [node["const"]]
    found: list[Any] | None = node.get("enum")
    return found


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}
    return kinds.get(type(value), "object")


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _holds_type(old: Any, new: Any) -> bool:
    allowed = new if isinstance(new, list) else [new]
    return old in allowed or (old == "integer" and "number" in allowed)


def _bounds_hold(old: Schema, new: Schema) -> bool:
    """Whether lengths, limits, patterns and formats of the new node let everything of the old one pass."""
    least, most = _COUNTS.get(old["type"], ("", ""))
    if new.get(least, 0) > _fewest(old, least) or new.get(most, math.inf) < _largest(old, most):
        return False
    if _lower(new) > _lower(old) or _upper(new) < _upper(old):
        return False
    step = new.get("multipleOf")
    if step is not None and not _multiple(old.get("multipleOf"), step):
        return False
    for word in ("pattern", "format", "contentEncoding", "contentMediaType"):
        before, now = old.get(word), new.get(word)
        if now is not None and now != before and (before, now) not in _WIDER_FORMATS:
            return False
    return True


def _fewest(old: Schema, least: str) -> int:
    found: int = old.get(least, 0)
    return max(found, len(old.get("required", []))) if least == "minProperties" else found


def _largest(old: Schema, most: str) -> float:
    if most == "maxItems":
        return _longest(old)
    found: float = old.get(most, math.inf)
    if most == "maxProperties" and _rest(old) is False:
        return min(found, len(old.get("properties", {})))
    return found


def _lower(node: Schema) -> tuple[float, int]:
    """The smallest number, and 1 if it is excluded itself."""
    return max((node.get("minimum", -math.inf), 0), (node.get("exclusiveMinimum", -math.inf), 1))


def _upper(node: Schema) -> tuple[float, int]:
    return min((node.get("maximum", math.inf), 0), (node.get("exclusiveMaximum", math.inf), -1))


def _multiple(of: Any, step: Any) -> bool:
    if of == step:
        return True
    return isinstance(of, int) and isinstance(step, int) and step != 0 and of % step == 0


def _rest(node: Schema) -> Any:
    """What may stand under other keys than the named ones: as written, a class has no others."""
    return node.get("additionalProperties", "properties" not in node)


def _longest(node: Schema) -> float:
    """How many items it has at most: as written, a class has no others."""
    stated: float = node.get("maxItems", math.inf)
    if "prefixItems" in node and node.get("items", False) is False:
        return min(stated, len(node["prefixItems"]))
    return stated


def _item(node: Schema, at: int) -> Any:
    first: list[Any] = node.get("prefixItems", [])
    return first[at] if at < len(first) else node.get("items", True)
