"""A tiny filter language for ``--where``: conditions on fields, all of which must hold.

    type=com.example.alert.v1     equal                data.level>=3      numbers compare as numbers
    key!=cpu                      not equal            time>-5m           times as times, also as an age
    subject~^disk                 regular expression   has:correlationid  the field is there

A field is an attribute of the envelope (``key`` is short for ``partitionkey``), a header by its name, ``offset``,
``partition``, or a path into the payload: ``data.level``, ``data.tags.0``. A field that is not there fails every
condition but ``!=``.

>>> parse(["data.level>=3", "key~^cpu"]).fits({"data": {"level": 7}, "key": "cpu0"})
True
>>> parse("data.level>=3").fits({"data": {"level": 2}})
False
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from heliograph import filters
from heliograph.config import units
from heliograph.errors import ConfigError
from heliograph.filters import ABSENT
from heliograph.message import Message

GRAMMAR: Final = (
    "write FIELD=VALUE (or != > >= < <=), FIELD~REGEX, or has:FIELD, as in type=com.example.alert.v1, "
    "data.level>=3, key~^cpu, has:correlationid"
)
_FIELD: Final = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
_CONDITION: Final = re.compile(rf"\s*({_FIELD})\s*(!=|>=|<=|==?|>|<|~)\s*(.*?)\s*", re.DOTALL)
_HAS: Final = re.compile(rf"\s*has:({_FIELD})\s*")
_AGE: Final = re.compile(r"-\d+(\.\d+)?(ms|s|m|h|d)", re.ASCII)
_INT_DIGITS_MAX: Final = 400
"""More are beyond the largest float, and int() takes no more than some thousands."""
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_ATTRIBUTES: Final = frozenset(
    [
        "id",
        "source",
        "type",
        "time",
        "channel",
        "partitionkey",
        "correlationid",
        "traceparent",
        "subject",
        "offset",
        "partition",
    ]
)
_ALIASES: Final = {"key": "partitionkey"}
_ELSEWHERE: Final = frozenset(["data", "data_base64", "offset", "partition"])
"""Fields that are not read from the envelope."""

Test = Callable[[Any], bool]


class Condition(NamedTuple):
    """One condition: where to look, and what must hold there (``ABSENT`` stands for nothing)."""

    path: tuple[str, ...]
    test: Test


class Where:
    """Some conditions. Call it with a message, or ask ``fits`` about any mapping."""

    def __init__(self, text: str, conditions: list[Condition]) -> None:
        self.text = text
        self._conditions = conditions

    def __bool__(self) -> bool:
        """Whether there is any condition at all."""
        return bool(self._conditions)

    def __repr__(self) -> str:
        return f"Where({self.text!r})"

    def apart(self) -> tuple[Where, Where]:
        """The conditions on the envelope, which can be tested before a payload is decoded; and the others."""
        outside = [condition for condition in self._conditions if condition.path[0] not in _ELSEWHERE]
        inside = [condition for condition in self._conditions if condition.path[0] in _ELSEWHERE]
        return Where(self.text, outside), Where(self.text, inside)

    def conditions(self) -> list[filters.Condition]:
        """The conditions on the envelope, for ``where=`` of a subscription or of read()."""
        return [filters.Condition(*_outside(path, test)) for path, test in self.apart()[0]._conditions]

    def __call__(self, message: Message) -> bool:
        """Whether the conditions hold for a message."""
        envelope: dict[str, Any] | None = None
        for path, test in self._conditions:
            name = _ALIASES.get(path[0], path[0])
            if name in _ATTRIBUTES:
                value = getattr(message, name)
            elif name == "data" and isinstance(message.data, (dict, list, str, int, float, type(None))):
                value = message.data
            else:  # a header, or an object of a registered type: look at what is stored
                if envelope is None:
                    envelope = message.envelope
                value = envelope.get(name, ABSENT)
            if not test(_walk(value, path[1:])):
                return False
        return True

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Whether the conditions hold for plain data."""
        for path, test in self._conditions:
            value = record.get(path[0], ABSENT)
            if value is ABSENT and path[0] in _ALIASES:
                value = record.get(_ALIASES[path[0]], ABSENT)
            if not test(_walk(value, path[1:])):
                return False
        return True


