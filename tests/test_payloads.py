from __future__ import annotations

import dataclasses
import enum
import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import AlreadyExists, InvalidMessage, NotFound, PayloadMismatch
from heliograph.payloads import DEFAULT_TYPE, Payloads, encode


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Reading(msgspec.Struct):
    value: float
    unit: str = "%"


class Alert(msgspec.Struct):
    text: str
    level: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    readings: list[Reading] = []
    limit: float | None = None


class Identity(msgspec.Struct, eq=False):
    text: str


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str]


class Point(TypedDict):
    x: int
    y: int


class Rich(msgspec.Struct):
    when: datetime
    who: UUID
    price: Decimal
    level: Level
    blob: bytes
    tags: set[str]


class Invoice(pydantic.BaseModel):
    total: float = pydantic.Field(ge=0, alias="totalAmount")
    note: float | None = None


@pytest.fixture
def payloads() -> Payloads:
    known = Payloads()
    known.register("alert.v1", Alert)
    known.register("order.v1", Order)
    known.register("point.v1", Point)
    known.register("numbers.v1", list[int])
    known.register("rich.v1", Rich)
    known.register("invoice.v1", Invoice)
    known.register("identity.v1", Identity)
    return known


RICH = Rich(
    datetime(2026, 11, 15, 20, 30, 1, 123456, tzinfo=UTC),
    UUID(int=7),
    Decimal("1.10"),
    Level.HIGH,
    b"\0\xff",
    {"a"},
)


# -- what fits arrives as what it was -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "data"),
    [
        ("alert.v1", Alert("cpu", 3, [Reading(0.9)])),
        ("alert.v1", Alert("cpu", limit=None)),
        ("order.v1", Order(7, ["a", "b"])),
        ("point.v1", {"x": 1, "y": 2}),
        ("numbers.v1", [1, 2, 3]),
        ("rich.v1", RICH),
        ("invoice.v1", Invoice(totalAmount=3.5)),
    ],
)
def test_what_fits_its_type_arrives_as_the_same(payloads: Payloads, type_name: str, data: Any) -> None:
    name, encoded = payloads.check_and_encode(type_name, data)
    decode = payloads.decoder(name)
    assert decode is not None
    arrived = decode(encoded)
    assert arrived == data
    assert type(arrived) is type(data)


def test_an_instance_names_its_type_itself(payloads: Payloads) -> None:
    assert payloads.check_and_encode(None, Alert("cpu"))[0] == "alert.v1"
    assert payloads.check_and_encode(None, Order(1, []))[0] == "order.v1"
    assert payloads.check_and_encode(None, Invoice(totalAmount=1))[0] == "invoice.v1"


def test_plain_data_never_guesses_its_type(payloads: Payloads) -> None:
    for data in ([1, 2], {"x": 1, "y": 2}, "text", 7, None, True):
        assert payloads.check_and_encode(None, data) == (
            DEFAULT_TYPE,
            json.dumps(data, separators=(",", ":")).encode(),
        )


def test_a_dict_that_converts_is_as_good_as_an_instance_and_keeps_what_it_has(payloads: Payloads) -> None:
    _, encoded = payloads.check_and_encode("alert.v1", {"text": "cpu", "extra": [1]})
    assert json.loads(encoded) == {"text": "cpu", "extra": [1]}
    decode = payloads.decoder("alert.v1")
    assert decode is not None
    assert decode(encoded) == Alert("cpu")


def test_a_dict_may_hold_instances(payloads: Payloads) -> None:
    payloads.check_and_encode("alert.v1", {"text": "cpu", "readings": [Reading(0.5), {"value": 1}]})
    with pytest.raises(PayloadMismatch, match=r"readings\[0\]\.value"):
        payloads.check_and_encode("alert.v1", {"text": "cpu", "readings": [Reading("high")]})  # type: ignore[arg-type]


def test_classes_that_cannot_be_compared_are_checked_all_the_same(payloads: Payloads) -> None:
    assert payloads.check_and_encode(None, Identity("a"))[1] == b'{"text":"a"}'
    with pytest.raises(PayloadMismatch):
        payloads.check_and_encode(None, Identity(b"a"))  # type: ignore[arg-type]


def test_a_tuple_in_a_list_field_fits(payloads: Payloads) -> None:
    assert payloads.check_and_encode(None, Order(1, ("a",)))[1] == b'{"number":1,"lines":["a"]}'  # type: ignore[arg-type]


