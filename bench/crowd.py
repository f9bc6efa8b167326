"""Many stations in one process, as a hub sees them: the sessions of links, each with its certificate, and no log.

Whole stations would take more memory and processor time than the hub that is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import google_crc32c
import picows

from bench.samples import CHANNEL
from heliograph.federation import events, sockets
from heliograph.federation.rules import Rules
from heliograph.federation.session import Ours, Session
from heliograph.federation.tlsfiles import TlsFiles

AT_ONCE = 20
"""How many shake hands at the same time."""
BODY = (
    b'{"specversion":"1.0","id":"%b-%d","source":"%b","type":"heliograph.data.v1","time":"2026-11-15T23:14:33.000000Z",'
    b'"channel":"%b","data":{"m":"x"},"origin":"%b.k3f9q2","originseq":"0/%d"'
)


def line_of(name: str, number: int) -> bytes:
    """What a station of that name has published."""
    body = BODY % (name.encode(), number, name.encode(), CHANNEL.encode(), name.encode(), number)
    return b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body))


class Edge(picows.WSListener):
    """One station: opens a stream of its channel, sends a message, and is silent from then on."""

    _transport: picows.WSTransport

    def __init__(self, name: str, ready: Callable[[], None]) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._ready = ready
        ours = Ours(name=name, station=name, instance=name, push=(CHANNEL,))
        self._session = Session(ours, Rules("hub"), clock=self._loop.time)

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        """TLS and WebSocket are there."""
        self._transport = transport
        self._step([])
        self._tick()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:  # noqa: ARG002 - as picows calls it
        """Something arrived."""
        if frame.msg_type == picows.WSMsgType.BINARY:
            self._step(self._session.receive(frame.get_payload_as_bytes()))

    def _tick(self) -> None:
        self._step(self._session.tick())
        if not self._session.closed:
            self._loop.call_at(max(self._session.deadline(), self._loop.time() + 0.05), self._tick)

    def _step(self, happened: Iterable[events.Event]) -> None:
        sending = self._session.sending
        for event in happened:
            match event:
                case events.Greeted():
                    self._step(self._session.accept())
                case events.Established():
                    sending.open(CHANNEL, 1, {})
                    self._loop.call_soon(self._tick)  # from now on hearts beat
                case events.Resumed():
                    sending.begin(event.stream, {0: 0})
                    sending.news(event.stream, 0, 1)
                    sending.next_read()
                    sending.send(event.stream, 0, 0, 1, line_of(self._name, 0))
                case events.Acked():
                    self._ready()
                case events.Closed():
                    raise RuntimeError(f"{self._name} was sent away: {event.reason}")
        for head, body in self._session.outgoing():
            self._transport.send(picows.WSMsgType.BINARY, head + bytes(body))


def crowd(line: Connection, path: str, port: int, names: list[str]) -> None:
    """Be all of them until the pipe is closed."""
    asyncio.run(_crowd(line, Path(path), port, names))


async def _crowd(line: Connection, path: Path, port: int, names: list[str]) -> None:
    left, there, turns = set(names), asyncio.Event(), asyncio.Semaphore(AT_ONCE)

    def ready(name: str) -> None:
        left.discard(name)
        if not left:
            there.set()

    async def connect(name: str) -> picows.WSTransport:
        async with turns:
            files = TlsFiles(path / f"{name}.crt", path / f"{name}.key", path / "ca.crt")
            listener = Edge(name, lambda: ready(name))
            return await sockets.dial(f"localhost:{port}", files.client_context, lambda: listener, 16 << 20)

    transports = await asyncio.gather(*[connect(name) for name in names])
    await asyncio.wait_for(there.wait(), 300)
    line.send("there")
    await asyncio.to_thread(_until_closed, line)
    for transport in transports:
        transport.disconnect()


def _until_closed(line: Connection) -> None:
    try:
        line.recv()
    except EOFError:
        return
