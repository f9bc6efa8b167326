"""Payloads that come as JSON text: looked at before anything is written, thousands at once."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heliograph.errors import InvalidMessage
from heliograph.nesting import SHALLOW_BYTES_MAX, refuse_too_deep

Letters = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_LARGE: Final = r"(?:^|[\[:,\s])-?(?:[0-9]+(?:\.[0-9]+)?[eE]\+?[0-9]{3}|[0-9]{200})"
"""Numbers that may be beyond a double; what is no number may look so, too."""
_encode: Final = msgspec.json.Encoder().encode
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])


def in_lines(values: pa.Array) -> pa.Array:
    """Payloads that are JSON text, each in one line; InvalidMessage if one is no JSON that all can read."""
    members = pc.binary_join_element_wise(values.drop_null(), ",\n", "")
    text = content(members)
    if may_hold_large(text):
        for one in values.filter(pc.match_substring_regex(values, _LARGE)).to_pylist():
            _check(one)
    if len(members) and not _each_whole(text, len(members)):
        values = pa.array([None if one is None else _line(one) for one in values.to_pylist()], pa.string())
    if (pc.max(pc.binary_length(values)).as_py() or 0) > SHALLOW_BYTES_MAX:
        refuse_too_deep(text)  # behind each other they are as deep as the deepest
    return values


def may_hold_large(text: bytes) -> bool:
    """Whether any number in a text may be beyond a double: a quick look, before each is looked at.

    >>> may_hold_large(b'[1e99, 1.5E+30, "be+2"]'), may_hold_large(b"1e+100"), may_hold_large(b"9" * 200)
    (False, True, True)
    """
    letters = np.frombuffer(text, np.uint8)
    if bytes([True] * 12) in _digits(letters[::16]).tobytes():
        return True  # perhaps 200 in a row
    exponents = letters[:-1] | np.uint8(0x20) == ord("e")
    exponents &= letters[1:] - np.uint8(ord("+")) <= ord("9") - ord("+")  # a sign, or a digit, or few others
    return bool(exponents.any()) and _has_large_exponent(text)


def _has_large_exponent(text: bytes) -> bool:
    """Whether three digits follow an E, perhaps with a plus between."""
    letters = np.frombuffer(text + b"\n", np.uint8)
    digits = _digits(letters)
    three = digits[:-2] & digits[1:-1] & digits[2:]
    exponents = letters[:-4] | np.uint8(0x20) == ord("e")
    return bool((exponents & (three[1:-1] | (three[2:] & (letters[1:-3] == ord("+"))))).any())


def _digits(letters: Letters) -> Mask:
    found: Mask = letters - np.uint8(ord("0")) < 10
    return found


def _each_whole(text: bytes, count: int) -> bool:
    """Whether so many texts, each with a comma and a line break behind it, are one line and one JSON value each.

    Those that are whole only together have a line break within a value, which is still there when all is encoded.

    >>> _each_whole(b"[1,2],\\n3,\\n", 2), _each_whole(b"[1,\\n2],3,\\n", 2), _each_whole(b"1,2,\\n[3,\\n4],\\n", 3)
    (True, False, False)
    """
    try:
        values = _raws.decode(b"".join((b"[", memoryview(text)[:-2], b"]")))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    breaks = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    return len(values) == count == breaks and b"\n" not in _encode(values)


def _line(text: str) -> str:
    """One payload, without line breaks between its tokens."""
    try:
        return msgspec.json.format(text.encode(), indent=-1).decode()
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _refusal(text, error) from None


def _check(text: str) -> None:
    """Refuse what no reader could decode: a number beyond a double is JSON, and no value."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _refusal(text, error) from None


def _refusal(text: str, error: Exception) -> InvalidMessage:
    shown = text if len(text) <= 60 else text[:59] + "…"
    return InvalidMessage(
        f"column 'data' holds {shown!r}, which is not JSON ({error}). Make it with to_json(struct(…)), or publish "
        "it as column 'bytes'"
    )


def content(texts: pa.Array) -> bytes:
    """The bytes of all texts behind each other."""
    borders = memoryview(texts.buffers()[1]).cast("i")
    return bytes(memoryview(texts.buffers()[2])[borders[texts.offset] : borders[texts.offset + len(texts)]])
