"""What the rules call compatible, msgspec can read; what they call a conflict, it cannot (or nobody can tell)."""

from __future__ import annotations

import enum
import itertools
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from msgspec import Meta

from heliograph.schemas import compatible as module
from heliograph.schemas import conflicts, digest, schema_of

AWARE = Annotated[datetime, Meta(tz=True)]


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Levels(enum.Enum):
    LOW = "low"
    HIGH = "high"
    UTMOST = "utmost"


NUMBERS = itertools.count()  # msgspec describes two classes of one name only if they are one
ALIVE: list[type] = []  # msgspec 0.22 takes a reference to None with it when a class made at run time is freed


def struct(*fields: Any, **config: Any) -> type:
    ALIVE.append(msgspec.defstruct(f"Alert{next(NUMBERS)}", fields, **config))
    return ALIVE[-1]


class Pair(NamedTuple):
    a: int
    b: str


class Triple(NamedTuple):
    a: int
    b: str
    c: int = 0


class Here(TypedDict, total=False):
    a: int


class Tree(msgspec.Struct):
    value: int
    below: list[Tree] = []


class WideTree(msgspec.Struct):
    value: float
    below: list[WideTree | None] = []


COMPATIBLE = {
    "the same": (int, int),
    "a field with a default was added": (struct(("a", int)), struct(("a", int), ("b", str, ""))),
    "a field was removed": (struct(("a", int), ("b", str)), struct(("a", int))),
    "a required field became optional": (struct(("a", int)), struct(("a", int, 0))),
    "integer to number": (struct(("a", int)), struct(("a", float))),
    "None was added": (int, int | None),
    "a member was added to a union": (int | str, int | str | list[int]),
    "values were added to an enum": (Level, Levels),
    "a literal to its type": (Literal["a", "b"], str),
    "an enum to text": (Level, str),
    "a looser bound": (Annotated[int, Meta(ge=3, lt=9)], Annotated[int, Meta(gt=1, le=9)]),
    "a bound was lifted": (Annotated[str, Meta(max_length=3, pattern="^a")], str),
    "a multiple": (Annotated[int, Meta(multiple_of=6)], Annotated[int, Meta(multiple_of=3)]),
    "a time to text": (datetime, str),
    "a time zone is no longer asked for": (AWARE, datetime),
    "bytes to text": (bytes, str),
    "items got wider": (list[int], list[float | None]),
    "a set to a list": (set[int], list[int]),
    "a tuple to a list": (tuple[int, int], list[int]),
    "a tuple grew by an item with a default": (Pair, Triple),
    "values of a dict got wider": (dict[str, int], dict[str, int | None]),
    "an object to a dict": (struct(("a", int), ("b", int, 1)), dict[str, int]),
    "a dict to an object of optional fields": (dict[str, int], struct(("a", int, 0))),
    "keys may be anything": (dict[int, str], dict[str, str]),
    "a class for a TypedDict": (struct(("a", int)), Here),
    "anything": (struct(("a", int)), Any),
    "a tree of wider values": (Tree, WideTree),
    "a member was added to a tagged union": (
        struct(("a", int), tag="one"),
        struct(("a", int), tag="one") | struct(("b", int), tag="two"),
    ),
}  # fmt: skip

