"""Whether bytes move on a connection though no whole frame comes: on a slow line a large one takes its time.

What arrives tells the kernel; what leaves is seen by how much still waits for the line. On a dead line nothing moves
either way, nor if the process at the other end stands still, once all that lies between is full.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
from typing import Final

from heliograph.federation import sockets

_LAST_DATA: Final = struct.Struct("52xI")  # tcpi_last_data_recv of Linux: milliseconds since the last byte came


class Moving:
    """The bytes of one connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._left = 0

    def still_s(self) -> float:
        """How long nothing has moved, as far as that is known: for ever where the kernel does not tell."""
        left = self._transport.get_write_buffer_size() + sockets.queued(self._socket.fileno())
        before, self._left = self._left, left
        return 0.0 if left < before else self._silent_s()

    def _silent_s(self) -> float:
        if sys.platform != "linux":
            return math.inf
        try:
            found = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size)
            return int(_LAST_DATA.unpack(found)[0]) / 1000
        except (OSError, struct.error):  # it is closed
            return math.inf
