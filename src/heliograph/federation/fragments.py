"""Frames that a library on the other side cut in WebSocket fragments, put together again."""

from __future__ import annotations

from typing import Final

import picows

from heliograph.errors import ProtocolError

FRAGMENTS_MAX: Final = 10_000


class Fragments:
    """Puts fragments together, up to so many bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []

    def whole(self, frame: picows.WSFrame) -> bytes | memoryview | None:
        """A frame of ours, good until this callback ends; None if more will come. ProtocolError if it is too large."""
        if frame.fin and not self._parts:
            return frame.get_payload_as_memoryview()
        self._parts.append(frame.get_payload_as_bytes())
        if sum(map(len, self._parts)) > self._bytes_max or len(self._parts) > FRAGMENTS_MAX:
            self._parts = []
            raise ProtocolError("a frame in fragments that is too large")
        if not frame.fin:
            return None
        whole, self._parts = b"".join(self._parts), []
        return whole
