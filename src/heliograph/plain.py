"""Plain data as JSON, and what JSON cannot hold.

What msgspec does not refuse by itself is looked for here: NaN and infinity, which it writes as null, and data so deep
that a reader could not decode it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from heliograph.errors import InvalidMessage
from heliograph.nesting import SHALLOW_BYTES_MAX, any_long, refuse_too_deep

# A float64 of MessagePack whose exponent is all ones: NaN or infinity, or by chance a part of something else.
_find_non_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
NEWLINE = 10  # ends a line of the log; only a msgspec.Raw can bring one into JSON


class Decode(Protocol):
    """Turns a payload into an object of its registered type, or raises PayloadMismatch."""

    def __call__(self, encoded: bytes, binary: bool = False, /) -> Any:
        """``encoded`` is JSON; with ``binary`` the payload was bytes, and these are they."""


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


def is_pydantic(cls: Any) -> bool:
    """Whether a class is a pydantic model."""
    # A pydantic model can only come from an imported pydantic, so it is never imported here.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def foreign(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic models, alone or inside other data."""
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, warnings=False)
    if value is None or isinstance(value, (bool, tuple)):  # known as values, so this was a key
        raise TypeError(f"the keys of a dict are text or numbers, not {value!r}")
    raise TypeError(f"JSON cannot hold a {called(type(value))}; register a type or convert it first")


_encoder = msgspec.json.Encoder(enc_hook=foreign)
encode_unchecked = _encode = _encoder.encode
_encode_lines = _encoder.encode_lines
_pack = msgspec.msgpack.Encoder(enc_hook=foreign).encode


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
    plain = msgspec.to_builtins(data, enc_hook=foreign)
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


def called(cls: Any) -> str:
    """What a person calls a class."""
    return getattr(cls, "__qualname__", None) or repr(cls)
