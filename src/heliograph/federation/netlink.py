"""Word of the kernel that the network changed: an interface came up, an address or a route was added. Linux only.

A socket of the kernel's own says so; nothing is asked and nothing is polled. Elsewhere, or where such sockets are not
allowed, nobody is told anything, and links come back when their pause is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

logger = logging.getLogger("heliograph.links")

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_INTERFACE: Final = struct.Struct("=BxHiII")  # family, type, index, flags, change: of a message about an interface
_GROUPS: Final = 0x1 | 0x10 | 0x40 | 0x100 | 0x400  # interfaces; addresses and routes of IPv4; the same of IPv6
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 20, 24
_RUNNING: Final = 0x1 | 0x40  # IFF_UP, IFF_RUNNING
_BYTES: Final = 64 * 1024

SETTLE_S: Final = 0.1
"""Changes come in swarms: an interface, its addresses, its routes. They are told as one."""
EVERY_S: Final = 1.0
"""Not more often than this, whatever happens: a host that starts containers all the time must not dial all the time."""


def returns(data: bytes) -> bool:
    """Whether messages of the kernel say that something works which did not.

    >>> returns(b""), returns(_HEADER.pack(16, _NEW_ROUTE, 0, 0, 0)), returns(_HEADER.pack(16, 25, 0, 0, 0))
    (False, True, False)
    """
    return any(
        kind in (_NEW_ADDRESS, _NEW_ROUTE)
        or (
            kind == _NEW_LINK
            and len(body) >= _INTERFACE.size
            and _INTERFACE.unpack_from(body)[3] & _RUNNING == _RUNNING
        )
        for kind, body in _messages(data)
    )


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kinds and bodies of what arrived; it ends where it makes no sense any more."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


class NetworkNews:
    """Calls ``on_return`` in the event loop when the network may work again."""

    def __init__(self, on_return: Callable[[], None]) -> None:
        self._on_return = on_return
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.TimerHandle | None = None
        self._told = float("-inf")
        self._socket = _open()
        if self._socket is not None:
            self._loop.add_reader(self._socket.fileno(), self._read)

    @property
    def listening(self) -> bool:
        """Whether there is anything to be heard here."""
        return self._socket is not None

    def _read(self) -> None:
        assert self._socket is not None
        changed = False
        try:
            while data := self._socket.recv(_BYTES):
                changed = returns(data) or changed
        except BlockingIOError:
            pass
        except OSError:  # more happened than the kernel keeps: ENOBUFS
            changed = True
        if changed and self._due is None:
            wait = max(SETTLE_S, self._told + EVERY_S - self._loop.time())
            self._due = self._loop.call_later(wait, self._tell)

    def _tell(self) -> None:
        self._due, self._told = None, self._loop.time()
        self._on_return()

    def close(self) -> None:
        """Listen no more. Safe to call again."""
        if self._due is not None:
            self._due.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None


def _open() -> socket.socket | None:
    with contextlib.suppress(AttributeError, OSError):  # another system, or not allowed here
        found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        try:
            found.setblocking(False)
            found.bind((0, _GROUPS))
        except OSError:
            found.close()
            raise
        return found
    return None