def test_an_unregistered_type_is_plain_data(payloads: Payloads) -> None:
    assert payloads.decoder("other.v1") is None
    assert payloads.check_and_encode("com.example.other", Reading(1.0)) == (
        "com.example.other",
        b'{"value":1.0,"unit":"%"}',
    )


def test_pydantic_models_inside_plain_data_are_written(payloads: Payloads) -> None:
    assert payloads.check_and_encode(None, {"invoice": Invoice(totalAmount=1)})[1] == (
        b'{"invoice":{"totalAmount":1.0,"note":null}}'
    )


# -- what does not fit is refused before anything is written ------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "data", "says"),
    [
        ("alert.v1", Alert(7), "$.text"),  # type: ignore[arg-type]
        ("alert.v1", Alert("cpu", 11), "$.level"),
        ("alert.v1", Alert("cpu", readings=[Reading("high")]), "$.readings[0].value"),  # type: ignore[arg-type]
        ("alert.v1", Alert(b"bytes are not text"), "$.text"),  # type: ignore[arg-type]
        ("alert.v1", Alert(UUID(int=1)), "$.text"),  # type: ignore[arg-type]
        ("alert.v1", Alert("cpu", float("nan")), "$.level"),  # type: ignore[arg-type]
        ("alert.v1", {"level": 1}, "text"),
        ("alert.v1", {"text": b"bytes"}, "$.text"),
        ("alert.v1", Order(1, []), "expected Alert or a dict, got Order"),
        ("alert.v1", "text", "expected Alert or a dict, got str"),
        ("alert.v1", None, "expected Alert or a dict, got NoneType"),
        ("alert.v1", Invoice(totalAmount=1), "got Invoice"),
        ("order.v1", Order("7", []), "$.number"),  # type: ignore[arg-type]
        ("point.v1", {"x": 1}, "y"),
        ("point.v1", {"x": 1, "y": "2"}, "$.y"),
        ("numbers.v1", [1, "2"], "$[1]"),
        ("numbers.v1", {}, "array"),
        ("invoice.v1", {"totalAmount": -1}, "totalAmount"),
        ("invoice.v1", {"totalAmount": "x", "note": "y"}, "note"),
        ("invoice.v1", Invoice.model_construct(total="x"), "totalAmount"),
        ("invoice.v1", Alert("x"), "expected Invoice or a dict, got Alert"),
    ],
)
def test_what_does_not_fit_its_type_is_refused_with_the_place(
    payloads: Payloads, type_name: str, data: Any, says: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        payloads.check_and_encode(type_name, data)
    assert says in str(caught.value)
    if not isinstance(data, Alert) or not isinstance(data.level, float):
        assert isinstance(caught.value, PayloadMismatch)
        assert type_name in str(caught.value)


@pytest.mark.parametrize("type_name", ["alert.v1", "order.v1", "point.v1", "numbers.v1", "invoice.v1"])
@pytest.mark.parametrize("stored", [b"7", b"null", b'{"text":', b"", b'"\xff"', b'{"totalAmount":"x"}'])
def test_stored_json_that_does_not_fit_is_a_mismatch(payloads: Payloads, type_name: str, stored: bytes) -> None:
    decode = payloads.decoder(type_name)
    assert decode is not None
    with pytest.raises(PayloadMismatch):
        decode(stored)


def test_a_batch_says_which_payload_is_wrong(payloads: Payloads) -> None:
    with pytest.raises(PayloadMismatch, match=r"payload 1 of the batch: alert\.v1: .*\$\.text"):
        payloads.check_and_encode_many("alert.v1", [Alert("a"), Alert(7)])  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=r"payload 2 of the batch: .*nan at \$"):
        payloads.check_and_encode_many(None, [1, None, math.nan])
    with pytest.raises(InvalidMessage, match=r"payload 1 of the batch: .*object"):
        payloads.check_and_encode_many("plain.v1", [1, object()])


@pytest.mark.parametrize("known", [True, False])
def test_a_batch_is_encoded_like_its_payloads_one_by_one(payloads: Payloads, known: bool) -> None:
    payloads = payloads if known else Payloads()
    batch = [{"a": 1}, None, [None, 1.5], "null", Alert("x"), Order(1, [])]
    names, encoded = payloads.check_and_encode_many(None, batch)
    assert list(zip(names, encoded, strict=True)) == [payloads.check_and_encode(None, data) for data in batch]
    assert payloads.check_and_encode_many("plain.v1", []) == ([], [])


