"""How small it is: memory, descriptors and the time of an import, each seen in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from bench.harness import ROOT, Bench, Goal, Row, compare
from bench.observe import PROC, child, descriptors, memory_mb
from heliograph.config import Config

IMPORT = "from time import perf_counter as t; a = t(); {}; print((t() - a) * 1000)"
FIRST = "import heliograph as hg; hg.open({!r}, name='bench').publish('first', 1)"
"""What a program needs that does nothing else: most is loaded when it is first used."""


def run(bench: Bench) -> list[Row]:
    """Measure the import, an idle station, and one with many channels."""
    return [*imports(bench), *idle(bench), *channels(bench)]


def imports(bench: Bench) -> list[Row]:
    """Importing Heliograph, and all that the first message needs, beside importing the library it is built on."""
    with bench.scratch("first") as path:
        rounds = bench.measure(
            {
                "raw": lambda: taken_ms("import msgspec"),
                "ours": lambda: taken_ms("import heliograph"),
                "first": lambda: taken_ms(FIRST.format(str(path))),
            }
        )
    row = partial(compare, "size", rounds=rounds, unit="ms", raw_is="import msgspec")
    return [
        row("import heliograph", name="ours", goal=Goal(ours_max=100)),
        row("import, open, and the first message durable", name="first"),
    ]


def taken_ms(code: str) -> float:
    """In a fresh interpreter that may keep what it compiled, as every user's may."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", IMPORT.format(code)]
    return float(subprocess.check_output(command, cwd=ROOT, env=environment))


def idle(bench: Bench) -> list[Row]:
    """A station with one channel and one waiting subscription beside a bare interpreter."""

    def waiting() -> float:
        with bench.scratch("idle") as path, child("waiting", str(path)) as pid:
            return memory_mb(pid)

    def bare() -> float:
        with child("bare") as pid:
            return memory_mb(pid)

    rounds = bench.measure({"raw": bare, "ours": waiting}, rounds=3)
    goal = Goal(ours_max=40)
    return [compare("size", "idle station", rounds, "ours", unit="MB", raw_is="bare interpreter", goal=goal)]


def channels(bench: Bench) -> list[Row]:
    """Many channels beside as many as a station keeps open."""
    few, many = Config().storage.open_partitions_max, int(bench.either(1000, 300))
    found: dict[str, list[tuple[float, int]]] = {"raw": [], "ours": []}
    for _ in range(int(bench.either(3, 1))):
        for count, seen in ((few, found["raw"]), (many, found["ours"])):
            with bench.scratch("channels") as path, child("channels", str(path), str(count)) as pid:
                seen.append((memory_mb(pid), descriptors(pid) if PROC.is_dir() else 0))
    rows = []
    for at, (name, unit) in enumerate((("memory", "MB"), ("descriptors", "open"))):
        rounds = {side: [float(one[at]) for one in seen] for side, seen in found.items()}
        if all(rounds["raw"]):
            what, raw_is = f"{name}, {many:,} channels beside {few}", f"{few} channels, which all stay open"
            rows.append(compare("size", what, rounds, "ours", unit=unit, raw_is=raw_is))
    return rows
