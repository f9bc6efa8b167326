"""Peers, and strangers, that mean harm: refused, audited, bounded; and whoever is honest goes on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.federation import frames
from tests.federation.stations import Net, Process, audited, lines, payloads, up, wait_for
from tests.federation.test_links_rules import attack, line


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def rules(**hub: object) -> dict[str, object]:
    peers = [{"name": "host1", "publish": [">"], "subscribe": [">"]}, {"name": "good", "publish": ["alerts"]}]
    return {"peers": peers, "hub": hub}


@contextlib.contextmanager
def hub_process(net: Net, **hub: object) -> Iterator[tuple[Process, hg.Station]]:
    """A hub in a process of its own, and an honest station that is linked to it from beginning to end."""
    net.station("hub", **rules(**hub))  # type: ignore[arg-type]
    net.station("good", links=[{"hub": "hub", "publish": ["alerts"]}])
    net.pki.issue("host1")
    process = net.run("hub")
    try:
        with net.open("good") as good:
            wait_for(lambda: up(good, "hub"))
            yield process, good
            good.publish("alerts", "all the same")
            wait_for(lambda: "all the same" in payloads(net.path("hub"), "alerts"))
            assert up(good, "hub") and good.links()[0].reconnects == 0
        assert process.end() == 0
        assert len(process.complaints().splitlines()) <= 300, "a hundred lines a minute, and no stack traces"
        assert "Traceback" not in process.complaints()
    finally:
        if process.child.poll() is None:
            process.kill()


def resident_bytes(process: Process) -> int:
    return int(Path(f"/proc/{process.child.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors(process: Process) -> int:
    return len(list(Path(f"/proc/{process.child.pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("connections", [2_000, pytest.param(10_000, marks=pytest.mark.prove)])
def test_thousands_of_connections_cost_little_and_disturb_nobody(net: Net, connections: int) -> None:
    """A thousand at a time, none of which says anything."""
    with hub_process(net, connections_max=100) as (process, good):
        before, refused = resident_bytes(process), 0
        for batch in range(connections // 1_000):
            with contextlib.ExitStack() as stack:
                found = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", net.port("hub")), timeout=20))
                    for _ in range(1_000)
                ]
                if batch == 1:
                    good.publish("alerts", "in the middle of it")
                    wait_for(lambda: "in the middle of it" in payloads(net.path("hub"), "alerts"))
                refused += hung_up(found, 890)
        assert refused >= connections * 0.89
        grown = resident_bytes(process) - before
        print(f"{refused} of {connections} refused, {grown / 1e6:.1f} MB more")
        assert grown < 64 << 20
        wait_for(lambda: descriptors(process) < 200)
        records = audited(net.path("hub"), "link-refused")
        assert any("connections_max" in record["why"] for record in records)
        assert len(records) <= 300, "a hundred a minute"


def hung_up(connections: list[socket.socket], wanted: int) -> int:
    """Wait until so many of them are at their end; how many are."""
    left, until = set(connections), time.monotonic() + 30
    with selectors.DefaultSelector() as selector:
        for one in connections:
            selector.register(one, selectors.EVENT_READ)
        while len(connections) - len(left) < wanted:
            assert time.monotonic() < until, f"{len(left)} are still held"
            for key, _ in selector.select(1.0):
                with contextlib.suppress(OSError):
                    assert key.fileobj.recv(1) == b""  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
                left.discard(key.fileobj)  # type: ignore[arg-type]
    return len(connections) - len(left)


def tls(net: Net, name: str = "host1") -> ssl.SSLSocket:
    """A connection of somebody with a good certificate, after the handshake."""
    context = net.pki.files(name).client_context
    for _ in range(5):  # a machine that has other things to do may take longer than the time that tests allow for it
        plain = socket.create_connection(("127.0.0.1", net.port("hub")), timeout=30)
        with contextlib.suppress(ConnectionResetError):
            return context.wrap_socket(plain, server_hostname="localhost")
    raise AssertionError("the hub does not let anybody in")


def drip(connection: socket.socket, data: bytes, pause_s: float = 0.3) -> float:
    """Say it byte by byte until the other side hangs up; how long that took."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        for at in range(len(data)):
            connection.send(data[at : at + 1])
            connection.settimeout(pause_s)
            with contextlib.suppress(TimeoutError):
                if connection.recv(1) == b"":
                    break
    return time.monotonic() - began


