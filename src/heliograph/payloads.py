"""Payload types: what may be published under a name, and what a subscriber receives.

A type is registered under a versioned name (``com.example.alert.v1``), so that a changed class gets a new
name and old messages keep their meaning. It may be a ``msgspec.Struct``, a dataclass, a ``TypedDict``, a
pydantic model, or a plain type such as ``list[int]``.

Publishing checks before anything is written: a payload that does not fit its registered type raises
``PayloadMismatch``; what JSON cannot hold (NaN, infinity, objects, half characters), or holds so deeply that
a reader could not decode it, raises ``InvalidMessage``. What passes is what a subscriber decodes.

Data of unregistered types is written as msgspec writes it and arrives as plain JSON data. JSON has fewer
kinds of values than Python, so on arrival a tuple or set is a list; a datetime, UUID, Decimal or enum is its
text or value; a number used as a key is text; and bytes *inside* other data are base64 text. Whoever wants
them back as they were registers a type with such fields. (Bytes as the whole payload travel as
``data_base64`` and arrive as bytes; they do not pass through here.) A ``msgspec.Raw`` is trusted to be JSON.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from heliograph.errors import AlreadyExists, InvalidMessage, NotFound, PayloadMismatch
from heliograph.nesting import SHALLOW_BYTES_MAX, any_long, refuse_too_deep

DEFAULT_TYPE = "heliograph.data.v1"
"""The type of a message whose publisher named none."""

TYPE_NAME_CHARS_MAX = 255

Decode = Callable[[bytes], Any]

_VERSIONED = re.compile(r".+\.v[0-9]+")
# A float64 of MessagePack whose exponent is all ones: NaN or infinity, or by chance a part of something else.
_find_non_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
NEWLINE = 10  # ends a line of the log; only a msgspec.Raw can bring one into JSON
_NAMES_KEPT_MAX = 4096


class _Registered(NamedTuple):
    cls: Any
    encode: Callable[[Any], bytes]  # checks, too
    decode: Decode
    schema: Callable[[], dict[str, Any]]


class Payloads:
    """The types one station knows.

    >>> class Alert(msgspec.Struct):
    ...     text: str
    >>> payloads = Payloads()
    >>> payloads.register("com.example.alert.v1", Alert)
    >>> payloads.check_and_encode(None, Alert("system problem!"))
    ('com.example.alert.v1', b'{"text":"system problem!"}')
    >>> payloads.check_and_encode("com.example.alert.v1", {"text": 7})
    Traceback (most recent call last):
    heliograph.errors.PayloadMismatch: com.example.alert.v1: Expected `str`, got `int` - at `$.text`
    """

    __slots__ = ("_good_names", "_names", "_types")

    def __init__(self) -> None:
        self._types: dict[str, _Registered] = {}
        self._names: dict[type, str] = {}  # "" when a class has several names
        self._good_names: set[str] = {DEFAULT_TYPE}

    @property
    def registered(self) -> int:
        """How many types are registered."""
        return len(self._types)

    def register(self, type_name: str, cls: Any) -> None:
        """Say which class the payloads of a type are; the same again is no error."""
        check_type_name(type_name)
        if not _VERSIONED.fullmatch(type_name):
            raise InvalidMessage(
                f"the type name {type_name!r} has no version: end it with .v1, .v2 …, so that a changed "
                "payload gets a new name"
            )
        known = self._types.get(type_name)
        if known is not None and known.cls is not cls and known.cls != cls:
            raise AlreadyExists(
                f"{type_name} is registered for {_called(known.cls)} already; register {_called(cls)} under "
                "another version"
            )
        try:
            entry = _pydantic_entry(cls) if _is_pydantic(cls) else _msgspec_entry(cls)
        except TypeError as error:
            raise InvalidMessage(f"{_called(cls)} cannot be registered as {type_name}: {error}") from error
        self._types[type_name] = entry
        if known is None and _says_its_type(cls):
            self._names[cls] = "" if cls in self._names else type_name

    def check_and_encode(self, type_name: str | None, data: Any) -> tuple[str, bytes]:
        """The payload's type name and its JSON, or an error before anything was written."""
        type_name = self._infer(data) if type_name is None else self.checked(type_name)
        entry = self._types.get(type_name)
        return type_name, encode(data) if entry is None else self._encode_as(type_name, entry, data)

    def check_and_encode_many(self, type_name: str | None, batch: Sequence[Any]) -> tuple[list[str], list[bytes]]:
        """The type names and JSON of a batch: all of it, or an error that says which one is wrong.

        Plain data is checked as a whole, which costs a fraction of checking each.
        """
        if type_name is None and not self._names:
            type_name = DEFAULT_TYPE
        if type_name is not None and self.checked(type_name) not in self._types:
            together = encode_batch(batch)
            if together is not None:
                return [type_name] * len(batch), together[0]
        names, lines = [], []
        for at, data in enumerate(batch):
            try:
                name, line = self.check_and_encode(type_name, data)
            except InvalidMessage as error:
                raise type(error)(f"payload {at} of the batch: {error}") from error.__cause__
            names.append(name)
            lines.append(line)
        return names, lines

    def type_of(self, data: Any) -> str:
        """The type of data that nothing is said about: that of its class, or the default one."""
        return self._names.get(type(data)) or DEFAULT_TYPE

    def _infer(self, data: Any) -> str:
        name = self._names.get(type(data), DEFAULT_TYPE)
        if not name:
            called = _called(type(data))
            raise InvalidMessage(f"{called} is registered under several names; say which one with type=")
        return name

    def checked(self, type_name: str) -> str:
        """The type name, if it can be one."""
        if type(type_name) is not str or type_name not in self._good_names:
            check_type_name(type_name)
            if len(self._good_names) >= _NAMES_KEPT_MAX:
                self._good_names.clear()
            self._good_names.add(type_name)
        return type_name

    def _encode_as(self, type_name: str, entry: _Registered, data: Any) -> bytes:
        try:
            return entry.encode(data)
        except PayloadMismatch as error:
            raise PayloadMismatch(f"{type_name}: {error}") from error.__cause__

    def decoder(self, type_name: str) -> Decode | None:
        """What turns a payload's JSON into the registered type; None when the type is not registered."""
        entry = self._types.get(type_name)
        return None if entry is None else entry.decode

    def schema(self, type_name: str) -> dict[str, Any]:
        """The JSON Schema of a registered type."""
        entry = self._types.get(type_name)
        if entry is None:
            raise NotFound(f"no type is registered as {type_name}")
        return entry.schema()


