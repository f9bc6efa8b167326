"""Links: relaying into a hub's log beside a bare TLS socket, from publish here to handler there, and many idle links.

Two processes on loopback, mutual TLS 1.3, both ends durable. The raw limit sends the very same bytes through a TLS
socket, in frames of the size that links use; the other side writes them and calls ``fdatasync`` once per window, and
only then acknowledges it.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import heliograph as hg
from bench.catchup import catching_up
from bench.harness import Bench, Goal, NotRun, Row, compare
from bench.idle import idle
from bench.latency import PAUSE_S
from bench.samples import CHANNEL, TYPE
from bench.samples import PAYLOADS as MIXED
from bench.stations import PAYLOADS as ALIKE
from bench.stations import edge_settings, elsewhere, fill, free_port, hub_settings, stand, tls

FRAME_BYTES = 256 * 1024
WINDOW_BYTES = 4 * 1024 * 1024
MESSAGES, MESSAGES_QUICK = 300_000, 20_000
PINGS, PINGS_QUICK = 300, 30
SILENCE_S = 0.01
RAW = "the same bytes over a bare TLS socket, one fdatasync per window"


def run(bench: Bench) -> list[Row]:
    """Measure throughput, latency, idle links and catching up."""
    try:
        from heliograph.federation.authority import Authority, create_ca
    except ImportError:
        raise NotRun("links need the extra hub: pip install 'heliograph[hub]'") from None
    with bench.scratch("federation") as path:
        create_ca(path)
        Authority(path / "ca.crt").issue(path, "hub", ["localhost"])
        Authority(path / "ca.crt").issue(path, "edge", ["localhost"])
        return [*relaying(bench, path), *latency(bench, path), *idle(bench, path), *catching_up(bench, path)]


# -- throughput -------------------------------------------------------------------------------------------------


def relaying(bench: Bench, path: Path) -> list[Row]:
    """Backlogs, relayed into empty hubs: of lines that are nearly alike, and of lines of many lengths.

    A hub checks what is alike all at once, and of the others each.
    """
    messages = int(bench.either(MESSAGES, MESSAGES_QUICK))
    numbers = count()
    rows = []
    for name, payloads, words in (("edge", ALIKE, ""), ("various", MIXED * 10, " and many lengths")):
        edge = path / name
        size = fill(edge, messages, payloads)
        rounds = bench.measure(
            {
                "raw": partial(raw_relay, path, edge, numbers, messages),
                "ours": partial(relay, path, edge, numbers, messages),
            },
            rounds=1 if bench.quick else 5,
        )
        what = f"relay a backlog of messages of {size // messages} bytes{words}"
        rows.append(compare("federation", what, rounds, "ours", raw_is=RAW, goal=Goal(ratio_min=0.5)))
    return rows


def relay(path: Path, edge: Path, numbers: Iterator[int], messages: int) -> float:
    """Messages a second, from when the first arrives until all are durable at a hub that had none."""
    forget(edge)
    port, hub = free_port(), path / f"hub-{next(numbers)}"
    with (
        elsewhere(stand, str(hub), hub_settings(path, port, ["edge"])) as there,
        elsewhere(stand, str(edge), edge_settings(path, port)) as here,
    ):
        there.recv()
        here.recv()
        with hg.open(hub, read_only=True) as watched:
            began = arrived(watched, 1)
            ended = arrived(watched, messages)
    return messages / (ended - began)


def arrived(station: hg.Station, messages: int) -> float:
    """When so many messages were durable there.

    The engine is asked, in 2 µs: to describe a channel is to look at its files, and that, hundreds of times a second,
    took a twelfth of a machine of two cores from those that are measured.
    """
    until = time.perf_counter() + 300
    while time.perf_counter() < until:
        try:
            if station.engine.limit(CHANNEL, synced=True).next >= messages:
                return time.perf_counter()
        except hg.NotFound:
            pass
        time.sleep(0.002)
    raise TimeoutError("the hub did not get everything")


def forget(edge: Path) -> None:
    """The next link begins at the beginning."""
    shutil.rmtree(edge / "links", ignore_errors=True)


def raw_relay(path: Path, edge: Path, numbers: Iterator[int], messages: int) -> float:
    """The raw limit: the same bytes, without looking at them."""
    segments = sorted((edge / "channels" / CHANNEL / "0").glob("*.jsonl"))
    with elsewhere(take, str(path), str(path / f"raw-{next(numbers)}")) as there:
        port = there.recv()
        context = context_of(path, "edge", server=False)
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            started = time.perf_counter()
            flying: list[int] = []
            for segment in segments:
                with segment.open("rb") as file:
                    while frame := file.read(FRAME_BYTES):
                        line.sendall(struct.pack("<I", len(frame)))
                        line.sendall(frame)
                        flying.append(len(frame))
                        while sum(flying) >= WINDOW_BYTES:
                            (done,) = struct.unpack("<I", exactly(line, 4))
                            while done > 0:
                                done -= flying.pop(0)
            line.sendall(struct.pack("<I", 0))
            while flying:
                (done,) = struct.unpack("<I", exactly(line, 4))
                while done > 0:
                    done -= flying.pop(0)
            return messages / (time.perf_counter() - started)


def take(line: Connection, path: str, target: str) -> None:
    """The other side: writes frames, syncs once per half a window, acknowledges."""
    context = context_of(Path(path), "hub", server=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        line.send(listening.getsockname()[1])
        plain, _ = listening.accept()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with context.wrap_socket(plain, server_side=True) as secure:
        waiting, size = 0, 1
        while size:
            (size,) = struct.unpack("<I", exactly(secure, 4))
            if size:
                os.write(fd, exactly(secure, size))
                waiting += size
            if waiting and (waiting >= WINDOW_BYTES // 2 or not size):
                os.fdatasync(fd)
                secure.sendall(struct.pack("<I", waiting))
                waiting = 0
    os.close(fd)


def exactly(line: ssl.SSLSocket, size: int) -> bytes:
    """So many bytes."""
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        got = line.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return bytes(found)


def context_of(path: Path, name: str, *, server: bool) -> ssl.SSLContext:
    """Mutual TLS 1.3, as links have it."""
    from heliograph.federation.tlsfiles import TlsFiles

    files = TlsFiles(**tls(path, name))  # type: ignore[arg-type]
    return files.server_context if server else files.client_context


# -- latency ----------------------------------------------------------------------------------------------------


def latency(bench: Bench, path: Path) -> list[Row]:
    """From the call of publish here to the call of a handler at the hub: one message after the other.

    As within a station (latency.py), the next one comes when the one before is there and everybody has fallen asleep.
    After a longer silence the processor's caches hold nothing of it any more, which is shown beside it.
    """
    pings = int(bench.either(PINGS, PINGS_QUICK))
    rows = []
    for what, pause_s in (("publish here to handler there", PAUSE_S), ("the same after 10 ms of silence", SILENCE_S)):
        syncs, found = ping(path, f"latency-{pause_s}", pings, pause_s)
        raw, p99 = median(syncs), quantiles(found, n=100)[98]
        goal = Goal(ours_max=2 * raw + 1)
        for name, ours in (("p50", median(found)), ("p99", p99)):
            rows.append(
                Row(subject="federation", what=f"{what}, {name}", unit="ms", ours=ours, raw=raw,
                    raw_is="one write and fdatasync", ratio=ours / raw, goal=goal if name == "p50" else None,
                    rounds={"raw": syncs, "ours": found})
            )  # fmt: skip
    return rows


def ping(path: Path, name: str, pings: int, pause_s: float) -> tuple[list[float], list[float]]:
    """Milliseconds of raw syncs and of messages, in turns: they share the noise of the disk."""
    port, hub, edge = free_port(), path / f"{name}-hub", path / f"{name}-edge"
    with elsewhere(hear, str(hub), hub_settings(path, port, ["edge"]), pings) as there:
        there.recv()
        with hg.open(edge, config=edge_settings(path, port)) as station:
            station.publish(CHANNEL, {"sent": 0}, type=TYPE)
            there.recv()  # the link is up
            syncs, found = [], []
            for _ in range(pings):
                station.publish(CHANNEL, {"sent": time.monotonic_ns()}, type=TYPE)
                found.append(there.recv() / 1e6)
                time.sleep(pause_s)
                syncs.append(one_sync(path / "sync"))
                time.sleep(pause_s)
    return syncs, found


def hear(line: Connection, path: str, settings: dict[str, Any], pings: int) -> None:
    """A hub with a handler that says how long each message took."""
    left = iter(range(pings, -1, -1))
    done = threading.Event()

    def handle(message: hg.Message) -> None:
        now = time.monotonic_ns()
        line.send(now - message.data["sent"])
        if next(left) == 0:
            done.set()

    with hg.open(path, config=settings) as station, station.subscribe(CHANNEL, handle):
        line.send("there")
        done.wait(120)


def one_sync(path: Path) -> float:
    """Milliseconds of one write and sync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started = time.perf_counter()
    os.write(fd, b"x" * 300)
    os.fdatasync(fd)
    took = (time.perf_counter() - started) * 1e3
    os.close(fd)
    return took
