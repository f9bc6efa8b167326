"""Envelopes that come from elsewhere (an import, a dead letter) made into bodies that can be appended.

What the publisher said stays byte for byte: id, source, type, time, headers, data, and every field that this
version does not know. What a log adds (origin, its sequence, batch, producer, checksum) is taken off: the log
that stores the message next adds its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from heliograph.clock import from_us
from heliograph.delivery.deadletter import DEAD_LETTER_TYPE, identity_of
from heliograph.errors import HeliographError, InvalidMessage
from heliograph.limits import ID_CHARS_MAX
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.message import (
    Message,
    PayloadDecoder,
    Timestamps,
    decode_line,
    key_attribute,
    parse_time,
    time_us,
)
from heliograph.names import DEAD_LETTER, check_name
from heliograph.nesting import SHALLOW_BYTES_MAX, refuse_too_deep

ADDED_BY_LOGS: Final = frozenset(["batch", "origin", "originseq", "producer", "producerseq", "crc"])
_TEXTS: Final = ("partitionkey", "correlationid", "traceparent", "subject")
_PLACED: Final = frozenset(
    ["specversion", "id", "source", "type", "time", "channel", "data", "data_base64", *_TEXTS, *ADDED_BY_LOGS]
)
_AROUND_ORIGINAL: Final = 2
"""Levels of a dead letter around its original's payload: its own data, and the original's envelope."""
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_moment = msgspec.json.Decoder(datetime)

Fields = dict[str, msgspec.Raw]


class Body(NamedTuple):
    """An envelope without what the log adds, its event time, and the message it will be read as."""

    data: bytes
    moment: datetime
    message: Message


def read_fields(line: bytes) -> Fields:
    """The attributes of an envelope, each as the bytes it was written with."""
    try:
        fields = _fields.decode(line)
        msgspec.json.decode(line)  # the bytes of an attribute are not looked into above
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"not a JSON object: {error}") from None
    except RecursionError:
        raise InvalidMessage("nested too deeply") from None
    if b"\n" in line:
        raise InvalidMessage("holds a line break")
    return fields


def channel_of(fields: Fields) -> str:
    """The channel that an envelope names; it must be one that can be published to."""
    if "channel" not in fields:
        raise InvalidMessage("names no channel; say which one to import into")
    name = check_name(_string(fields, "channel"))
    if name.endswith(DEAD_LETTER) and not _is_letter(fields):
        raise InvalidMessage(f"'{name}' holds dead letters only, and this is none")
    return name


def _is_letter(fields: Fields) -> bool:
    data = msgspec.json.decode(fields["data"]) if "data" in fields else None
    return _string(fields, "type") == DEAD_LETTER_TYPE and identity_of(data) is not None


def body_of(
    fields: Fields, channel: str, now_us: int, *, bytes_max: int | None = None, payloads: PayloadDecoder | None = None
) -> Body:
    """An envelope for a channel, checked so that what is stored can be delivered."""
    fields = {name: raw for name, raw in fields.items() if name == "data" or bytes(raw) != b"null"}
    version = _string(fields, "specversion") if "specversion" in fields else "1.0"
    if version != "1.0":
        raise InvalidMessage(f"is CloudEvents {version}, not 1.0")
    if "data_base64" in fields and bytes(fields.get("data", b"null")) != b"null":
        raise InvalidMessage("has both data and data_base64")
    if bytes_max is not None:
        _as_published(fields, channel)
    moment, time = _time(fields, now_us)
    parts = [b'{"specversion":"1.0"', *[_required(fields, name) for name in ("id", "source", "type")]]
    parts.append(b',"time":%b,"channel":%b' % (time, _encode(channel)))
    parts += [b',"%b":%b' % (name.encode(), _encode(_string(fields, name))) for name in _TEXTS if name in fields]
    parts += [b",%b:%b" % (_encode(name), bytes(raw).strip()) for name, raw in fields.items() if name not in _PLACED]
    last = "data_base64" if "data_base64" in fields else "data"
    if last in fields:
        parts.append(b',"%b":%b' % (last.encode(), bytes(fields[last]).strip()))
    data = b"".join(parts)
    if bytes_max is not None and len(data) > bytes_max - TAIL_BYTES_MAX:
        raise InvalidMessage(f"has about {len(data) + TAIL_BYTES_MAX} bytes, messages.max_bytes is {bytes_max}")
    return Body(data, moment, _as_read(data, payloads))


def _as_published(fields: Fields, channel: str) -> None:
    """Refuse what publishing would refuse, too."""
    if "partitionkey" in fields:
        key_attribute(_string(fields, "partitionkey"))
    for raw in fields.values():
        text = bytes(raw)
        if len(text) > SHALLOW_BYTES_MAX:
            refuse_too_deep(text, around=_AROUND_ORIGINAL if channel.endswith(DEAD_LETTER) else 0)


def _required(fields: Fields, name: str) -> bytes:
    if name not in fields:
        raise InvalidMessage(f"has no {name}")
    value = _encode(_string(fields, name))
    if not 2 < len(value) <= ID_CHARS_MAX:
        raise InvalidMessage(f"its {name} is empty or longer than {ID_CHARS_MAX} bytes")
    return b',"%b":%b' % (name.encode(), value)


def _string(fields: Fields, name: str) -> str:
    try:
        return _text.decode(fields[name])
    except msgspec.MsgspecError:
        raise InvalidMessage(f"its {name} is not text") from None


def _time(fields: Fields, now_us: int) -> tuple[datetime, bytes]:
    if "time" not in fields:
        return from_us(now_us), b'"%b"' % Timestamps().format(now_us)
    try:
        moment = _moment.decode(fields["time"])
        stored = bytes(fields["time"]).strip()
    except msgspec.MsgspecError:
        moment = parse_time(_string(fields, "time"))
        stored = b""
    us = time_us(moment)
    if moment.tzinfo is None or not stored:
        return from_us(us), b'"%b"' % Timestamps().format(us)
    return moment, stored


def _as_read(data: bytes, payloads: PayloadDecoder | None) -> Message:
    """Read it as a subscriber will: what cannot be delivered must not be stored."""
    try:
        return decode_line(data + b"}", 0, 0, payloads)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidMessage(str(error)) from None
    except HeliographError as error:
        raise InvalidMessage(str(error)) from None
