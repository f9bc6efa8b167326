"""Messages: CloudEvents 1.0 envelopes, encoded once and decoded in bulk.

A stored line (see docs/format.md)::

    {"specversion":"1.0","id":"0192…","source":"host2/monitor","type":"com.example.alert.v1",
     "time":"2026-11-15T20:30:01.123456Z","channel":"alerts","partitionkey":"cpu","correlationid":"…",
     "traceparent":"00-…","subject":"…", …headers…,"data":{…},
     "origin":"host2.k3f9q2","originseq":"0/41","crc":"9a1c03f7"}

The publisher's part ends with ``data`` and is made here; the rest is spliced on under the log's lock.
"""

from __future__ import annotations

import binascii
import functools
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import count
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import uuid_utils

from heliograph.addressee import Addressee
from heliograph.clock import to_us
from heliograph.errors import InvalidMessage
from heliograph.expiry import NAME as EXPIRES
from heliograph.expiry import Expiry
from heliograph.limits import HEADER_NAME_CHARS_MAX, HEADERS_MAX, KEY_BYTES_MAX
from heliograph.plain import Decode

RESERVED: Final = frozenset(
    [
        *("specversion", "id", "source", "type", "time", "channel", "partitionkey", "correlationid", "traceparent"),
        *("subject", "expires", "redrivefor", "data", "data_base64", "datacontenttype", "dataschema"),
        *("atomic", "batch", "origin", "originseq", "producer", "producerseq", "crc"),
    ]
)  # fmt: skip
"""Attributes that a header must not use."""

_HEADER_NAME: Final = re.compile(r"[a-z0-9_]+")
_ENDINGS: Final = 16**3
_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_encode = msgspec.json.Encoder().encode
_uuid7 = uuid_utils.uuid7
HeaderValue = str | int | bool


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a ``publish_many`` that differs from its neighbours in more than its data.

    >>> Draft(data={"n": 1}, key="cpu").key
    'cpu'
    """

    data: Any = None
    type: str | None = None
    key: str | None = None
    headers: Mapping[str, HeaderValue] | None = None
    correlation_id: str | None = None
    subject: str | None = None
    id: str | None = None
    time: datetime | None = None

    def __post_init__(self) -> None:
        if self.headers is not None:
            check_headers(self.headers)
        if self.time is not None and not isinstance(self.time, datetime):
            raise InvalidMessage(f"time must be a datetime, not {type(self.time).__name__}")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a published message is."""

    id: str
    channel: str
    partition: int
    offset: int
    duplicate: bool = False
    """A producer's message that was stored before; its offset is -1 if it is not the last one."""


class Gap(msgspec.Struct, frozen=True):
    """Messages a reader will not get: offsets ``first`` to ``next - 1`` are gone, and why."""

    channel: str
    partition: int
    first: int
    next: int
    reason: str


class Lines:
    """The stored bytes that a batch of messages was decoded from."""

    __slots__ = ("_numbered", "_split", "addressed", "data", "expiring", "first", "partition")

    def __init__(self, data: bytes, first: int, partition: int, numbered: dict[int, bytes] | None = None) -> None:
        self.data = data
        self.first = first
        self.partition = partition
        self.expiring = False  # whether any of the messages beside each other here may expire
        self.addressed = False  # whether any of them is for one subscription only
        self._numbered = numbered
        self._split: list[bytes] | None = None

    def line(self, offset: int) -> bytes:
        """One stored line, without its newline."""
        if self._numbered is not None:
            return self._numbered[offset]
        if self._split is None:
            self._split = self.data.split(b"\n")
        return self._split[offset - self.first]