# -- what JSON cannot hold ----------------------------------------------------------------------------------


def holds_itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (float("nan"), "nan at $,"),
        (float("inf"), "inf at $,"),
        ({"a": [1, -math.inf]}, "-inf at $.a[1]"),
        ({"a": None, "b": {"c": math.nan}}, "nan at $.b.c"),
        ([2**80, None, math.nan], "nan at $[2]"),
        (Reading(math.nan), "nan at $.value"),
        (Alert("x", limit=math.inf), "inf at $.limit"),
        (Order(math.nan, []), "nan at $.number"),  # type: ignore[arg-type]
        (Invoice(totalAmount=1, note=math.nan), "nan at $.note"),
        ({"m": Invoice(totalAmount=1, note=math.nan)}, "nan at $.m.note"),
        ("\ud800", "half of a character"),
        ({"\udfff": 1}, "half of a character"),
        ([10**5000], "4300 digits"),
        ({None: 1}, "keys"),
        ({(1, 2): 1}, "keys"),
        (object(), "object"),
        ({"f": print}, "builtin_function_or_method"),
        (1 + 2j, "complex"),
        (holds_itself(), "nested too deeply, or holds itself"),
        (msgspec.Raw(b'{"a":\n1}'), "newline"),
    ],
)
def test_what_json_cannot_hold_is_refused_not_changed(payloads: Payloads, data: Any, says: str) -> None:
    for type_name in (None, "plain.v1"):
        with pytest.raises(InvalidMessage) as caught:
            payloads.check_and_encode(type_name, data)
        assert says in str(caught.value)
        with pytest.raises(InvalidMessage) as caught:
            payloads.check_and_encode_many(type_name, [1, data])
        assert says in str(caught.value)


@pytest.mark.parametrize(
    "data", [None, [None] * 3, {"a": None}, "null", {"null": 1}, [2**80, None], 1.7e308, [None, 1.7e308]]
)
def test_a_null_that_was_meant_is_kept(data: Any) -> None:
    assert json.loads(encode(data)) == data


def test_plain_data_turns_into_what_json_has() -> None:
    assert json.loads(encode({"t": (1,), "s": {2}, "b": b"ab", 3: Level.LOW, "u": UUID(int=1)})) == {
        "t": [1],
        "s": [2],
        "b": "YWI=",
        "3": "low",
        "u": "00000000-0000-0000-0000-000000000001",
    }


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=5)
    ),
)


def finite(data: Any) -> bool:
    if isinstance(data, float):
        return math.isfinite(data)
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return all(map(finite, inner))


@given(plain)
def test_plain_data_arrives_as_it_was_or_is_refused(data: Any) -> None:
    if finite(data):
        encoded = encode(data)
        assert msgspec.json.decode(encoded) == data
        assert b"\n" not in encoded
    else:
        with pytest.raises(InvalidMessage, match="which JSON cannot hold"):
            encode(data)


# -- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alert", "alert.v", "alert.1", ".v1", "alert.v1.x", "alert.V1", "alert.v1\n", "v1"])
def test_a_type_is_registered_under_a_versioned_name(name: str) -> None:
    with pytest.raises(InvalidMessage, match=r"\.v1|printed"):
        Payloads().register(name, Alert)


@pytest.mark.parametrize("name", ["", "a\nb.v1", "a\0.v1", "\ud800.v1", "x" * 300 + ".v1", 7, b"a.v1"])
def test_a_type_name_that_would_hurt_is_refused_at_both_doors(name: Any) -> None:
    with pytest.raises(InvalidMessage, match="type name"):
        Payloads().register(name, Alert)
    with pytest.raises(InvalidMessage, match="type name"):
        Payloads().check_and_encode(name, 1)
    with pytest.raises(InvalidMessage, match="type name"):
        Payloads().check_and_encode_many(name, [1])


def test_a_name_means_one_class(payloads: Payloads) -> None:
    payloads.register("alert.v1", Alert)
    payloads.register("numbers.v1", list[int])
    with pytest.raises(AlreadyExists, match=r"alert\.v1 is registered for Alert already"):
        payloads.register("alert.v1", Order)
    assert payloads.check_and_encode(None, Alert("x"))[0] == "alert.v1"


