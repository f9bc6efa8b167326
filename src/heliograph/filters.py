"""Which messages a reader wants, by their envelopes: a payload nobody wants is never decoded.

A filter is a list of conditions, all of which must hold: a field of the envelope and a test of its value
(``ABSENT`` where a message has none). :class:`Sieve` applies them to many stored lines at once: the fields are
decoded in C and everything else, the payload above all, is skipped.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import and_, attrgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from heliograph.errors import ConfigError
from heliograph.limits import HEADERS_MAX, KEY_BYTES_MAX
from heliograph.message import RESERVED, HeaderValue, Message


class _Absent:
    """Stands for what a message does not have; equal to nothing."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
Test = Callable[[Any], bool]


class Condition(NamedTuple):
    """One field of the envelope, by its stored name, and what must hold for its value."""

    field: str
    test: Test


class Choice(Protocol):
    """Anything that can say what it wants of an envelope."""

    def conditions(self) -> Sequence[Condition]:
        """All of these must hold."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a type, a key or with some headers; what is left out is not looked at.

    ``type`` and ``key`` may hold ``*`` (anything), ``?`` (one character) and ``[a-z]``; headers must be equal.

    >>> wanted = Filter(type="com.example.*", headers={"region": "eu"})
    >>> wanted.fits({"type": "com.example.alert.v1", "region": "eu"})
    True
    >>> wanted.fits({"type": "com.example.alert.v1"})
    False
    """

    type: str | None = None
    key: str | None = None
    headers: Mapping[str, HeaderValue] | None = None

    def __post_init__(self) -> None:
        for what, glob in (("type", self.type), ("key", self.key)):
            if glob is not None and not isinstance(glob, str):
                raise ConfigError(f"a filter's {what} is text, perhaps with '*', not {glob!r}")
            if glob is not None and len(glob) > KEY_BYTES_MAX:
                raise ConfigError(f"a filter's {what} has {len(glob)} characters, at most {KEY_BYTES_MAX} are allowed")
        _check_headers(self.headers)
        if self.type is None and self.key is None and not self.headers:
            raise ConfigError("an empty filter wants everything; say type, key or headers, or leave the filter out")

    def conditions(self) -> list[Condition]:
        """What must hold, field by field."""
        found = []
        if self.type is not None:
            found.append(Condition("type", _glob(self.type)))
        if self.key is not None:
            found.append(Condition("partitionkey", _glob(self.key)))
        for name, value in (self.headers or {}).items():
            found.append(Condition(name, _equal(value)))
        return found

    def fits(self, envelope: Mapping[str, Any]) -> bool:
        """Whether an envelope has what is asked for."""
        return all(test(envelope.get(field, ABSENT)) for field, test in self.conditions())

    def __call__(self, message: Message) -> bool:
        """Whether a message has what is asked for."""
        return self.fits(message.envelope)


def _check_headers(headers: object) -> None:
    if headers is None:
        return
    if not isinstance(headers, Mapping) or len(headers) > HEADERS_MAX:
        raise ConfigError(f"a filter's headers are a mapping of at most {HEADERS_MAX} names to values")
    for name, value in headers.items():
        if not isinstance(name, str) or not name or name in RESERVED:
            raise ConfigError(
                f"a filter's header {name!r} cannot be one: it is no name, or an attribute of the envelope"
            )
        if not isinstance(value, (str, int, bool)):
            raise ConfigError(f"a filter's header '{name}' is compared with text, a whole number or a boolean only")


def _glob(pattern: str) -> Test:
    if not any(sign in pattern for sign in "*?["):
        return _equal(pattern)
    fits = re.compile(fnmatch.translate(pattern)).match  # which never goes back far, whatever the pattern
    known: dict[str, bool] = {}

    def test(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        found = known.get(value)
        if found is None:
            found = fits(value) is not None
            if len(known) < _REMEMBERED:  # most channels have few types
                known[value] = found
        return found

    return test


_REMEMBERED: Final = 1_000
"""Values whose answer a test remembers."""


def _equal(wanted: HeaderValue) -> Test:
    kind = type(wanted)  # 1, True and 1.0 are equal for Python, not for whoever set a header
    return lambda value: value == wanted and type(value) is kind


class Sieve:
    """A filter, ready for the lines of a log. May be shared by threads."""

    def __init__(self, choice: Choice) -> None:
        conditions = choice.conditions()
        fields = list(dict.fromkeys([condition.field for condition in conditions]))
        names = {field: f"f{at}" for at, field in enumerate(fields)}
        # Stored names may be anything, a keyword or a number, so the struct has names of its own.
        row = msgspec.defstruct(
            "Row",
            [("id", str, ""), *[(names[field], _kind(field), ABSENT) for field in fields if field != "id"]],
            rename={inner: field for field, inner in names.items()}.get,
            gc=False,
        )
        names["id"] = "id"
        self._decoder = msgspec.json.Decoder(row)
        self._tests = [(attrgetter(names[field]), test) for field, test in conditions]

    def rows(self, data: bytes) -> list[Any]:
        """What the filter asks about each line. Raises msgspec.MsgspecError if any is no envelope."""
        found: list[Any] = self._decoder.decode_lines(data)
        return found

    def row(self, line: bytes) -> Any:
        """As ``rows``, for one line."""
        return self._decoder.decode(line)

    def wanted(self, rows: Sequence[Any]) -> list[bool]:
        """Which of them fit: a pass over all of them per condition."""
        mask = [True] * len(rows)
        for value_of, test in self._tests:
            mask = list(map(and_, mask, map(test, map(value_of, rows))))
        return mask


def _kind(field: str) -> Any:
    return datetime if field == "time" else Any


def sieve_of(where: Choice | None) -> Sieve | None:
    """The sieve of a ``where=``; ConfigError if it is none."""
    if where is None:
        return None
    if not callable(getattr(where, "conditions", None)):
        raise ConfigError(f"where is {where!r}; use a Filter, as in where=Filter(type='com.example.*')")
    return Sieve(where)
