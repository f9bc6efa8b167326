"""Sockets that speak WebSocket over TLS: dialling, and accepting by ourselves.

Who accepts by itself hears why a handshake failed, counts connections before they cost anything, and uses new
certificates for the next connection. picows has no public door for that, so its protocol is made here as it makes it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import socket
import sys
from collections.abc import Callable
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final

import aiofastnet
import picows
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from heliograph.errors import ConfigError

HANDSHAKE_S: Final = 5.0
"""How long TLS, and then the WebSocket upgrade, may take."""
SHUTDOWN_S: Final = 1.0
READ_BUFFER_BYTES: Final = 4 * 1024
"""What a frame is read into; it grows with the frames."""
TLS_BUFFER_BYTES: Final = 4 * (16 * 1024 + 64)
"""Some records of TLS in either direction: each link keeps so much for ever, once it was busy."""
BACKLOG: Final = 1024

_NOT_SENT: Final = 0x894B  # SIOCOUTQNSD of Linux

logger = logging.getLogger("heliograph.links")
_quiet = logging.getLogger("heliograph.links.socket")
_quiet.setLevel(logging.ERROR)
logging.getLogger("aiofastnet").addHandler(logging.NullHandler())  # who wants to hear of late writes adds another


def queued(descriptor: int) -> int:
    """Bytes that the kernel took and has not sent: what a slow line leaves there. 0 where it does not tell."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, _NOT_SENT, bytes(4)), sys.byteorder)
    except OSError:  # another system, or closed
        return 0


def on_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody caught in the event loop. Handshakes that fail come here, too: those are audited elsewhere, and
    whoever connects must not be able to fill the log.
    """
    error = context.get("exception")
    if isinstance(error, OSError) or _hung_up(context):
        logger.debug("%s: %s", context.get("message"), error)
        return
    found = error if isinstance(getattr(error, "__traceback__", None), TracebackType) else None
    logger.error("%s: %s", context.get("message"), error, exc_info=found)


def _hung_up(context: dict[str, Any]) -> bool:
    """The other side hung up in the handshake: aiofastnet says so to the event loop with a class instead of an error,
    of which logging cannot write the traceback. Whoever dials or accepts is told, too.
    """
    return context.get("exception") is ConnectionResetError


class Hushed:
    """What an event loop that is not ours does with errors, as before, but for those that are told elsewhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._before = loop.get_exception_handler()
        loop.set_exception_handler(self)

    @classmethod
    def make(cls, loop: asyncio.AbstractEventLoop) -> None:
        """Have a loop hushed, once."""
        if not isinstance(loop.get_exception_handler(), cls):
            cls(loop)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Pass it on, unless whoever dials says it anyway."""
        if _hung_up(context):
            return
        if self._before is None:
            loop.default_exception_handler(context)
        else:
            self._before(loop, context)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    >>> split_address("hub.example:7740"), split_address("[::1]:7740"), split_address(":0")
    (('hub.example', 7740), ('::1', 7740), ('', 0))
    """
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def written(peer: Any) -> str:
    """What ``getpeername`` says as a person writes it: ``split_address`` the other way round.

    >>> written(("10.0.0.7", 7740)), written(("::1", 7740, 0, 0)), written(("::ffff:10.0.0.7", 7740, 0, 0))
    ('10.0.0.7:7740', '[::1]:7740', '10.0.0.7:7740')
    """
    if not peer:
        return ""
    host = str(peer[0]).removeprefix("::ffff:")  # who came over IPv4 to a socket of both families
    return f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"


def listen(address: str) -> socket.socket:
    """A listening socket; without a host on every address, of both families where there are two."""
    host, port = split_address(address)
    try:
        if not host and socket.has_dualstack_ipv6():
            found = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            found = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"hub.listen = {address!r}: {getattr(error, 'strerror', '') or error}") from error
    found.setblocking(False)
    return found


async def accept(
    connection: socket.socket, context: SSLContext, listener: Callable[[], picows.WSListener], frame_bytes_max: int
) -> None:
    """Shake hands over an accepted connection; OSError says why that failed. The listener hears the rest."""

    def protocol() -> Any:
        return WSProtocol(
            None, None, False, lambda _: listener(), _quiet, True, HANDSHAKE_S, False, 20, 20,
            picows.WSAutoPingStrategy.PING_WHEN_IDLE, True, frame_bytes_max, None, READ_BUFFER_BYTES,
        )  # fmt: skip

    _, made = await aiofastnet.connect_accepted_socket(
        asyncio.get_running_loop(), protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_S,
        ssl_shutdown_timeout=SHUTDOWN_S, ssl_incoming_bio_size=TLS_BUFFER_BYTES, ssl_outgoing_bio_size=TLS_BUFFER_BYTES,
    )  # fmt: skip
    await made.wait_until_handshake_complete()


async def dial(
    address: str, context: SSLContext, listener: Callable[[], picows.WSListener], frame_bytes_max: int
) -> picows.WSTransport:
    """Connect to a hub; OSError or picows.WSError says why not."""
    try:
        async with asyncio.timeout(2 * HANDSHAKE_S):
            transport, made = await picows.ws_connect(
                listener, f"wss://{address}/", ssl_context=context, websocket_handshake_timeout=HANDSHAKE_S,
                max_frame_size=frame_bytes_max, logger_name=_quiet, max_redirects=0, ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )  # fmt: skip
    except UnicodeError as error:  # a label of a name is empty, or too long
        raise OSError(errno.EINVAL, f"{address!r} is no address: {error}") from None
    if made is None:  # refused after the handshake, which in TLS 1.3 is where a client learns of it
        raise ConnectionResetError("hung up")
    return transport
