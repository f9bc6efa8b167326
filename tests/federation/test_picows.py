"""The contexts with the WebSocket library that links are made of, and how a listening hub takes new files into use."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import picows
import pytest
import uvloop

from heliograph.errors import CertificateError
from heliograph.federation.tls import refusal
from heliograph.federation.tlsfiles import Peer, TlsFiles
from tests.federation.pki import Pki


class Echo(picows.WSListener):
    """Says everything back; knows who is there."""

    def __init__(self, files: TlsFiles, links: list[Echo]) -> None:
        self.files = files
        self.links = links
        self.peer: Peer | None = None

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport
        try:
            self.peer = self.files.peer(transport.underlying_transport.get_extra_info("ssl_object"))
        except CertificateError:
            transport.disconnect()
            return
        self.links.append(self)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())


class Client(picows.WSListener):
    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        self.heard.put_nowait(frame.get_payload_as_bytes())

    async def works(self) -> bool:
        self.transport.send(picows.WSMsgType.BINARY, b"ping")
        return await asyncio.wait_for(self.heard.get(), 20) == b"ping"


async def dial(files: TlsFiles, port: int) -> Client:
    _, client = await picows.ws_connect(
        Client, f"wss://localhost:{port}/", ssl_context=files.client_context, websocket_handshake_timeout=20
    )  # fmt: skip
    if client is None:  # refused after the handshake, which in TLS 1.3 is where a client learns of it
        raise ConnectionResetError
    assert isinstance(client, Client)
    return client


async def listen(files: TlsFiles, links: list[Echo], sock: socket.socket) -> asyncio.Server:
    """A second listener on the same socket: while one is replaced by the other, nobody is turned away."""
    return await picows.ws_create_server(
        lambda _: Echo(files, links), sock=sock.dup(), ssl=files.server_context, ssl_handshake_timeout=2
    )  # fmt: skip


def run(main: Callable[[], Awaitable[None]], loop: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(main())  # type: ignore[arg-type]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_links_survive_a_reload_and_new_ones_use_the_new_files(pki: Pki, loop: str) -> None:
    pki.issue("host2")
    hub, host1, host2 = pki.files("hub"), pki.files("host1"), pki.files("host2")

    async def main() -> None:
        links: list[Echo] = []
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        server = await listen(hub, links, sock)
        first, second = await dial(host1, port), await dial(host2, port)
        assert await first.works() and await second.works()
        assert [link.peer.name for link in links if link.peer] == ["host1", "host2"]

        pki.revoke("host1")
        changed = asyncio.Event()
        current = asyncio.get_running_loop()
        with hub.watch(lambda: current.call_soon_threadsafe(changed.set), interval_s=0.02):
            await asyncio.wait_for(changed.wait(), 30)
        old, server = server, await listen(hub, links, sock)
        old.close()

        assert await first.works() and await second.works(), "nobody was dropped by the reload"
        ended = [link for link in links if link.peer and not hub.still_valid(link.peer.certificate)]
        assert [link.peer.name for link in ended if link.peer] == ["host1"]
        for link in ended:
            link.transport.disconnect()
        assert await second.works()
        await asyncio.wait_for(first.transport.wait_disconnected(), 20)

        with pytest.raises(OSError) as caught:
            await dial(host1, port)
        assert "its log says why" in refusal(caught.value) or "revoked" in refusal(caught.value)
        third = await dial(host2, port)
        assert await third.works()
        for client in (second, third):
            client.transport.disconnect()
        server.close()
        sock.close()

    run(main, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_hub_of_another_name_is_refused_with_the_reason(pki: Pki, loop: str) -> None:
    hub, host = pki.files("host1"), pki.files("hub")

    async def main() -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        server = await listen(hub, [], sock)
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            await dial(host, sock.getsockname()[1])
        assert "another name" in refusal(caught.value)
        server.close()
        sock.close()

    run(main, loop)
