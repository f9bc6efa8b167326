"""From an event that a client sends to the publisher's part of a line. Pure.

Nothing is taken over but values: the line is written anew, so that a client cannot say what only a station may
(``origin``, ``crc`` …), say anything twice, or publish in another's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from heliograph.errors import InvalidMessage, NotAllowed, PayloadMismatch
from heliograph.expiry import NAME as EXPIRES
from heliograph.expiry import Expiry
from heliograph.message import (
    PayloadDecoder,
    Timestamps,
    attributes,
    bytes_data,
    check_id,
    parse_time,
    template,
    time_us,
)
from heliograph.nesting import SHALLOW_BYTES_MAX, refuse_too_deep
from heliograph.payloads import check_type_name

_SOURCE_CHARS_MAX: Final = 512
_event = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_bytes = msgspec.json.Decoder(bytes).decode
_value = msgspec.json.Decoder().decode
_timestamps = Timestamps()


class Accepted(NamedTuple):
    """An event as it will be stored."""

    body: bytes
    id: str
    key: str | None
    time_us: int


def accept(
    line: bytes, channel: str, peer: str, payload_decoder: PayloadDecoder, added: Mapping[str, str] | None = None,
    into: str | None = None,
) -> Accepted:  # fmt: skip
    """Check an event of a peer. InvalidMessage says what is wrong with it, NotAllowed that it is another's.

    ``added``: headers that the hub sets itself. ``into``: another channel to store it in.

    >>> line = b'{"specversion":"1.0","id":"1","source":"host1","type":"t","time":"2026-11-15T20:30:01Z","data":[1, 2]}'
    >>> accept(line, "alerts", "host1", lambda _: None).body
    b'{"specversion":"1.0",...,"time":"2026-11-15T20:30:01.000000Z","channel":"alerts","data":[1, 2]'
    """
    try:
        said = _event(line)
        words = {name: _text(said.pop(name)) for name in _WORDS if name in said}
        data = _data(said, words.get("type", ""), payload_decoder)
        headers = {name: _value(raw) for name, raw in said.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"this is no event: {error}") from None
    if words.get("specversion") != "1.0" or words.get("channel", channel) != channel:
        raise InvalidMessage(f"an event for '{channel}' has specversion 1.0 and no other channel")
    source, type_name = words.get("source", ""), words.get("type", "")
    _check_source(source, peer)
    check_type_name(type_name)
    moment = _moment(words.get("time", ""))
    if EXPIRES in headers:
        headers[EXPIRES] = Expiry.read(headers[EXPIRES])
    if added:
        headers |= added
    key = words.get("partitionkey")
    begin = template(into or channel, type_name, source) % (check_id(words.get("id")), _timestamps.format(moment))
    rest = attributes(key, words.get("correlationid"), words.get("traceparent"), words.get("subject"), headers)
    return Accepted(begin + rest + data, words["id"], key, moment)


_WORDS: Final = (
    "specversion", "id", "source", "type", "time", "channel", "partitionkey", "correlationid", "traceparent", "subject",
)  # fmt: skip


def _data(said: dict[str, msgspec.Raw], type_name: str, payload_decoder: PayloadDecoder) -> bytes:
    raw, encoded = said.pop("data", None), said.pop("data_base64", None)
    if encoded is not None:
        if raw is not None:
            raise InvalidMessage("an event has data or data_base64, not both")
        whole = _bytes(encoded)
        _fits(type_name, whole, payload_decoder, binary=True)
        return bytes_data(whole)
    data = b"null" if raw is None else bytes(raw)
    _value(data)  # what was not looked at so far may be no JSON
    if len(data) > SHALLOW_BYTES_MAX:
        refuse_too_deep(data)
    _fits(type_name, data, payload_decoder, binary=False)
    return b',"data":' + data


def _fits(type_name: str, data: bytes, payload_decoder: PayloadDecoder, *, binary: bool) -> None:
    decode = payload_decoder(type_name)
    if decode is not None:
        try:
            decode(data, binary)
        except InvalidMessage as error:
            raise PayloadMismatch(str(error)) from None


def _check_source(source: str, peer: str) -> None:
    if len(source) > _SOURCE_CHARS_MAX:
        raise InvalidMessage(f"the source of an event has {len(source)} characters, at most {_SOURCE_CHARS_MAX}")
    if source != peer and not source.startswith(f"{peer}/"):
        raise NotAllowed(f"{peer} is not allowed to publish as '{source}': the source is its own name, or NAME/SERVICE")


def _moment(text: str) -> int:
    moment: datetime = parse_time(text)
    return time_us(moment)
