"""Latency: from the call of ``publish`` to the call of the handler, and what a waiting subscriber costs.

The raw limit sends eight bytes over a socket to a thread or process that waits for them. Both sides read the same
monotonic clock; the receiver answers with its reading, and only then comes the next message, after a pause in which
everybody falls asleep. What ``always`` adds is put beside a write and ``fdatasync`` before the eight bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from time import monotonic_ns, sleep

import heliograph as hg
from bench.harness import Bench, Goal, Rounds, Row, compare
from bench.observe import PROC, child, processor_s
from bench.samples import CHANNEL, PAYLOADS, TYPE

PAUSE_S = 0.001
CLOCK = struct.Struct("=q")
ANSWER_S = 30.0
ASKED = "asked"

Ping = Callable[[], object]
Contest = tuple[Ping, socket.socket]
"""How to send, and where the answers come from."""

WAYS = {
    "in process": ("socket between threads", "thread-raw", "thread"),
    "between processes": ("socket between processes", "process-raw", "process"),
    "between processes, on disk first": ("write + fdatasync, then the socket", "disk-raw", "disk"),
}


def run(bench: Bench) -> list[Row]:
    """Measure the three ways a message takes, then somebody who only waits."""
    count = int(bench.either(300, 60))
    with bench.scratch("latency") as path, ExitStack() as stack:
        contests = prepare(path, stack)
        rows = []
        for way, (raw_is, raw, ours) in WAYS.items():
            middles, tails = measure(bench, {"raw": contests[raw], "ours": contests[ours]}, count)
            for what, rounds in (("p50", middles), ("p99", tails)):
                rows.append(compare("latency", f"{way}, {what}", rounds, "ours", unit="µs", raw_is=raw_is))
        rows.append(asking(bench, path / "asking", contests["process-raw"], stack, count))
    return rows + idle(bench)


def measure(bench: Bench, contests: dict[str, Contest], count: int) -> tuple[Rounds, Rounds]:
    """The medians and the 99th percentiles of each round."""
    tails: Rounds = {name: [] for name in contests}

    def middle(name: str) -> float:
        found = latencies_us(*contests[name], count)
        tails[name].append(percentile_99(found))
        return median(found)

    middles = bench.measure({name: partial(middle, name) for name in contests})
    return middles, {name: found[1:] for name, found in tails.items()}  # without the warm-up


def percentile_99(values: list[float]) -> float:
    """What 99 of 100 do not exceed."""
    return quantiles(values, n=100, method="inclusive")[-1]


def latencies_us(ping: Ping, answers: socket.socket, count: int) -> list[float]:
    """One message after the other: how long until each was there."""
    found = []
    for _ in range(count):
        sleep(PAUSE_S)
        sent_ns = monotonic_ns()
        ping()
        (arrived_ns,) = CLOCK.unpack(answers.recv(CLOCK.size))
        found.append((arrived_ns - sent_ns) / 1000)
    return found


def asking(bench: Bench, path: Path, raw: Contest, stack: ExitStack, count: int) -> Row:
    """There and back: a request to another process and its reply."""
    station = stack.enter_context(hg.open(path, name="bench", durability="interval"))
    stack.enter_context(receiver(path, "interval"))
    ping, answers = raw
    trips: dict[str, Ping] = {
        "raw": lambda: (ping(), answers.recv(CLOCK.size)),
        "ours": lambda: station.request(ASKED, PAYLOADS[0], type=TYPE, timeout=ANSWER_S),
    }
    rounds = bench.measure({name: partial(round_trip_us, trip, count) for name, trip in trips.items()})
    raw_is = "socket between processes, there and back"
    return compare("latency", "request and reply between processes, p50", rounds, "ours", unit="µs", raw_is=raw_is)


def round_trip_us(trip: Ping, count: int) -> float:
    """The median of some trips, each after a pause."""
    found = []
    for _ in range(count):
        sleep(PAUSE_S)
        sent_ns = monotonic_ns()
        trip()
        found.append((monotonic_ns() - sent_ns) / 1000)
    return median(found)


# -- the contestants --------------------------------------------------------------------------------------------


def prepare(path: Path, stack: ExitStack) -> dict[str, Contest]:
    """Everybody who takes part, waiting."""
    threads, processes = stack.enter_context(echo_thread()), stack.enter_context(receiver(None))
    file = os.open(path / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stack.callback(os.close, file)
    contests: dict[str, Contest] = {
        "thread-raw": (lambda: threads.send(bytes(CLOCK.size)), threads),
        "process-raw": (lambda: processes.send(bytes(CLOCK.size)), processes),
        "disk-raw": (lambda: send_synced(file, processes), processes),
    }
    for name, durability in (("thread", "interval"), ("process", "interval"), ("disk", "always")):
        station = stack.enter_context(hg.open(path / name, name="bench", durability=durability))
        station.create_channel(CHANNEL)
        listen = subscriber(station) if name == "thread" else receiver(path / name, durability)
        contests[name] = (publisher(station), stack.enter_context(listen))
    return contests


def send_synced(file: int, line: socket.socket) -> None:
    """The raw limit of what must be on disk first."""
    os.write(file, bytes(350))
    os.fdatasync(file)
    line.send(bytes(CLOCK.size))


def publisher(station: hg.Station) -> Ping:
    """Publishes the same message again and again."""
    return lambda: station.publish(CHANNEL, PAYLOADS[0], type=TYPE)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends; an answer that never comes is an error."""
    ours, its = socket.socketpair()
    ours.settimeout(ANSWER_S)
    with ours, its:
        yield ours, its


