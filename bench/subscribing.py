"""Subscribing: from stored lines to handlers that were called.

The raw limit decodes the same lines, already in memory, into the same objects with msgspec's ``decode_lines``:
nothing is read, checked, numbered, called or remembered. It gets them in pieces as large as those of a
subscription; all at once would be slower, because nothing would fit the processor's caches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_of
from bench.samples import CHANNEL, PAYLOADS, TYPE

RAW = "msgspec decodes the same lines into the same objects"
PIECE_BYTES = 256 * 1024
SUBSCRIBERS = 10


def run(bench: Bench) -> list[Row]:
    """Measure plain and batch handlers beside decoding alone, and ten subscribers of one channel."""
    count = int(bench.either(200_000, 50_000))
    with bench.scratch("subscribing") as path:
        with hg.open(path, name="bench", durability="interval") as station:
            for _ in range(count // len(PAYLOADS)):
                station.publish_many(CHANNEL, PAYLOADS, type=TYPE)
        pieces = list(stored_pieces(path))
        with hg.open(path, name="bench") as station:
            rounds = bench.measure(
                {
                    "raw": lambda: rate_of(count, lambda: decode_only(pieces)),
                    "plain": lambda: deliveries(station, count, plain_handler),
                    "batch": lambda: deliveries(station, count, batch_handler, batch=True),
                    "ten": lambda: deliveries(station, count, plain_handler, SUBSCRIBERS),
                }
            )
    row = partial(compare, "subscribing", rounds=rounds, raw_is=RAW)
    return [
        row("plain handler", name="plain", goal=Goal(ratio_min=0.4)),
        row("batch handler", name="batch", goal=Goal(ratio_min=0.7)),
        Row(
            subject="subscribing", what=f"{SUBSCRIBERS} subscribers in one process", unit="deliveries/s",
            ours=median(rounds["ten"]), goal=Goal(ours_min=1_200_000), rounds={"ours": rounds["ten"]},
        ),
    ]  # fmt: skip


def stored_pieces(path: Path) -> list[bytes]:
    """The log's bytes, cut at line ends."""
    found = []
    for segment in sorted((path / "channels" / CHANNEL / "0").glob("*.jsonl")):
        data, at = segment.read_bytes(), 0
        while at < len(data):
            end = data.rfind(b"\n", at, at + PIECE_BYTES) + 1
            found.append(data[at:end])
            at = end
    return found


def decode_only(pieces: list[bytes]) -> None:
    """The raw limit."""
    decode_lines = msgspec.json.Decoder(hg.Message).decode_lines
    for piece in pieces:
        decode_lines(piece)


Handler = Callable[[Any], None]


def plain_handler(last: int, done: Callable[[], None]) -> Handler:
    """Gets message by message."""

    def handle(message: hg.Message) -> None:
        if message.offset == last:
            done()

    return handle


def batch_handler(last: int, done: Callable[[], None]) -> Handler:
    """Gets all messages that are at hand."""

    def handle(messages: list[hg.Message]) -> None:
        if messages[-1].offset == last:
            done()

    return handle


def deliveries(
    station: hg.Station,
    count: int,
    make_handler: Callable[[int, Callable[[], None]], Handler],
    subscribers: int = 1,
    *,
    batch: bool = False,
    channel: str = CHANNEL,
) -> float:
    """How many deliveries a second durable subscriptions get that start at the beginning."""
    ended = [threading.Event() for _ in range(subscribers)]
    subscriptions = [
        station.subscribe(
            channel, make_handler(count - 1, event.set), name=f"reader-{number}", start="first", batch=batch,
            paused=True,
        )
        for number, event in enumerate(ended)
    ]  # fmt: skip
    started = perf_counter()
    for subscription in subscriptions:
        subscription.resume()
    for event in ended:
        if not event.wait(120):
            raise TimeoutError("a subscriber did not get every message")
    elapsed_s = perf_counter() - started
    for subscription in subscriptions:
        subscription.close(forget=True)
    return subscribers * count / elapsed_s
