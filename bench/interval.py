"""Durability ``interval``: written before ``publish`` returns, synced every 100 ms.

The raw limit builds the same envelopes (a struct with a fresh UUIDv7 as text, the time of day and the payload)
and encodes each with msgspec. Nothing is written, nothing is checked, nothing is numbered.

msgspec has a fast way of its own for the time of day as an object. What a program pays that makes RFC 3339 text of
it, as the envelope has it, is shown beside it in rows of their own, which have no target. So is a bare loop that does
what the format demands of a line and nothing else: no checks, no metrics, no partitions, no other threads or processes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from mmap import mmap
from pathlib import Path
from threading import Lock
from time import monotonic, sleep, time_ns
from typing import Any

import google_crc32c
import msgspec
import uuid_utils

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_of
from bench.processes import rate_together
from bench.samples import CHANNEL, PAYLOADS, TYPE

RAW = "msgspec encodes the same envelopes, nothing written"
RAW_TEXT = "the same, with the time made as RFC 3339 text for each message"
ONE = "one process"
END = struct.Struct("@3Q")
SELDOM_S = 0.003


class Envelope(msgspec.Struct):
    """A CloudEvent as one would write it by hand."""

    id: str
    time: datetime | str
    data: Any
    source: str = "bench"
    type: str = TYPE
    channel: str = CHANNEL
    specversion: str = "1.0"


def run(bench: Bench) -> list[Row]:
    """Measure a loop, batches, and two processes."""
    return [*one_process(bench), *two_processes(bench)]


def one_process(bench: Bench) -> list[Row]:
    """A loop and batches beside encoding alone."""
    repeat = int(bench.either(500, 100))
    with (
        bench.scratch("interval") as path,
        hg.open(path, name="bench", durability="interval") as station,
    ):
        rounds = bench.measure(
            {
                "raw": lambda: rate_of(repeat * 100, lambda: encode_only(repeat)),
                "raw-text": lambda: rate_of(repeat * 100, lambda: encode_with_text(repeat)),
                "bare": lambda: rate_of(repeat * 100, lambda: bare_loop(path / "bare.jsonl", repeat)),
                "loop": lambda: rate_of(repeat * 100, lambda: publish_loop(station, CHANNEL, repeat)),
                "batches": lambda: rate_of(repeat * 100, lambda: publish_batches(station, repeat)),
            }
        )
    row = partial(compare, "interval", rounds=rounds)
    return [
        row("publish in a loop", name="loop", raw_is=RAW, goal=Goal(ratio_min=0.25)),
        row("publish_many of 100", name="batches", raw_is=RAW, goal=Goal(ratio_min=0.7)),
        row("a bare loop that writes such lines, and nothing else", name="bare", raw_is=RAW),
        row("publish in a loop; raw makes the time as text", name="loop", raw="raw-text", raw_is=RAW_TEXT),
        row("publish_many of 100; raw makes the time as text", name="batches", raw="raw-text", raw_is=RAW_TEXT),
    ]


def encode_only(repeat: int) -> None:
    """The raw limit."""
    encode, new_id, now = msgspec.json.Encoder().encode, uuid_utils.uuid7, datetime.now
    for _ in range(repeat):
        for payload in PAYLOADS:
            encode(Envelope(str(new_id()), now(UTC), payload))


def encode_with_text(repeat: int) -> None:
    """The raw limit for a program that writes the time itself."""
    encode, new_id, now = msgspec.json.Encoder().encode, uuid_utils.uuid7, datetime.now
    for _ in range(repeat):
        for payload in PAYLOADS:
            encode(Envelope(str(new_id()), now(UTC).isoformat(timespec="microseconds")[:26] + "Z", payload))


def bare_loop(path: Path, repeat: int) -> None:
    """Id, time, payload, number and checksum into a line, the line into a file, its end into shared memory."""
    encode, new_id, now_ns = msgspec.json.Encoder().encode, uuid_utils.uuid7, time_ns
    checksum, extend, lock = google_crc32c.value, google_crc32c.extend, Lock()
    form = b'{"specversion":"1.0","id":"%b","source":"bench","type":"%b","time":"2026-01-01T00:00:00.%06dZ",'
    form += b'"channel":"%b","data":%b,"origin":"bench.k3f9q2","originseq":"0/%d"'
    kind, channel = TYPE.encode(), CHANNEL.encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    shared = mmap(-1, 4096)
    number = size = sum_of_all = 0
    for _ in range(repeat):
        for payload in PAYLOADS:
            microseconds, data, message_id = now_ns() // 1000 % 1_000_000, encode(payload), str(new_id())
            with lock:
                line = form % (message_id.encode(), kind, microseconds, channel, data, number)
                line = b'%b,"crc":"%08x"}\n' % (line, checksum(line))
                os.write(fd, line)
                number, size, sum_of_all = number + 1, size + len(line), extend(sum_of_all, line)
                END.pack_into(shared, 0, number, size, sum_of_all)
    os.close(fd)


def publish_loop(station: hg.Station, channel: str, repeat: int) -> None:
    """One message at a time."""
    publish = station.publish
    for _ in range(repeat):
        for payload in PAYLOADS:
            publish(channel, payload, type=TYPE)


def publish_batches(station: hg.Station, repeat: int) -> None:
    """A hundred messages at a time."""
    for _ in range(repeat):
        station.publish_many(CHANNEL, PAYLOADS, type=TYPE)


# -- processes --------------------------------------------------------------------------------------------------


def two_processes(bench: Bench) -> list[Row]:
    """Two processes publishing in a loop beside one."""
    seconds = bench.either(0.8, 0.2)
    with bench.scratch("processes") as path:
        hg.open(path, name="bench").close()

        def together(channels: list[str], *pauses_s: float) -> float:
            workers = [(str(path), channel, *pauses_s[at : at + 1]) for at, channel in enumerate(channels)]
            return rate_together(publisher, workers, seconds)

        rounds = bench.measure(
            {
                "one": lambda: together([CHANNEL]),
                "different": lambda: together(["left", "right"]),
                "same": lambda: together([CHANNEL, CHANNEL]),
                "seldom": lambda: together([CHANNEL, CHANNEL], 0.0, SELDOM_S),
            },
            rounds=2 if bench.quick else None,  # starting processes takes longer than a quick look should
        )
    row = partial(compare, "interval", rounds=rounds, raw="one", raw_is=ONE)
    return [
        row("two processes, a channel each", name="different", goal=Goal(ratio_min=1.7)),
        row("two processes, one partition", name="same", goal=Goal(ratio_min=1.0)),
        row("the same, one of them every 3 ms", name="seldom"),
    ]


@contextmanager
def publisher(path: str, channel: str, pause_s: float = 0.0) -> Iterator[Callable[[float], int]]:
    """A process that publishes to a channel in a loop, or one message after each pause."""
    with hg.open(path, durability="interval") as station:
        publish_loop(station, channel, 1)

        def work(until_s: float) -> int:
            count = 0
            while monotonic() < until_s:
                if pause_s:
                    sleep(pause_s)
                    station.publish(channel, PAYLOADS[0], type=TYPE)
                    count += 1
                else:
                    publish_loop(station, channel, 1)
                    count += len(PAYLOADS)
            return count

        yield work
