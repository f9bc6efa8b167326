"""Lines that are decoded one by one: with headers, bytes, escapes, or of a publisher that writes in another order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from heliograph.expiry import NEVER, Expiry
from heliograph.message import RESERVED


class _Envelope(msgspec.Struct):
    """What every message has, and what must be text if it is there: as ``heliograph.Message`` has it."""

    id: str
    source: str
    type: str
    time: datetime
    channel: str
    partitionkey: str | None = None
    correlationid: str | None = None
    traceparent: str | None = None
    subject: str | None = None
    data_base64: bytes | None = None


_envelope: Final = msgspec.json.Decoder(_Envelope)
_attributes: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode
_plain: Final = msgspec.json.Decoder()


class Odd(NamedTuple):
    """A decoded line."""

    time: datetime
    bytes: bytes | None
    raw: dict[str, msgspec.Raw]

    def text(self, name: str) -> str | None:
        """An attribute as text: what is no text as JSON."""
        raw = self.raw.get(name)
        text = "null" if raw is None else bytes(raw).decode()
        if text.startswith('"'):
            return str(self.value(name))
        return None if text == "null" else text

    def value(self, name: str) -> Any:
        """An attribute as JSON has it; None if it is not there, or a number that Python cannot hold."""
        raw = self.raw.get(name)
        try:
            return None if raw is None else _plain.decode(raw)
        except msgspec.ValidationError:
            return None

    def json(self) -> str | None:
        """The payload as JSON text; None if there is none, or it is null."""
        raw = self.raw.get("data")
        text = None if raw is None else bytes(raw).decode()
        return None if text == "null" else text

    def headers(self) -> dict[str, str]:
        """Everything that the envelope does not know: a publisher's headers, and what a later version may add."""
        return {name: self.text(name) or "" for name in self.raw if name not in RESERVED}

    def headers_json(self) -> str | None:
        """The same as a JSON object, in which a number is a number; None if there are none."""
        found = {name: raw for name, raw in self.raw.items() if name not in RESERVED}
        return _encode(found).decode() if found else None

    def expires(self) -> datetime | None:
        """When it ends, if that can be read."""
        found = Expiry.read(self.value("expires"))
        return None if found == NEVER else found


def decode(line: bytes) -> Odd | str:
    """A line, or why it is no message."""
    try:
        envelope = _envelope.decode(line)
        raw = _attributes.decode(line)
        for value in raw.values():
            bytes(value).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"not a message: {error}"
    time = envelope.time if envelope.time.tzinfo else envelope.time.replace(tzinfo=UTC)
    return Odd(time, envelope.data_base64, raw)
