"""How small it is: memory, descriptors and the time of an import, each seen in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.harness import ROOT, Bench, Goal, Row, compare
from bench.observe import PROC, child, descriptors, memory_mb
from heliograph.config import Config

IMPORT = "from time import perf_counter as t; a = t(); import {}; print((t() - a) * 1000)"


def run(bench: Bench) -> list[Row]:
    """Measure the import, an idle station, and one with many channels."""
    return [*imports(bench), *idle(bench), *channels(bench)]


def imports(bench: Bench) -> list[Row]:
    """Importing Heliograph beside importing the library it is built on."""
    rounds = bench.measure({"raw": lambda: import_ms("msgspec"), "ours": lambda: import_ms("heliograph")})
    goal = Goal(ours_max=100)
    return [compare("size", "import heliograph", rounds, "ours", unit="ms", raw_is="import msgspec", goal=goal)]


def import_ms(module: str) -> float:
    """In a fresh interpreter that may keep what it compiled, as every user's may."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", IMPORT.format(module)]
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
