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
        self._size = 0

    def whole(self, frame: picows.WSFrame) -> bytes | memoryview | None:
        """A frame of ours, good until this callback ends; None if more will come. ProtocolError if it is too large."""
        if frame.fin and not self._parts:
            return frame.get_payload_as_memoryview()
        part = frame.get_payload_as_bytes()
        self._parts.append(part)
        self._size += len(part)  # not counted anew each time: a peer may send thousands of next to nothing
        if self._size > self._bytes_max or len(self._parts) > FRAGMENTS_MAX:
            self._parts, self._size = [], 0
            raise ProtocolError("a frame in fragments that is too large")
        if not frame.fin:
            return None
        whole, self._parts, self._size = b"".join(self._parts), [], 0
        return whole
