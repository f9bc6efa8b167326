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
them back as they were registers a type with such fields. Bytes as the whole payload travel as ``data_base64`` and
arrive as bytes; under a registered type only if it takes bytes. A ``msgspec.Raw`` is trusted to be JSON.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from heliograph.errors import AlreadyExists, InvalidMessage, NotFound, PayloadMismatch
from heliograph.plain import Decode, called, encode, encode_batch, foreign, is_pydantic

__all__ = ["DEFAULT_TYPE", "Payloads", "batch_of", "check_type_name", "encode", "next_version"]

DEFAULT_TYPE = "heliograph.data.v1"
"""The type of a message whose publisher named none."""

TYPE_NAME_CHARS_MAX = 255

_VERSIONED = re.compile(r".+\.v[0-9]+")
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
                f"{type_name} is registered for {called(known.cls)} already; register {called(cls)} under "
                "another version"
            )
        try:
            entry = _pydantic_entry(cls) if _validates_itself(cls) else _msgspec_entry(cls)
        except TypeError as error:
            raise InvalidMessage(f"{called(cls)} cannot be registered as {type_name}: {error}") from error
        self._types[type_name] = entry
        if known is None and _says_its_type(cls):
            self._names[cls] = "" if cls in self._names else type_name

    def check_and_encode(self, type_name: str | None, data: Any) -> tuple[str, bytes]:
        """The payload's type name and its JSON, or an error before anything was written."""
        type_name = self._infer(data) if type_name is None else self.checked(type_name)
        entry = self._types.get(type_name)
        return type_name, encode(data) if entry is None else self._encode_as(type_name, entry, data)

    def check_bytes(self, type_name: str, data: bytes | bytearray | memoryview) -> None:
        """Refuse bytes as the whole payload of a type that is registered for something else."""
        entry = self._types.get(self.checked(type_name))
        if entry is not None:
            try:
                entry.decode(bytes(data), True)
            except PayloadMismatch as error:
                raise PayloadMismatch(
                    f"{type_name} is registered for {called(entry.cls)}; publish bytes under another type"
                ) from error.__cause__

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
            raise InvalidMessage(f"{called(type(data))} is registered under several names; say which one with type=")
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


# -- how each kind of type is checked -----------------------------------------------------------------------


def _msgspec_entry(cls: Any) -> _Registered:
    """Struct, dataclass, TypedDict or plain type: the JSON is decoded once to see that it fits.

    msgspec checks nothing when a Struct is made, so an instance proves little. And JSON alone does not tell
    bytes in a ``str`` field from text; where the decoded object differs from the one given (or cannot be
    compared with it, a dict for a Struct), a second, slower look compares the values themselves.
    """
    decode = msgspec.json.Decoder(cls, dec_hook=_read_foreign).decode
    instances_only = _says_its_type(cls)

    def check_and_encode(data: Any) -> bytes:
        if instances_only and not isinstance(data, (cls, Mapping)):
            raise PayloadMismatch(f"expected {called(cls)} or a dict, got {called(type(data))}")
        encoded = encode(data)
        try:
            if decode(encoded) != data:
                plain = msgspec.to_builtins(data, builtin_types=_not_text(), enc_hook=foreign)
                msgspec.convert(plain, cls, dec_hook=_read_foreign)
        except (msgspec.DecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
            raise PayloadMismatch(str(error)) from error
        return encoded

    def decode_or_mismatch(encoded: bytes, binary: bool = False, /) -> Any:
        try:
            return msgspec.convert(encoded, cls) if binary else decode(encoded)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PayloadMismatch(str(error)) from error

    return _Registered(cls, check_and_encode, decode_or_mismatch, functools.partial(_msgspec_schema, cls))


def _read_foreign(cls: type, value: Any) -> Any:
    """What msgspec cannot make by itself: pydantic models inside other data. It adds the place to a ValueError."""
    if not is_pydantic(cls) or isinstance(value, cls):
        return value
    try:
        return cls.model_validate_json(encode(value))  # type: ignore[attr-defined]
    except sys.modules["pydantic"].ValidationError as error:
        raise ValueError(_wrong(error)) from error


def _msgspec_schema(cls: Any) -> dict[str, Any]:
    from heliograph.schemas import schema_of

    return schema_of(cls)


def _pydantic_entry(cls: Any) -> _Registered:
    """A pydantic model or dataclass: its own validation, on publishing and on arrival."""
    pydantic = sys.modules["pydantic"]
    adapter = None if is_pydantic(cls) else pydantic.TypeAdapter(cls)
    validate = cls.model_validate_json if adapter is None else adapter.validate_json

    def decode(encoded: bytes, binary: bool = False, /) -> Any:
        if binary:
            raise PayloadMismatch(f"expected {called(cls)}, got bytes")
        try:
            return validate(encoded)
        except pydantic.ValidationError as error:
            raise PayloadMismatch(_wrong(error)) from error

    def check_and_encode(data: Any) -> bytes:
        if not isinstance(data, (cls, Mapping)):
            raise PayloadMismatch(f"expected {called(cls)} or a dict, got {called(type(data))}")
        encoded = encode(data)
        decode(encoded)
        return encoded

    return _Registered(cls, check_and_encode, decode, cls.model_json_schema if adapter is None else adapter.json_schema)


def _wrong(error: Any) -> str:
    """What pydantic found, in a line."""
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or '$'}: {one['msg']}" for one in error.errors())


def _validates_itself(cls: Any) -> bool:
    """Whether pydantic checks it: a model, or one of its dataclasses."""
    return is_pydantic(cls) or (isinstance(cls, type) and "__pydantic_validator__" in cls.__dict__)


def _says_its_type(cls: Any) -> bool:
    """Whether an instance gives its type away; an int or a dict may mean anything."""
    if not isinstance(cls, type):
        return False
    return issubclass(cls, msgspec.Struct) or hasattr(cls, "__dataclass_fields__") or is_pydantic(cls)


@functools.cache
def _not_text() -> tuple[type, ...]:
    """What msgspec writes as text although it is not: kept as it is when held against a type."""
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from uuid import UUID

    return (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