# What is being decoded by this thread: each message takes it from here, in C, as the default of a field that no
# line has. Setting it on every message afterwards would cost a tenth of decoding.
_decoding: ContextVar[Lines | None] = ContextVar("heliograph_decoding", default=None)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as it was stored. Immutable: subscribers of one process share it.

    ``data`` is an object of the registered payload type, or plain data if the type is not registered, or bytes.
    """

    id: str
    source: str
    type: str
    time: datetime
    channel: str
    partitionkey: str | None = None
    correlationid: str | None = None
    traceparent: str | None = None
    subject: str | None = None
    data: Any = None
    data_base64: bytes | None = None
    """The same as ``data`` if that is bytes."""
    # Not part of the stored object, hence names that no JSON object of ours has.
    offset: int = msgspec.field(default=-1, name=" offset")
    lines: Any = msgspec.field(default_factory=_decoding.get, name=" lines")
    expires: Expiry | None = None
    """After this time it is not delivered any more."""
    redrivefor: Addressee | None = None
    """The one subscription that it is for, if it was a dead letter that is redriven."""

    @property
    def key(self) -> str | None:
        """The partition key."""
        return self.partitionkey

    @property
    def tombstone(self) -> bool:
        """Whether it deletes its key: a key and no data. See the setting ``retention_compact``."""
        return self.partitionkey is not None and self.data is None

    @property
    def partition(self) -> int:
        """The partition of this log that holds the message."""
        return int(self.lines.partition)

    @property
    def raw(self) -> bytes:
        """The stored line, byte for byte, without its newline."""
        return bytes(self.lines.line(self.offset))

    @property
    def envelope(self) -> dict[str, Any]:
        """Every attribute as stored, including those this version does not know."""
        found: dict[str, Any] = msgspec.json.decode(self.raw)
        return found

    @property
    def headers(self) -> dict[str, Any]:
        """The extension attributes that the publisher set."""
        return {name: value for name, value in self.envelope.items() if name not in RESERVED}

    @property
    def origin(self) -> str:
        """Station and incarnation where the message was first published."""
        return str(self.envelope.get("origin", ""))

    @property
    def originseq(self) -> str:
        """Partition and offset there."""
        return str(self.envelope.get("originseq", ""))

    def __repr__(self) -> str:
        place = f"{self.channel}/{self.offset}"
        return f"Message({place} {self.type} id={self.id} key={self.partitionkey!r} data={self.data!r})"


class _Undecoded(Message, frozen=True, gc=False):
    """A message whose payload will be decoded by its type."""

    data: msgspec.Raw = msgspec.Raw(b"null")


def _read_rare(kind: type, value: object) -> Expiry | Addressee:
    """Called, while decoding, only for a message that has such an attribute: all others cost nothing."""
    lines = _decoding.get()
    if kind is Expiry:
        if lines is not None:
            lines.expiring = True
        return Expiry.read(value)
    if lines is not None:
        lines.addressed = True
    return Addressee.read(value)


_decoder = msgspec.json.Decoder(Message, dec_hook=_read_rare)
_undecoded = msgspec.json.Decoder(_Undecoded, dec_hook=_read_rare)
_plain: Any = msgspec.json.Decoder().decode
_get_bytes = attrgetter("data_base64")
# A frozen struct refuses attribute assignment; its slots do not. Used before anybody else sees the message.
_set_offset: Callable[[Message, int], None] = Message.__dict__["offset"].__set__
_set_lines: Callable[[Message, Lines], None] = Message.__dict__["lines"].__set__
_set_data: Callable[[Message, Any], None] = Message.__dict__["data"].__set__

PayloadDecoder = Callable[[str], Decode | None]


def decode_lines(
    data: bytes, first: int, following: int, partition: int, payload_decoder: PayloadDecoder | None,
    numbered: dict[int, bytes] | None = None,
) -> list[Message] | None:  # fmt: skip
    """Decode the lines of offsets ``first`` to ``following - 1``, or those that are numbered.

    None if any of them needs a closer look.
    """
    decoder: Any = _decoder if payload_decoder is None else _undecoded
    before = _decoding.set(Lines(data, first, partition, numbered))
    try:
        messages: list[Message] = decoder.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    finally:
        _decoding.reset(before)
    if numbered is None and len(messages) == following - first:
        deque(map(_set_offset, messages, count(first)), maxlen=0)
    elif messages or data.strip(b" \n"):  # some were left out, or blank lines: offsets are not consecutive
        offsets = numbered or [offset for offset, line in enumerate(data.split(b"\n"), first) if line.strip(b" ")]
        if len(messages) != len(offsets):
            return None
        deque(map(_set_offset, messages, offsets), maxlen=0)
    try:
        if set(map(_get_bytes, messages)) != {None}:
            deque(map(_take_bytes, messages), maxlen=0)
        if payload_decoder is not None:
            _decode_payloads(messages, payload_decoder)
    except (InvalidMessage, msgspec.MsgspecError, RecursionError):
        return None
    return messages


def _take_bytes(message: Message) -> None:
    if message.data_base64 is not None:
        _set_data(message, message.data_base64)


def _decode_payloads(messages: list[Message], payload_decoder: PayloadDecoder) -> None:
    decoders: dict[str, Decode] = {}
    for message in messages:
        decode = decoders.get(message.type)
        if decode is None:
            decode = decoders[message.type] = payload_decoder(message.type) or _plain
        if message.data_base64 is None:
            _set_data(message, decode(bytes(message.data)))
        elif decode is not _plain:
            _set_data(message, decode(message.data_base64, True))


def decode_line(line: bytes, offset: int, partition: int, payload_decoder: PayloadDecoder | None) -> Message:
    """Decode one line. Raises InvalidMessage if its payload does not fit, msgspec.MsgspecError if it is no envelope."""
    try:
        return _decode_line(line, offset, partition, payload_decoder)
    except RecursionError:  # how deep is too deep says the stack of whoever reads
        raise msgspec.DecodeError("it is nested too deeply") from None


def _decode_line(line: bytes, offset: int, partition: int, payload_decoder: PayloadDecoder | None) -> Message:
    message: Message = (_decoder if payload_decoder is None else _undecoded).decode(line)
    _set_offset(message, offset)
    _set_lines(message, Lines(line, offset, partition, {offset: line}))
    message.lines.expiring = message.expires is not None
    message.lines.addressed = message.redrivefor is not None
    _take_bytes(message)
    if payload_decoder is not None:
        _decode_payloads([message], payload_decoder)
    return message


# -- encoding ----------------------------------------------------------------------------------------------------


class Timestamps:
    """RFC 3339 in UTC with microseconds, as bytes. The part up to the second is made once a second."""

    __slots__ = ("_second",)

    def __init__(self) -> None:
        self._second: tuple[int, bytes] = (-1, b"")

    def format(self, us: int) -> bytes:
        """
        >>> Timestamps().format(1_794_774_601_123_456)
        b'2026-11-15T20:30:01.123456Z'
        """
        second, rest = divmod(us, 1_000_000)
        known, text = self._second
        if second != known:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
            self._second = (second, text)
        return b"%b.%06dZ" % (text, rest)


def new_id() -> str:
    """A UUIDv7; those of one process sort by the time they were made."""
    return str(_uuid7())


def id_run() -> tuple[str, int]:
    """How the ids of a batch begin, and the number that the last eight hexadecimal digits of the first one are.

    A UUIDv7 ends in 32 random bits behind the counter that keeps those of one millisecond in order. A batch counts
    on there; the first bit is left for that.
    """
    drawn = str(_uuid7())
    return drawn[:28], int(drawn[28:], 16) & 0x7FFF_FFFF


def new_ids(count: int) -> tuple[bytes, list[bytes]]:
    """The ids of a batch: how all of them begin, and how each ends.

    Counting on takes a tenth of the time of drawing each.

    >>> ids = ids_of(*new_ids(3))
    >>> [len(one) for one in ids], ids == sorted(ids), ids[-1] < new_id()
    ([36, 36, 36], True, True)
    """
    if not count:
        return b"", []
    begin, start = id_run()
    if count > _ENDINGS:
        ends = binascii.hexlify(struct.pack(f">{count}I", *range(start, start + count)), b"\n", 4)
        return begin.encode(), ends.split(b"\n")
    high, low = divmod(start, _ENDINGS)
    low = min(low, _ENDINGS - count)  # so that all of them begin alike
    return f"{begin}{high:05x}".encode(), _endings()[0][low : low + count]


def ids_of(begin: bytes, ends: Sequence[bytes]) -> list[str]:
    """The ids of a batch as text; not needed before it is written.

    >>> ids_of(b"a", [b"1", b"2"]), ids_of(b"", [])
    (['a1', 'a2'], [])
    """
    return (begin + (b"\n" + begin).join(ends)).decode().split("\n") if ends else []


class IdRun(NamedTuple):
    """Ids that are given out one by one, in whichever thread, while it is the same millisecond."""

    begins_us: int
    ends_us: int
    begin: str
    next_end: Callable[[], str]
    """Raises StopIteration when all are given out."""

    @classmethod
    def draw(cls, now_us: int) -> IdRun:
        """Begin a run.

        >>> run = IdRun.draw(1_700_000_000_123_456)
        >>> run.begins_us, run.ends_us
        (1700000000123000, 1700000000124000)
        >>> one, other = run.begin + run.next_end(), run.begin + run.next_end()
        >>> len(one), one < other < new_id()
        (36, True)
        """
        begin, start = id_run()
        begins_us = now_us - now_us % 1000
        return cls(begins_us, begins_us + 1000, f"{begin}{start // _ENDINGS:05x}", iter(_endings()[1]).__next__)


@functools.cache
def _endings() -> tuple[list[bytes], list[str]]:
    """Three hexadecimal digits, all that there are, as bytes and as text."""
    texts = [f"{number:03x}" for number in range(_ENDINGS)]
    return [text.encode() for text in texts], texts


def id_time_us(message_id: str) -> int | None:
    """When a UUIDv7 was made, in µs, to the millisecond; None for other ids."""
    if len(message_id) != 36 or message_id[14] != "7":
        return None
    try:
        return int(message_id[:8] + message_id[9:13], 16) * 1000
    except ValueError:
        return None


_templates: dict[tuple[str, str, str], bytes] = {}


def template(channel: str, type: str, source: str) -> bytes:
    """The beginning of an envelope with holes for id and time; the same for most messages of a publisher."""
    found = _templates.get((channel, type, source))
    if found is None:
        if len(_templates) >= 4096:
            _templates.clear()
        middle = b'","source":%b,"type":%b,"time":"' % (_encode(source), _encode(type))
        end = b'","channel":%b' % _encode(channel)
        found = b'{"specversion":"1.0","id":"%%b%b%%b%b' % (
            middle.replace(b"%", b"%%"),
            end.replace(b"%", b"%%"),
        )
        _templates[(channel, type, source)] = found
    return found


def attributes(
    key: str | None, correlation_id: str | None, traceparent: str | None, subject: str | None,
    headers: Mapping[str, HeaderValue] | None,
) -> bytes:  # fmt: skip
    """The optional attributes, empty ones left out."""
    parts: list[bytes] = []
    if key is not None:
        parts.append(key_attribute(key))
    if correlation_id:
        parts.append(b',"correlationid":' + _text("correlation_id", correlation_id, 1024))
    if traceparent:
        parts.append(b',"traceparent":' + _text("traceparent", traceparent, 256))
    if subject:
        parts.append(b',"subject":' + _text("subject", subject, 8192))
    if headers:
        parts.append(_headers(headers))
    return b"".join(parts)


def key_attribute(key: object) -> bytes:
    """What an envelope says of its key."""
    return b',"partitionkey":' + _text("key", key, KEY_BYTES_MAX)


def is_text(value: object) -> bool:
    """Whether an id can be stored at all: an argument whose bytes are no UTF-8 has lone surrogates instead."""
    if not isinstance(value, str):
        raise InvalidMessage(f"the id of a message is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(what: str, value: object, bytes_max: int) -> bytes:
    if not isinstance(value, str):
        raise InvalidMessage(f"{what} must be text, not {type(value).__name__}")
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:
        raise InvalidMessage(f"{what} holds characters that cannot be encoded as UTF-8 (lone surrogates)") from None
    if len(encoded) > bytes_max:
        raise InvalidMessage(f"{what} has {len(encoded)} bytes, at most {bytes_max} are allowed")
    return encoded


def check_headers(headers: object) -> None:
    """Refuse headers that are no mapping."""
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping of names to values, not {type(headers).__name__}")


def _headers(headers: Mapping[Any, Any]) -> bytes:
    check_headers(headers)
    if len(headers) - (EXPIRES in headers) > HEADERS_MAX:
        raise InvalidMessage(f"{len(headers)} headers, at most {HEADERS_MAX} are allowed")
    parts: list[bytes] = []
    expires = b""
    for name, value in headers.items():
        if not isinstance(name, str) or len(name) > HEADER_NAME_CHARS_MAX or not _HEADER_NAME.fullmatch(name):
            raise InvalidMessage(f"header name {name!r}: use lower-case letters, digits and '_'")
        if name == EXPIRES and isinstance(value, Expiry):
            expires = b',"expires":"%b"' % value.text().encode()
            continue
        if name in RESERVED:
            raise InvalidMessage(f"header name '{name}' is an attribute of the envelope; choose another name")
        if isinstance(value, str):
            parts.append(b',"%b":%b' % (name.encode(), _text(f"header '{name}'", value, 64 * 1024)))
        elif isinstance(value, (bool, int)):
            parts.append(b',"%b":%b' % (name.encode(), _encode(value)))
        else:
            raise InvalidMessage(
                f"header '{name}' must be text, a whole number or a boolean, not {type(value).__name__}"
            )
    return b"".join(parts) + expires


def bytes_data(data: bytes | bytearray | memoryview) -> bytes:
    """The ``data_base64`` attribute."""
    return b',"data_base64":"%b"' % binascii.b2a_base64(data, newline=False)


def check_id(message_id: object) -> bytes:
    """An id given by the publisher, as bytes; it goes into the line unescaped."""
    if not isinstance(message_id, str) or not _ID.fullmatch(message_id) or '"' in message_id or "\\" in message_id:
        raise InvalidMessage(f"id {message_id!r}: use 1 to 200 printable ASCII characters without quotes and spaces")
    return message_id.encode()


def parse_time(value: str | datetime) -> datetime:
    """A moment from RFC 3339 text or a datetime; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidMessage(f"{value!r} is not a time: write it as 2026-11-15T20:30:01Z") from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def time_us(value: datetime) -> int:
    """An event time in µs, if a log can hold it."""
    us = to_us(value)
    if not 0 <= us < 253_402_300_800_000_000:
        raise InvalidMessage(f"{value.isoformat()} is outside of the years 1970 to 9999")
    return us
