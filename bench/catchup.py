"""Catching up after hours offline: a large backlog is relayed while live messages of another channel go on.

Both stations are processes of their own. The hub's handler of the live channel says how long each message took; the
memory of both is looked at when the link is up and while the backlog moves.
"""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import heliograph as hg
from bench.harness import Bench, Goal, Row
from bench.observe import memory_mb
from bench.samples import CHANNEL, TYPE
from bench.stations import edge_settings, elsewhere, fill, free_port, hub_settings

BACKLOG, BACKLOG_QUICK = 10_000_000, 20_000
LIVE = "live"
LIVE_PAUSE_S = 0.02
LOOK_S = 0.25
CONSTANT = Goal(ratio_max=1.2)


def catching_up(bench: Bench, path: Path) -> list[Row]:
    """The rows of one backlog."""
    backlog = int(bench.either(BACKLOG, BACKLOG_QUICK))
    port, hub, edge = free_port(), path / "catchup-hub", path / "catchup-edge"
    fill(edge, backlog)
    settings = edge_settings(path, port, channels=[CHANNEL, LIVE])
    with elsewhere(hear_live, str(hub), hub_settings(path, port, ["edge"], [CHANNEL, LIVE])) as there:
        hub_pid = there.recv()
        with elsewhere(publish_live, str(edge), settings) as here:
            edge_pid = here.recv()
            with hg.open(hub, read_only=True) as watched:
                rate, peaks = observe(watched, backlog, (hub_pid, edge_pid))
            here.send("enough")
            here.recv()
        there.send("enough")
        took = there.recv()
    return rows(backlog, rate, peaks, took)


def observe(watched: hg.Station, backlog: int, pids: tuple[int, int]) -> tuple[float, list[tuple[float, float]]]:
    """Messages a second, and the largest memory of each process in the first tenth of the backlog, and in all of it."""
    started = 0.0
    early, all_along = [0.0, 0.0], [0.0, 0.0]
    until = time.monotonic() + 3600
    done = 0
    while done < backlog and time.monotonic() < until:
        done = arrived_there(watched)
        started = started or (time.perf_counter() if done else 0.0)
        for at, pid in enumerate(pids):
            now = memory_mb(pid)
            all_along[at] = max(all_along[at], now)
            if done < backlog // 10 or not early[at]:
                early[at] = max(early[at], now)
        time.sleep(LOOK_S if backlog > BACKLOG_QUICK else 0.005)
    if done < backlog:
        raise TimeoutError("the hub did not get everything")
    return backlog / (time.perf_counter() - started), list(zip(early, all_along, strict=True))


def arrived_there(station: hg.Station) -> int:
    """How many messages of the backlog are there."""
    try:
        return station.channel(CHANNEL).next
    except hg.NotFound:
        return 0


def rows(backlog: int, rate: float, peaks: list[tuple[float, float]], took: list[float]) -> list[Row]:
    """What is told."""
    (hub_early, hub_mb), (edge_early, edge_mb) = peaks
    what = f"catch up with {backlog:,} messages"
    p99 = quantiles(took, n=100)[98] if len(took) > 1 else max(took, default=0.0)
    return [
        Row(subject="federation", what=what, unit="messages/s", ours=rate),
        Row(subject="federation", what=f"{what}: memory of the hub", unit="MB", ours=hub_mb,
            raw=hub_early, raw_is="the most during the first tenth", ratio=hub_mb / hub_early, goal=CONSTANT),
        Row(subject="federation", what=f"{what}: memory of the station", unit="MB", ours=edge_mb,
            raw=edge_early, raw_is="the most during the first tenth", ratio=edge_mb / edge_early, goal=CONSTANT),
        Row(subject="federation", what=f"{what}: live messages meanwhile, p50", unit="ms", ours=median(took or [0.0])),
        Row(subject="federation", what=f"{what}: live messages meanwhile, p99", unit="ms", ours=p99),
    ]  # fmt: skip


def hear_live(line: Connection, path: str, settings: dict[str, Any]) -> None:
    """A hub with a handler of the live channel; says in the end how many milliseconds each message took."""
    took: list[float] = []

    def handle(message: hg.Message) -> None:
        took.append((time.monotonic_ns() - message.data["sent"]) / 1e6)

    with hg.open(path, config=settings) as station, station.subscribe(LIVE, handle):
        line.send(os.getpid())
        line.recv()
        line.send(took)


def publish_live(line: Connection, path: str, settings: dict[str, Any]) -> None:
    """The station that was offline: publishes, a message at a time, while it catches up."""
    enough = threading.Event()

    def wait() -> None:
        try:
            line.recv()
        finally:
            enough.set()

    with hg.open(path, config=settings) as station:
        line.send(os.getpid())
        threading.Thread(target=wait, daemon=True).start()
        while not enough.wait(LIVE_PAUSE_S):
            station.publish(LIVE, {"sent": time.monotonic_ns()}, type=TYPE)
        line.send("done")