CONFLICTS = {
    "a required field was added": (struct(("a", int)), struct(("a", int), ("b", str)), {"a": 1}, "$.b"),
    "an optional field became required": (struct(("a", int, 0)), struct(("a", int)), {}, "$.a"),
    "a field was removed where unknown ones are forbidden": (
        struct(("a", int), ("b", str)), struct(("a", int), forbid_unknown_fields=True), {"a": 1, "b": ""}, "$.b",
    ),
    "a field's type changed": (struct(("a", int)), struct(("a", str)), {"a": 1}, "$.a"),
    "deep inside": (list[dict[str, tuple[int, str]]], list[dict[str, tuple[int, int]]], [{"x": (1, "")}], "$[].*[1]"),
    "number to integer": (float, int, 1.5, "$"),
    "None was removed": (struct(("a", int | None)), struct(("a", int)), {"a": None}, "$.a"),
    "a value was removed from an enum": (Levels, Level, "utmost", "$"),
    "text to an enum": (str, Level, "x", "$"),
    "a tighter bound": (Annotated[int, Meta(ge=1)], Annotated[int, Meta(gt=1)], 1, "$"),
    "a new bound": (str, Annotated[str, Meta(min_length=1)], "", "$"),
    "a new pattern": (str, Annotated[str, Meta(pattern="^a$")], "b", "$"),
    "not a multiple": (Annotated[int, Meta(multiple_of=3)], Annotated[int, Meta(multiple_of=6)], 3, "$"),
    "text to a time": (str, datetime, "noon", "$"),
    "text to a time of day": (str, time, "noon", "$"),
    "a time of either kind to one with a time zone": (datetime, AWARE, datetime(2026, 1, 1), "$"),
    "text to a UUID": (dict[str, str], dict[str, UUID], {"a": ""}, "$.*"),
    "text keys to numbers": (dict[str, int], dict[int, int], {"a": 1}, "$ (keys)"),
    "a tuple grew": (tuple[int], tuple[int, int], (1,), "$"),
    "a tuple shrank": (tuple[int, int], tuple[int], (1, 2), "$"),
    "a list to a tuple": (list[int], tuple[int, int], [1], "$"),
    "a dict to a class": (dict[str, int], struct(("a", int)), {}, "$.a"),
    "a dict to a class of other fields": (dict[str, int], struct(("a", str, "")), {"a": 1}, "$.a"),
    "anything to something": (Any, int, "", "$"),
    "a tree of narrower values": (WideTree, Tree, {"value": 0.5}, "$.value"),
    "a member was removed from a tagged union": (
        struct(("a", int), tag="one") | struct(("b", int), tag="two"), struct(("a", int), tag="one"),
        {"type": "two", "b": 1}, "$.a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("pair", COMPATIBLE.values(), ids=COMPATIBLE.keys())
def test_compatible(pair: tuple[Any, Any]) -> None:
    old, new = map(schema_of, pair)
    assert conflicts(old, new) == []


@pytest.mark.parametrize("story", CONFLICTS.values(), ids=CONFLICTS.keys())
def test_conflict_says_where_and_there_is_a_message_that_cannot_be_read(story: tuple[Any, Any, Any, str]) -> None:
    old, new, value, path = story
    encoded = msgspec.json.encode(value)
    msgspec.json.decode(encoded, type=old)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(encoded, type=new)
    found = conflicts(schema_of(old), schema_of(new))
    assert path in [conflict.path for conflict in found]
    assert all(conflict.before and conflict.now for conflict in found)


def test_a_conflict_names_the_field_and_both_types() -> None:
    old, new = struct(("level", int)), struct(("level", str))
    assert [str(one) for one in conflicts(schema_of(old), schema_of(new))] == ["$.level was integer, is string"]


def test_a_list_made_a_set_is_a_conflict_though_msgspec_reads_it() -> None:
    assert conflicts(schema_of(list[int]), schema_of(set[int]))


@pytest.mark.parametrize("keyword", ["not", "allOf", "patternProperties", "if"])
def test_a_keyword_nobody_understands_has_to_stay_as_it_was(keyword: str) -> None:
    plain, odd = {"type": "string"}, {"type": "string", keyword: {"type": "integer"}}
    assert conflicts(plain, odd)
    assert conflicts(odd, {**odd, "minLength": 0}) == []
    assert conflicts(odd, {**odd, keyword: {"type": "number"}})


def test_schemas_that_other_tools_write() -> None:
    nothing = {"type": "object", "additionalProperties": False}
    assert conflicts(nothing, {"type": "object", "maxProperties": 0}) == []
    assert conflicts({"type": "object", "maxProperties": 1}, nothing)
    assert conflicts({"type": ["integer", "null"]}, {"type": ["null", "number"]}) == []
    assert conflicts({"type": ["integer"]}, {"type": "null"})
    assert conflicts({"const": 3}, {"type": "integer", "multipleOf": 3, "minimum": 3}) == []
    assert conflicts({"const": 3}, {"type": "integer", "multipleOf": 2})
    assert conflicts({"const": True}, {"type": "integer"})
    assert conflicts({"enum": [1]}, {"enum": [True]})
    assert conflicts({"minimum": 3}, {"minimum": 3, "maximum": 4}), "of which type?"
    assert conflicts({"$ref": "#/$defs/Lost"}, {"type": "integer"})


def test_a_type_that_is_too_entangled_is_a_conflict_and_no_endless_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_MAX", 200)
    definitions: dict[str, Any] = {"20": {"type": "integer"}}
    for n in range(20):
        follow = {"$ref": f"#/$defs/{n + 1}"}
        definitions[str(n)] = {"type": "object", "properties": {"a": follow, "b": follow}}
    schema = {"$ref": "#/$defs/0", "$defs": definitions}
    other = {"$ref": "#/$defs/0", "$defs": {**definitions, "20": {"type": "number"}}}
    assert "entangled" in str(conflicts(schema, other))


def test_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    old = pydantic.create_model("A", a=(int, ...), when=(datetime, ...), kind=(Literal["x"], "x"))
    new = pydantic.create_model(
        "B", a=(float, ...), when=(str, ...), kind=(Literal["x", "y"], "x"), b=(str | None, None)
    )
    before, now = old.model_json_schema(), new.model_json_schema()
    assert conflicts(before, now) == []
    assert {one.path for one in conflicts(now, before)} == {"$.a", "$.when", "$.kind"}


def test_the_same_type_of_msgspec_and_pydantic_read_each_other() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("A", a=(int, ...), b=(str, ""))
    ours = struct(("a", int), ("b", str, ""))
    assert digest(model.model_json_schema()) == digest(schema_of(ours))


# -- any types ------------------------------------------------------------------------------------------------

Node = tuple[Any, ...]
NAMES = ("a", "b", "c")
LEAVES = ("int", "float", "str", "bool", "none", "any", "datetime", "aware", "date", "uuid", "bytes", "duration")


def leaf() -> st.SearchStrategy[Node]:
    bound = st.tuples(st.just("between"), st.integers(-3, 0), st.integers(0, 3))
    length = st.tuples(st.just("text"), st.integers(0, 2), st.integers(2, 4))
    values = st.lists(st.sampled_from(["x", "y", "z", 1, 2]), min_size=1, max_size=3, unique=True)
    literal = values.map(lambda found: ("literal", *sorted(found, key=str)))
    return st.sampled_from(LEAVES).map(lambda name: (name,)) | bound | length | literal


def compound(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    field = st.tuples(st.sampled_from(NAMES), inner, st.booleans())
    fields = st.lists(field, max_size=3, unique_by=lambda one: one[0]).map(
        lambda found: tuple(sorted(found, key=lambda one: (one[2], one[0])))
    )
    return (
        st.tuples(st.just("list"), inner)
        | st.tuples(st.just("dict"), st.sampled_from(["str", "int"]), inner)
        | st.lists(inner, max_size=3).map(lambda found: ("tuple", *found))
        | st.lists(inner, min_size=2, max_size=3).map(lambda found: ("union", *found))
        | st.tuples(st.just("struct"), fields, st.booleans(), st.booleans())
    )


types = st.recursive(leaf(), compound, max_leaves=6)


@st.composite
def changed(draw: st.DrawFn, node: Node) -> Node:
    """The type with some of it changed, often so that it stays compatible."""
    kind = node[0]
    what = draw(st.integers(0, 9))
    if what == 0:
        return draw(types)
    if what == 1:
        return ("union", node, draw(leaf()))
    if kind in ("list", "tuple", "union"):
        return (kind, *(draw(changed(one)) for one in node[1:]))
    if kind == "dict":
        return (kind, node[1], draw(changed(node[2])))
    if kind == "struct":
        fields = [(name, draw(changed(one)), optional or what == 4) for name, one, optional in node[1]]
        if what == 5 and fields:
            fields.pop(draw(st.integers(0, len(fields) - 1)))
        if what in (6, 7):
            fields += [("d", draw(leaf()), what == 6)]
        return ("struct", tuple(sorted(fields, key=lambda one: (one[2], one[0]))), node[2], node[3])
    if kind == "between" and what > 5:
        return ("between", node[1] - draw(st.integers(-1, 1)), node[2] + draw(st.integers(-1, 1)))
    return WIDER.get(kind, node) if what < 5 else node


WIDER = {
    "int": ("float",), "between": ("int",), "aware": ("datetime",),
    **dict.fromkeys(("literal", "text", "datetime", "uuid", "bytes"), ("str",)),
}  # fmt: skip


PLAIN: dict[str, Any] = {
    "int": int, "float": float, "str": str, "bool": bool, "none": None, "any": Any, "datetime": datetime,
    "aware": AWARE, "date": date, "uuid": UUID, "bytes": bytes, "duration": timedelta,
}  # fmt: skip


def families(node: Node) -> set[str]:
    """What msgspec sees in a member of a union: it takes one of each.

    It refuses two kinds of text, mixes up the bounds of two kinds of numbers, loses a reference to None when it
    refuses, and crashes on a tuple beside a bounded number (all of it in 0.22): so it is not asked.
    """
    if node[0] == "tuple" or (node[0] == "struct" and is_array(node)):
        return {"tuple", "int", "str", "object"}
    if node[0] == "literal":
        return {"str" if isinstance(value, str) else "int" for value in node[1:]}
    if node[0] == "struct":
        return {"object"}
    if node[0] in ("text", "datetime", "aware", "date", "uuid", "bytes", "duration"):
        return {"str"}
    return {{"between": "int", "list": "tuple", "dict": "object"}.get(node[0], node[0])}


def is_array(node: Node) -> bool:
    return bool(node[3]) and not any(optional for *_, optional in node[1])


def flat(node: Node) -> list[Node]:
    """The members of a union, of those inside it, too."""
    return [inner for one in node[1:] for inner in (flat(one) if one[0] == "union" else [one])]


def built(node: Node) -> Any:
    kind, *rest = node
    match kind:
        case "between":
            return Annotated[int, Meta(ge=rest[0], le=rest[1])]
        case "text":
            return Annotated[str, Meta(min_length=rest[0], max_length=rest[1])]
        case "literal":
            return Literal[tuple(rest)]
        case "list":
            return list[built(rest[0])]  # type: ignore[misc]
        case "dict":
            return dict[{"str": str, "int": int}[rest[0]], built(rest[1])]  # type: ignore[misc]
        case "tuple":
            return tuple[tuple(map(built, rest))]  # type: ignore[misc]
        case "union":
            members = [family for member in flat(node) for family in families(member)]
            if len(set(members)) < len(members):
                raise TypeError("no such union")
            found = built(rest[0])
            for one in rest[1:]:
                found = found | built(one) if found is not None or built(one) is not None else None
            return found
        case "struct":
            made = [
                (name, built(one) | msgspec.UnsetType, msgspec.UNSET) if optional else (name, built(one))
                for name, one, optional in rest[0]
            ]
            return struct(*made, forbid_unknown_fields=rest[1], array_like=is_array(node))
    return PLAIN[kind]


WRITTEN: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(), "float": st.floats(allow_nan=False, allow_infinity=False), "str": st.text(max_size=5),
    "bool": st.booleans(), "none": st.none(),
    "any": st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    "datetime": st.datetimes() | st.datetimes(timezones=st.just(UTC)), "aware": st.datetimes(timezones=st.just(UTC)),
    "date": st.dates(), "uuid": st.uuids(), "bytes": st.binary(max_size=5),
    "duration": st.timedeltas(timedelta(0), timedelta(9999)),
}  # fmt: skip


def values(node: Node) -> st.SearchStrategy[Any]:
    """What is written as a type, before it is JSON."""
    kind, *rest = node
    match kind:
        case "between":
            return st.integers(rest[0], rest[1])
        case "text":
            return st.text(min_size=rest[0], max_size=rest[1])
        case "literal":
            return st.sampled_from(rest)
        case "list":
            return st.lists(values(rest[0]), max_size=2)
        case "dict":
            return st.dictionaries(values((rest[0],)), values(rest[1]), max_size=2)
        case "tuple":
            return st.tuples(*map(values, rest))
        case "union":
            return st.one_of(*map(values, rest))
        case "struct":
            required = {name: values(one) for name, one, optional in rest[0] if not optional}
            maybe = {name: values(one) for name, one, optional in rest[0] if optional}
            return st.tuples(*required.values()) if is_array(node) else st.fixed_dictionaries(required, optional=maybe)
    return WRITTEN[kind]


@given(st.data())
def test_what_is_compatible_can_be_read(data: st.DataObject) -> None:
    before = data.draw(types, "old")
    after = data.draw(changed(before), "new")
    try:
        old, new = built(before), built(after)
    except (TypeError, ValueError):
        assume(False)
    writer, reader = msgspec.json.Decoder(old), msgspec.json.Decoder(new)
    found = conflicts(schema_of(old), schema_of(new))
    event("compatible" if not found else "conflict")
    for _ in range(5):
        encoded = msgspec.json.encode(data.draw(values(before)))
        writer.decode(encoded)
        if not found:
            reader.decode(encoded)


@given(types)
def test_every_type_can_read_itself_and_has_one_hash(node: Node) -> None:
    try:
        cls = built(node)
    except (TypeError, ValueError):
        assume(False)
    schema = schema_of(cls)
    assert conflicts(schema, schema) == []
    assert digest(schema) == digest(msgspec.json.decode(msgspec.json.encode(schema)))