def test_a_class_with_two_names_has_to_be_told_which(payloads: Payloads) -> None:
    payloads.register("alert.v2", Alert)
    with pytest.raises(InvalidMessage, match="several names"):
        payloads.check_and_encode(None, Alert("x"))
    assert payloads.check_and_encode("alert.v2", Alert("x"))[0] == "alert.v2"


def test_a_class_that_cannot_be_decoded_is_refused_when_registered() -> None:
    with pytest.raises(InvalidMessage, match=r"cannot be registered as odd\.v1"):
        Payloads().register("odd.v1", list[int] | tuple[int, ...] | set[int])


def test_many_names_do_not_grow_memory_without_bound() -> None:
    payloads = Payloads()
    for number in range(10_000):
        payloads.check_and_encode(f"name-{number}.v1", 1)
    assert len(payloads._good_names) < 5_000


# -- the rest -----------------------------------------------------------------------------------------------


def test_schemas_describe_registered_types(payloads: Payloads) -> None:
    assert payloads.registered == 7
    assert payloads.schema("point.v1")["$defs"]["Point"]["required"] == ["x", "y"]
    assert payloads.schema("invoice.v1")["properties"]["totalAmount"]["type"] == "number"
    with pytest.raises(NotFound):
        payloads.schema("other.v1")


def test_pydantic_is_never_imported_for_the_user() -> None:
    code = (
        "import sys, msgspec; from heliograph.payloads import Payloads; p = Payloads()\n"
        "class A(msgspec.Struct): x: int\n"
        "p.register('a.v1', A); p.check_and_encode(None, A(1)); p.check_and_encode(None, {'a': None})\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Guest(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0)


class Family(pydantic.BaseModel):
    members: list[Guest]


@dataclasses.dataclass
class Table:
    guest: Guest
    family: Family | None = None


class Booking(msgspec.Struct):
    guest: Guest


@pydantic.dataclasses.dataclass
class Room:
    beds: int = pydantic.Field(ge=1)


@pytest.mark.parametrize(
    ("cls", "data", "wrong"),
    [
        (list[Guest], [Guest(age=3)], [{"age": -1}]),
        (Guest | None, Guest(age=3), {"age": -1}),
        (Table, Table(Guest(age=3), Family(members=[Guest(age=4)])), {"guest": {"age": -1}}),
        (Booking, Booking(Guest(age=3)), {"guest": {"age": -1}}),
        (Room, Room(2), {"beds": 0}),
    ],
)
def test_pydantic_checks_what_is_its_own_inside_of_other_types_too(cls: Any, data: Any, wrong: Any) -> None:
    payloads = Payloads()
    payloads.register("hotel.v1", cls)
    name, encoded = payloads.check_and_encode("hotel.v1", data)
    decode = payloads.decoder(name)
    assert decode is not None
    assert decode(encoded) == data
    with pytest.raises(PayloadMismatch, match=r"hotel\.v1: .*greater than or equal"):
        payloads.check_and_encode("hotel.v1", wrong)
    assert "minimum" in json.dumps(payloads.schema("hotel.v1"))


def test_raw_json_that_is_none_is_refused_under_a_registered_type() -> None:
    payloads = Payloads()
    payloads.register("raw.v1", msgspec.Raw)
    with pytest.raises(PayloadMismatch, match="truncated"):
        payloads.check_and_encode("raw.v1", msgspec.Raw(b'{"a":1'))


@pytest.mark.parametrize(
    ("cls", "fits"), [(bytes, True), (bytes | None, True), (str, False), (Alert, False), (Guest, False)]
)
def test_bytes_as_a_whole_payload_fit_only_a_type_that_takes_bytes(cls: Any, fits: bool) -> None:
    payloads = Payloads()
    payloads.register("photo.v1", cls)
    decode = payloads.decoder("photo.v1")
    assert decode is not None
    if fits:
        payloads.check_bytes("photo.v1", b"\xff")
        assert decode(b"\xff", True) == b"\xff"
        return
    with pytest.raises(PayloadMismatch, match="publish bytes under another type"):
        payloads.check_bytes("photo.v1", bytearray(b"\xff"))
    with pytest.raises(PayloadMismatch):
        decode(b"\xff", True)