def test_whoever_stalls_at_any_step_is_hung_up_on(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.federation.sockets.HANDSHAKE_S", 4.0)
    monkeypatch.setattr("heliograph.federation.session.LINK_HANDSHAKE_S", 3.0)
    net.station("hub", **rules())  # type: ignore[arg-type]
    net.station("good", links=[{"hub": "hub", "publish": ["alerts"]}])
    net.pki.issue("host1")
    with net.open("hub") as hub, net.open("good") as good:
        wait_for(lambda: up(good, "hub"))
        silent = socket.create_connection(("127.0.0.1", net.port("hub")), timeout=20)
        assert ended(silent), "no TLS"
        hello = bytes.fromhex("16030100c8010000c40303") + bytes(250)
        dripping = socket.create_connection(("127.0.0.1", net.port("hub")), timeout=20)
        assert drip(dripping, hello) < 20, "TLS, a byte at a time"
        assert ended(tls(net)), "no WebSocket"
        assert drip(tls(net), b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Slow: " + b"x" * 200) < 20

        async def no_hello() -> None:
            attacker = await attack(net, net.pki.files("host1"))
            await attacker.hear(None)

        asyncio.run(no_hello())
        wait_for(lambda: len(audited(net.path("hub"), "link-refused")) >= 5)
        wait_for(lambda: [one for one in audited(net.path("hub"), "link-refused") if "no agreement within" in one["why"]
                          and one["peer"] == "host1"])  # fmt: skip
        good.publish("alerts", "all the same")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["all the same"])
        assert up(hub, "good") and good.links()[0].reconnects == 0


def ended(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except OSError as error:
        return error.errno == errno.ECONNRESET


def test_lives_that_are_invented_park_the_channel_and_are_audited(net: Net) -> None:
    net.station("hub", **rules(origins_max=50))  # type: ignore[arg-type]
    net.station("good", links=[{"hub": "hub", "publish": ["alerts"]}])
    net.pki.issue("host1")

    async def main() -> None:
        attacker = await (await attack(net, net.pki.files("host1"))).greet()
        attacker.say(frames.Open(stream=1, channel="alerts", partitions=1))
        await attacker.hear(frames.Resume)
        for start in range(0, 60, 20):
            if start == 40:
                while (await attacker.hear(frames.Ack)).next < 40:
                    pass
            body = b"".join([line("alerts", f"host1.k{number}", 0) for number in range(start, start + 20)])
            attacker.say(frames.Batch(stream=1, partition=0, first=start, count=20, size=len(body)), body)
        assert "hub.origins_max" in (await attacker.hear(frames.Park)).reason
        attacker.say(frames.Open(stream=2, channel="other", partitions=1))
        await attacker.hear(frames.Resume)
        gaps = {f"host1.k{number}": {"0": [[0, 5]]} for number in range(60)}
        attacker.say(frames.Gap(stream=2, gaps=gaps, reason="gone"))
        assert "hub.origins_max" in (await attacker.hear(frames.Park)).reason
        attacker.transport.disconnect()

    with net.open("hub") as hub, net.open("good") as good:
        asyncio.run(main())
        assert len(lines(net.path("hub"), "alerts")) == 40, "nothing of the batch that was too much"
        assert len(hub.engine.relayed.seen("alerts")) == 40
        parked = wait_for(lambda: [it for it in [audited(net.path("hub"), "link-parked")] if len(it) > 1])[0]
        assert {(record["peer"], record["channel"]) for record in parked} == {("host1", "alerts"), ("host1", "other")}
        good.publish("alerts", "an honest station has a life of its own")
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 41)


def test_gaps_by_the_million_are_taken_and_not_kept(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.limits.SEEN_GAPS_MAX", 1_000)
    net.station("hub", **rules())  # type: ignore[arg-type]
    net.pki.issue("host1")

    async def main() -> None:
        attacker = await (await attack(net, net.pki.files("host1"))).greet()
        attacker.say(frames.Open(stream=1, channel="alerts", partitions=1))
        await attacker.hear(frames.Resume)
        for start in range(0, 400_000, 40_000):
            gaps = [[start + at, start + at + 1] for at in range(0, 40_000, 2)]
            attacker.say(frames.Gap(stream=1, gaps={"host1.k1": {"0": gaps}}, reason="gone"))
        body = line("alerts", "host1.k1", 1)
        attacker.say(frames.Batch(stream=1, partition=0, first=1, count=1, size=len(body)), body)
        assert (await attacker.hear(frames.Ack)).next == 2
        attacker.transport.disconnect()

    with net.open("hub") as hub:
        asyncio.run(main())
        assert hub.engine.relayed.gaps("alerts").pieces <= 1_000
        assert len(audited(net.path("hub"), "gaps-not-kept")) == 1
