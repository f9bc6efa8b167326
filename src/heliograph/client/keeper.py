"""Keeps a client connected: dials, and dials again after a pause, for as long as the client lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import Callable
from typing import Final

import picows

from heliograph.client.line import Line, nothing_here, text_of
from heliograph.config.federated import is_address
from heliograph.errors import (
    CertificateError,
    ConfigError,
    HeliographError,
    InvalidArgument,
    NotAllowed,
    ProtocolError,
    StationClosed,
    Unreachable,
)
from heliograph.federation import sockets
from heliograph.federation.backoff import failures_after, pause_s
from heliograph.federation.events import Called
from heliograph.federation.identity import software
from heliograph.federation.session import Ours
from heliograph.federation.tls import refusal
from heliograph.federation.tlsfiles import TlsFiles

logger = logging.getLogger("heliograph.client")
HEARTBEAT_S: Final = 5.0
FRAME_BYTES: Final = 32 << 20
PORT: Final = 7740

_REFUSALS: Final[dict[str, type[HeliographError]]] = {
    "unknown": NotAllowed, "name": CertificateError, "certificate": CertificateError, "version": ProtocolError,
    "protocol": ProtocolError,
}  # fmt: skip
"""What does not go away by trying again."""


def address_of(url: str) -> str:
    """Host and port of a hub.

    >>> address_of("wss://hub.example:7740"), address_of("wss://hub.example/"), address_of("[::1]:7000")
    ('hub.example:7740', 'hub.example:7740', '[::1]:7000')
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"{url!r} is not a hub's address: use wss://HOST:PORT")
    scheme, found, rest = url.partition("://")
    if found and scheme != "wss":
        raise ConfigError(f"{url!r} is not a hub's address: use wss://HOST:PORT")
    host = (rest if found else url).rstrip("/")
    if not host or "/" in host:
        raise ConfigError(f"{url!r} is not a hub's address: use wss://HOST:PORT")
    if ":" not in host.rpartition("]")[2]:
        host = f"{host}:{PORT}"
    if not is_address(host):
        raise ConfigError(f"{url!r} is not a hub's address: use wss://HOST:PORT")
    return host


class Keeper:
    """The connection of one client, whichever it is now."""

    def __init__(self, address: str, tls: TlsFiles, called: Callable[[Line, Called], None] = nothing_here) -> None:
        self._called = called
        self._address = address
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._ours = Ours(
            name=tls.name, station=os.urandom(16).hex(), instance=os.urandom(8).hex(), software=software(),
            heartbeat_s=HEARTBEAT_S, frame_bytes=FRAME_BYTES, zstd=False, ephemeral=True,
        )  # fmt: skip
        self._line: Line | None = None
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._error: HeliographError = Unreachable(f"no connection to the hub {address} yet")
        self.hub = ""
        self._task = self._loop.create_task(self._run())

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._line is not None

    async def line(self, until: float) -> Line:
        """A connection that works; an error if there is none by then, or if waiting is of no use."""
        while True:
            if self._line is not None and self._line.working:
                return self._line
            if self._stop.is_set():
                raise StationClosed("the client is closed")
            if not isinstance(self._error, Unreachable):
                raise self._error
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), max(0.0, until - self._loop.time()))
            except TimeoutError:
                raise self._error from None

    def _tell(self) -> None:
        """Wake whoever waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Leave."""
        self._stop.set()
        self._tell()
        if self._line is not None:
            self._line.bye()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), 2.0)
        self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            held, refused = await self._try()
            if self._stop.is_set():
                return
            self._tell()
            failures = failures_after(failures, held, refused=refused)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s(failures, random.random()))

    async def _try(self) -> tuple[float, bool]:
        """The same as ``_once``, whatever goes wrong: whoever waits is told, and it is tried again."""
        try:
            return await self._once()
        except Exception as error:
            logger.exception("the connection to the hub %s failed, and is made again", self._address)
            self._line = None
            self._error = Unreachable(f"the hub {self._address} was not reached: {type(error).__name__}: {error}")
            return 0.0, False

    async def _once(self) -> tuple[float, bool]:
        """Connect and stay so as long as it goes: how long that was, and whether it was refused."""
        made: list[Line] = []

        def listener() -> Line:
            made.append(Line(self._ours, self._tls, self._called))
            return made[0]

        self._tls.refresh()
        try:
            sockets.Hushed.make(asyncio.get_running_loop())
            await sockets.dial(self._address, self._tls.client_context, listener, FRAME_BYTES)
        except (OSError, TimeoutError, picows.WSError) as error:
            refused = self._failed(error)
            return 0.0, refused
        line = made[0]
        await line.up.wait()
        if line.working:
            self._line = line
            self.hub = "" if line.peer is None else line.peer.name
            self._error = Unreachable(f"the connection to the hub {self._address} was lost, and is not there again yet")
            self._tell()
            if self._stop.is_set():
                line.bye()
            await line.over.wait()
            self._line = None
            held = self._loop.time() - line.began
        else:
            held = 0.0
        return held, self._ended(line)

    def _failed(self, error: BaseException) -> bool:
        """It could not be dialled; whether a certificate is the reason."""
        wrong = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        text = f"the hub {self._address} was not reached: {refusal(error)}"
        self._error = CertificateError(text) if wrong else Unreachable(text)
        return wrong

    def _ended(self, line: Line) -> bool:
        """The connection is over; whether somebody refused it."""
        closed = line.closed
        if closed is None or self._stop.is_set():
            return False
        code = closed.refusal if closed.code == "refused" else closed.code
        kind = _REFUSALS.get(code, Unreachable)
        text = text_of(closed)
        self._error = line.error or kind(
            f"the hub {self._address} refused: {text}"
            if closed.code == "refused"
            else f"no connection to the hub {self._address}: {text}"
        )
        logger.warning("the connection to the hub %s ended: %s", self._address, text)
        return kind is not Unreachable