@contextmanager
def echo_thread() -> Iterator[socket.socket]:
    """A thread that answers."""
    with pair() as (ours, its):
        thread = threading.Thread(target=echo, args=(its,), daemon=True)
        thread.start()
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def subscriber(station: hg.Station) -> Iterator[socket.socket]:
    """A subscription of this process that answers."""
    with pair() as (ours, its), station.subscribe(CHANNEL, answer_to(its)):
        yield ours


@contextmanager
def receiver(path: Path | None, durability: str = "") -> Iterator[socket.socket]:
    """Another process that answers: a subscriber of a station, or without a path a bare echo."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=receive, args=(there, path, durability), daemon=True)
    process.start()
    there.close()
    with socket.socket(fileno=os.dup(here.fileno())) as ours:
        here.close()
        ours.settimeout(ANSWER_S)
        ours.recv(1)  # ready
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
    process.join()


def receive(line: Connection, path: Path | None, durability: str) -> None:
    """What the other process does until the line is closed."""
    with socket.socket(fileno=os.dup(line.fileno())) as its:
        if path is None:
            its.send(b"!")
            echo(its)
        else:
            with hg.open(path, durability=durability) as station, station.subscribe(CHANNEL, answer_to(its)):
                station.reply(ASKED, lambda request: request.data)
                its.send(b"!")
                its.recv(1)


def echo(its: socket.socket) -> None:
    """Answer each message with the time."""
    while its.recv(CLOCK.size):
        its.send(CLOCK.pack(monotonic_ns()))


def answer_to(its: socket.socket) -> Callable[[hg.Message], None]:
    """A handler that answers each message with the time."""

    def handle(_: hg.Message) -> None:
        its.send(CLOCK.pack(monotonic_ns()))

    return handle


# -- waiting ----------------------------------------------------------------------------------------------------


def idle(bench: Bench) -> list[Row]:
    """How much of a core a process takes that waits for messages."""
    if not PROC.is_dir():
        return []
    seconds = bench.either(10.0, 1.0)
    with bench.scratch("idle") as path, child("waiting", str(path)) as pid:
        sleep(1.0)  # starting is not waiting
        began_s, began_ns = processor_s(pid), monotonic_ns()
        sleep(seconds)
        share = (processor_s(pid) - began_s) / (monotonic_ns() - began_ns) * 1e9
    return [
        Row(subject="latency", what="waiting subscriber", unit="% of a core", ours=100 * share, goal=Goal(ours_max=0.5))
    ]
