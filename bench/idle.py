"""A hub with many links that say nothing: how much memory each takes, and how much processor time all of them."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import heliograph as hg
from bench.crowd import crowd
from bench.harness import Bench, Goal, Row
from bench.observe import memory_mb, processor_s
from bench.stations import elsewhere, free_port, hub_settings

LINKS, LINKS_QUICK = 500, 20
WATCHED_S, WATCHED_QUICK_S = 40.0, 3.0
"""Some heartbeats."""


def idle(bench: Bench, path: Path) -> list[Row]:
    """Memory and processor time of a hub with many links that say nothing."""
    from heliograph.federation.authority import Authority

    many, seconds = int(bench.either(LINKS, LINKS_QUICK)), bench.either(WATCHED_S, WATCHED_QUICK_S)
    names = [f"edge-{number}" for number in range(many)]
    authority = Authority(path / "ca.crt")
    for name in ["edge-0-before", *names]:
        authority.issue(path, name)
    port = free_port()
    settings = hub_settings(path, port, ["edge-0-before", *names])
    with elsewhere(watch_over, str(path / "idle-hub"), settings, seconds) as there:
        there.recv()
        with elsewhere(crowd, str(path), port, ["edge-0-before"]) as before:
            before.recv()  # whatever the first link needs is there, and not counted for the others
            there.send("one")
            empty_mb, _ = there.recv()
            with elsewhere(crowd, str(path), port, names) as here:
                here.recv()
                there.send("all there")
                full_mb, busy = there.recv()
    return [
        Row(subject="federation", what=f"memory of a hub per idle link, of {many}", unit="KB",
            ours=(full_mb - empty_mb) * 1024 / many, goal=Goal(ours_max=100)),
        Row(subject="federation", what=f"processor time of a hub with {many} idle links", unit="%", ours=busy * 100,
            goal=Goal(ours_max=5)),
    ]  # fmt: skip


def watch_over(line: Connection, path: str, settings: dict[str, Any], seconds: float) -> None:
    """A hub that says, when asked, what it takes."""
    with hg.open(path, config=settings):
        line.send("there")
        while True:
            try:
                line.recv()
            except EOFError:
                return
            time.sleep(1)
            started, before = time.monotonic(), processor_s(os.getpid())
            time.sleep(seconds)
            busy = (processor_s(os.getpid()) - before) / (time.monotonic() - started)
            line.send((memory_mb(os.getpid()), busy))
