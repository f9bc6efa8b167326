"""Groups and queues beside JetStream's pull consumers and, where one is installed, Redis Streams.

Several workers share what is published: each message goes to one of them, is decoded and acknowledged. All three
answer for what they stored (``sync_interval: always``; ``appendonly`` with ``appendfsync always``; ours by default),
and all are asked for a hundred messages at a time. The workers are processes; the servers' own run beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec

from bench import groups, queues
from bench.harness import Bench, Rounds, Row, compare
from bench.nats import CONSUMED, START_S, STREAM, Peer, find_server, server
from bench.processes import rate_together
from bench.samples import CHANNEL, PAYLOADS, TYPE

AT_ONCE = 100
WORKERS = (1, 2)
OURS, THEIRS = 1_500_000, 60_000
OURS_QUICK, THEIRS_QUICK = 100_000, 5_000
REDIS_STREAM = "bench"

encode, decode = msgspec.json.encode, msgspec.json.decode


def run(bench: Bench) -> list[Row]:
    """Measure one and two worker processes of each."""
    executable = find_server()
    seconds = bench.either(1.0, 0.3)
    with (
        bench.scratch("peers") as path,
        server(executable, path) as address,
        redis_server(path) as redis_path,
    ):
        groups.fill(path / "station", int(bench.either(OURS, OURS_QUICK)))
        theirs = int(bench.either(THEIRS, THEIRS_QUICK))
        asyncio.run(fill_nats(address, theirs))
        if redis_path is not None:
            fill_redis(redis_path, theirs)
        return [
            row for workers in WORKERS for row in rows(bench, path / "station", address, redis_path, workers, seconds)
        ]


def rows(bench: Bench, station: Path, address: str, redis_path: str | None, workers: int, seconds: float) -> list[Row]:
    """What so many workers do, of each kind."""
    names = count()

    def together(worker: Callable[..., Any], where: str) -> float:
        return rate_together(worker, [(where, f"workers-{workers}-{next(names)}")] * workers, seconds)

    contestants = {
        "nats": lambda: together(nats_worker, address),
        "group": lambda: together(groups.worker, str(station)),
        "queue": lambda: together(queues.worker, str(station)),
    }
    if redis_path is not None:
        contestants["redis"] = lambda: together(redis_worker, redis_path)
    rounds = bench.measure(contestants, rounds=1 if bench.quick else 5)
    people = "one worker" if workers == 1 else f"{workers} workers"
    return [*beside(rounds, people, "nats", "JetStream"), *beside(rounds, people, "redis", "Redis Streams")]


def beside(rounds: Rounds, people: str, peer: str, called: str) -> list[Row]:
    """Our group and our queue beside one peer, if it was there."""
    if peer not in rounds:
        return []
    row = partial(compare, "peers", rounds=rounds, raw=peer, raw_is=called)
    return [row(f"{ours}, {people}, beside {called}", name=ours) for ours in ("group", "queue")]


# -- JetStream --------------------------------------------------------------------------------------------------


async def fill_nats(address: str, messages: int) -> None:
    """What its workers will read."""
    peer = await Peer.connect(address)
    await peer.fill(messages)
    await peer.close()


@contextmanager
def nats_worker(address: str, consumer: str) -> Iterator[Callable[[float], int]]:
    """One process of several that pull from one durable consumer and acknowledge each message."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    with asyncio.Runner() as runner:
        connection = runner.run(nats.connect(address))
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=100 * AT_ONCE)
        pulling = connection.jetstream(timeout=30).pull_subscribe(
            CONSUMED, durable=consumer, stream=STREAM, config=config
        )
        subscription = runner.run(pulling)

        async def work(until_s: float) -> int:
            done = 0
            while monotonic() < until_s:
                try:
                    messages = await subscription.fetch(AT_ONCE, timeout=1)
                except TimeoutError:  # of NATS or of asyncio, which both are
                    break
                for message in messages:
                    decode(message.data)
                    await message.ack()
                done += len(messages)
            await connection.flush()
            return done

        yield lambda until_s: runner.run(work(until_s))
        runner.run(connection.close())


# -- Redis ------------------------------------------------------------------------------------------------------


@contextmanager
def redis_server(path: Path) -> Iterator[str | None]:
    """A server that syncs every write, below ``path``, and its socket; None if there is none on this machine."""
    executable = shutil.which("redis-server")
    if executable is None or importlib.util.find_spec("redis") is None:
        yield None
        return
    place = Path(tempfile.mkdtemp(prefix="redis-"))  # the name of a socket has hardly more than a hundred characters
    socket = place / "socket"
    command = [executable, "--port", "0", "--unixsocket", str(socket), "--dir", str(path), "--save", ""]
    process = subprocess.Popen(
        [*command, "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"], stdout=subprocess.DEVNULL
    )
    try:
        until = monotonic() + START_S
        while not socket.exists():
            if process.poll() is not None or monotonic() > until:
                raise RuntimeError("redis-server did not start")
            sleep(0.02)
        yield str(socket)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


def redis_client(path: str) -> Any:
    """A connection."""
    import redis

    return redis.Redis(unix_socket_path=path)


def fill_redis(path: str, messages: int) -> None:
    """What its workers will read."""
    client = redis_client(path)
    for _ in range(messages // len(PAYLOADS)):
        pipeline = client.pipeline(transaction=False)
        for payload in PAYLOADS:
            pipeline.xadd(REDIS_STREAM, {"type": TYPE, "channel": CHANNEL, "data": encode(payload)})
        pipeline.execute()
    client.close()


@contextmanager
def redis_worker(path: str, group: str) -> Iterator[Callable[[float], int]]:
    """One process of a consumer group."""
    import redis

    client = redis_client(path)
    with contextlib.suppress(redis.ResponseError):  # another worker made it
        client.xgroup_create(REDIS_STREAM, group, id="0")
    me = f"worker-{monotonic()}"

    def work(until_s: float) -> int:
        done = 0
        while monotonic() < until_s:
            found = client.xreadgroup(group, me, {REDIS_STREAM: ">"}, count=AT_ONCE)
            if not found:
                break
            entries = found[0][1]
            for _, fields in entries:
                decode(fields[b"data"])
            client.xack(REDIS_STREAM, group, *[one for one, _ in entries])
            done += len(entries)
        return done

    yield work
    client.close()