def _outside(path: tuple[str, ...], test: Test) -> tuple[str, Test]:
    """A condition as a filter wants it; an attribute that a message lacks is None, as in a Message."""
    field = _ALIASES.get(path[0], path[0])
    nothing = None if field in _ATTRIBUTES else ABSENT
    return field, lambda value: test(_walk(nothing if value is ABSENT else value, path[1:]))


def _walk(value: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step, ABSENT)
        elif (
            isinstance(value, (list, tuple))
            and step.isdecimal()
            and len(step) <= _INT_DIGITS_MAX
            and int(step) < len(value)
        ):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def parse(conditions: str | Iterable[str] | None) -> Where:
    """Compile conditions; ConfigError says what is wrong with one and how to write it."""
    texts = [conditions] if isinstance(conditions, str) else list(conditions or ())
    return Where(" ".join(texts), [_condition(text) for text in texts])


def _condition(text: str) -> Condition:
    if found := _HAS.fullmatch(text):
        return Condition(tuple(found[1].split(".")), lambda value: value is not ABSENT and value is not None)
    found = _CONDITION.fullmatch(text)
    if not found:
        raise ConfigError(f"{text!r} is not a condition: {GRAMMAR}")
    field, sign, wanted = found.groups()
    return Condition(tuple(field.split(".")), _test(text, sign, wanted))


def _test(text: str, sign: str, wanted: str) -> Test:
    if sign == "~":
        return _matches(text, wanted)
    if sign in ("=", "=="):
        return _equals(wanted)
    if sign == "!=":
        equals = _equals(wanted)
        return lambda value: not equals(value)
    if not wanted:
        raise ConfigError(f"{text!r} compares with nothing: {GRAMMAR}")
    return _compares(_ORDERS[sign], wanted)


def _matches(text: str, pattern: str) -> Test:
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise ConfigError(f"{text!r}: {pattern!r} is not a regular expression ({error})") from None

    def test(value: Any) -> bool:
        shown = _shown(value)
        return shown is not None and search(shown) is not None

    return test


def _shown(value: Any) -> str | None:
    """A value as text; None for what is not there or not a single value."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (bool, int, float)):
        return msgspec.json.encode(value).decode()
    return None


def _equals(wanted: str) -> Test:
    number, moment = _number(wanted), _moment(wanted)

    def test(value: Any) -> bool:
        if value is None:
            return wanted == "null"
        if isinstance(value, bool) or not isinstance(value, (int, float, datetime)):
            return _shown(value) == wanted
        if isinstance(value, datetime):
            return moment is not None and _aware(value) == moment
        return number is not None and value == number

    return test


def _compares(order: Callable[[Any, Any], bool], wanted: str) -> Test:
    number, moment = _number(wanted), _moment(wanted)

    def test(value: Any) -> bool:
        if isinstance(value, bool):
            return False
        if isinstance(value, (int, float)):
            return number is not None and order(value, number)
        if isinstance(value, datetime):
            return moment is not None and order(_aware(value), moment)
        if isinstance(value, str):
            stored = _moment(value) if moment is not None else None
            return order(stored, moment) if stored is not None else order(value, wanted)
        return False

    return test


def _number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    if text.lstrip("+-").isdecimal() and len(text) <= _INT_DIGITS_MAX:
        return int(text)
    return float(text)


def _moment(text: str) -> datetime | None:
    """A time, or an age such as ``-5m``."""
    if _AGE.fullmatch(text):
        try:
            ago = timedelta(seconds=units.parse_duration(text[1:], "s"))
            return datetime.fromtimestamp(time.time(), UTC) - ago
        except (ValueError, OverflowError):
            return datetime.min.replace(tzinfo=UTC)  # longer ago than there are times
    if len(text) < 10 or not text[:4].isdecimal():
        return None
    try:
        return _aware(datetime.fromisoformat(text))
    except ValueError:
        return None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