def check_type_name(type_name: object) -> None:
    """Refuse a type name that CloudEvents or a reader of the log would trip over."""
    if not isinstance(type_name, str) or not type_name:
        raise InvalidMessage(f"a type name is a text such as com.example.alert.v1, not {type_name!r}")
    if len(type_name) > TYPE_NAME_CHARS_MAX:
        raise InvalidMessage(f"the type name has {len(type_name)} characters; {TYPE_NAME_CHARS_MAX} are allowed")
    if not type_name.isprintable():
        raise InvalidMessage(f"the type name {type_name!r} holds characters that cannot be printed")


def next_version(type_name: str) -> str:
    """The name for a type that changed too much for its old one.

    >>> next_version("com.example.alert.v1")
    'com.example.alert.v2'
    """
    stem, _, number = type_name.rpartition(".v")
    return f"{stem}.v{int(number) + 1}" if number.isdecimal() else f"{type_name}.v2"


def batch_of(payloads: Iterable[Any]) -> list[Any]:
    """The messages of a batch. A text, bytes or a dict is one payload: nobody means its letters, or its keys.

    >>> batch_of(range(3))
    [0, 1, 2]
    """
    if isinstance(payloads, list):
        return payloads
    if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidMessage(
            f"a batch is a list of payloads, not a {type(payloads).__name__}; publish takes a single one"
        )
    if not isinstance(payloads, Iterable):
        raise InvalidMessage(f"a batch is a list of payloads, not {payloads!r}; publish takes a single one")
    return list(payloads)


def encode(data: Any) -> bytes:
    """Plain data as JSON; raises ``InvalidMessage`` for what JSON cannot hold.

    >>> encode({"cpu": 0.93})
    b'{"cpu":0.93}'
    >>> encode({"cpu": float("nan")})
    Traceback (most recent call last):
    heliograph.errors.InvalidMessage: the payload holds nan at $.cpu, which JSON cannot hold; use None or text
    """
    try:
        encoded = _encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"the payload cannot be written as JSON: {_why(error)}") from error
    look_closer(encoded, data)
    return encoded


def look_closer(encoded: bytes, data: Any) -> None:
    """Refuse what JSON, or a reader, cannot hold though it was encoded: msgspec writes NaN and infinity as null."""
    if encoded.rfind(b"null") != -1:
        _refuse_non_finite(data)
    if NEWLINE in encoded:
        raise InvalidMessage("the payload holds raw JSON with a newline in it; encode it without")
    if len(encoded) > SHALLOW_BYTES_MAX:
        refuse_too_deep(encoded)


# -- how each kind of type is checked -----------------------------------------------------------------------


