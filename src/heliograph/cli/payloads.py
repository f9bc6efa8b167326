"""What bytes from a command line, a file or a pipe mean as a payload."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, Final

import msgspec

from heliograph.errors import InvalidMessage

MODES: Final = ("auto", "json", "text", "base64", "bytes")
_decode = msgspec.json.decode


class Reader:
    """Turns bytes into payloads; ``warn`` hears, once, of what only looks like JSON."""

    def __init__(self, mode: str, warn: Callable[[str], None]) -> None:
        self._warn: Callable[[str], None] | None = warn
        self.payload: Callable[[bytes], Any] = getattr(self, f"_{mode}")

    def _auto(self, raw: bytes) -> Any:
        if raw.lstrip()[:1] in (b"{", b"["):
            try:
                return _decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if raw.lstrip()[:1] == b"{" and self._warn is not None:
                    self._warn(f"begins like JSON but is not ({error}), so it is published as text; --as json insists")
                    self._warn = None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    def _json(self, raw: bytes) -> Any:
        try:
            return _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidMessage(f"not JSON: {error}") from None

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(f"not text in UTF-8 ({error}); --as bytes takes anything") from None

    def _base64(self, raw: bytes) -> bytes:
        try:
            return binascii.a2b_base64(b"".join(raw.split()), strict_mode=True)
        except binascii.Error as error:
            raise InvalidMessage(f"not base64: {error}") from None

    def _bytes(self, raw: bytes) -> bytes:
        return raw