def _msgspec_entry(cls: Any) -> _Registered:
    """Struct, dataclass, TypedDict or plain type: the JSON is decoded once to see that it fits.

    msgspec checks nothing when a Struct is made, so an instance proves little. And JSON alone does not tell
    bytes in a ``str`` field from text; where the decoded object differs from the one given (or cannot be
    compared with it, a dict for a Struct), a second, slower look compares the values themselves.
    """
    decode = msgspec.json.Decoder(cls).decode
    instances_only = _says_its_type(cls)

    def check_and_encode(data: Any) -> bytes:
        if instances_only and not isinstance(data, (cls, Mapping)):
            raise PayloadMismatch(f"expected {_called(cls)} or a dict, got {_called(type(data))}")
        encoded = encode(data)
        try:
            if decode(encoded) != data:
                msgspec.convert(msgspec.to_builtins(data, builtin_types=_not_text(), enc_hook=_foreign), cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise PayloadMismatch(str(error)) from error
        return encoded

    def decode_or_mismatch(encoded: bytes) -> Any:
        try:
            return decode(encoded)
        except (msgspec.DecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
            raise PayloadMismatch(str(error)) from error

    return _Registered(cls, check_and_encode, decode_or_mismatch, functools.partial(_msgspec_schema, cls))


def _msgspec_schema(cls: Any) -> dict[str, Any]:
    from heliograph.schemas import schema_of

    return schema_of(cls)


def _pydantic_entry(cls: Any) -> _Registered:
    """A pydantic model: its own validation, on publishing and on arrival."""
    pydantic = sys.modules["pydantic"]
    validate = cls.model_validate_json

    def decode(encoded: bytes) -> Any:
        try:
            return validate(encoded)
        except pydantic.ValidationError as error:
            wrong = (f"{'.'.join(map(str, one['loc'])) or '$'}: {one['msg']}" for one in error.errors())
            raise PayloadMismatch("; ".join(wrong)) from error

    def check_and_encode(data: Any) -> bytes:
        if not isinstance(data, (cls, Mapping)):
            raise PayloadMismatch(f"expected {_called(cls)} or a dict, got {_called(type(data))}")
        encoded = encode(data)
        decode(encoded)
        return encoded

    return _Registered(cls, check_and_encode, decode, cls.model_json_schema)


def _is_pydantic(cls: Any) -> bool:
    # A pydantic model can only come from an imported pydantic, so it is never imported here.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def _says_its_type(cls: Any) -> bool:
    """Whether an instance gives its type away; an int or a dict may mean anything."""
    if not isinstance(cls, type):
        return False
    return issubclass(cls, msgspec.Struct) or hasattr(cls, "__dataclass_fields__") or _is_pydantic(cls)


@functools.cache
def _not_text() -> tuple[type, ...]:
    """What msgspec writes as text although it is not: kept as it is when held against a type."""
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from uuid import UUID

    return (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)


# -- JSON ---------------------------------------------------------------------------------------------------


def _foreign(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic models, alone or inside other data."""
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, warnings=False)
    if value is None or isinstance(value, (bool, tuple)):  # known as values, so this was a key
        raise TypeError(f"the keys of a dict are text or numbers, not {value!r}")
    raise TypeError(f"JSON cannot hold a {_called(type(value))}; register a type or convert it first")


_encoder = msgspec.json.Encoder(enc_hook=_foreign)
encode_unchecked = _encode = _encoder.encode
_encode_lines = _encoder.encode_lines
_pack = msgspec.msgpack.Encoder(enc_hook=_foreign).encode


def encode_batch(batch: Sequence[Any]) -> tuple[list[bytes], int] | None:
    """The batch as JSON and its size in bytes, or None when something in it has to be looked at one by one."""
    try:
        whole = _encode_lines(batch)
    except (TypeError, ValueError, RecursionError):
        return None
    if whole.rfind(b"null") != -1 and not _finite(batch):  # from the end it takes half as long
        return None
    encoded = whole.split(b"\n")
    encoded.pop()  # each line was ended
    if any_long(whole) and not _all_shallow(encoded):
        return None
    return (encoded, len(whole) - len(encoded)) if len(encoded) == len(batch) else None


def _all_shallow(lines: list[bytes]) -> bool:
    try:
        for line in lines:
            if len(line) > SHALLOW_BYTES_MAX:
                refuse_too_deep(line)
    except InvalidMessage:
        return False
    return True


def _finite(data: Any) -> bool:
    """Whether data surely holds neither NaN nor infinity.

    MessagePack has both: encoding once more in C is twenty times faster than walking.
    """
    try:
        return _find_non_finite(_pack(data)) is None
    except OverflowError:  # an integer beyond 64 bits
        return False


def _refuse_non_finite(data: Any) -> None:
    # Walking knows for sure and says where; it is left for the rare case.
    if _finite(data):
        return
    plain = msgspec.to_builtins(data, enc_hook=_foreign)
    waiting: list[tuple[str, Any]] = [("$", plain)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidMessage(f"the payload holds {value} at {path}, which JSON cannot hold; use None or text")
        elif isinstance(value, dict):
            waiting.extend((f"{path}.{key}", inner) for key, inner in value.items())
        elif isinstance(value, (list, tuple)):
            waiting.extend((f"{path}[{at}]", inner) for at, inner in enumerate(value))


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or holds itself"
    if isinstance(error, UnicodeEncodeError):
        return f"a text holds {error.object[error.start : error.end]!r}, half of a character"
    return str(error)


def _called(cls: Any) -> str:
    return getattr(cls, "__qualname__", None) or repr(cls)
