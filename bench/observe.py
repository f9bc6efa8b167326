"""What a process takes, seen from outside: memory, processor time, descriptors. Linux says so in ``/proc``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from bench.harness import ROOT

PROC = Path("/proc")
BUSY_SHARE = 0.15
"""More than this share of all cores in use by others makes numbers doubtful."""


@contextmanager
def child(*arguments: str) -> Iterator[int]:
    """A fresh interpreter that runs ``bench.resident`` and has settled; its process id."""
    command = [sys.executable, "-m", "bench.resident", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{' '.join(command)} ended with code {process.wait()}")
        try:
            yield process.pid
        finally:
            process.stdin.close()  # it ends by itself then


def memory_mb(pid: int) -> float:
    """What is resident of a process."""
    if PROC.is_dir():
        lines = (PROC / str(pid) / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) / 1024


def processor_s(pid: int) -> float:
    """How long the threads of a process were running so far, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in PROC.glob(f"{pid}/task/*/schedstat")) / 1e9


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(PROC / str(pid) / "fd"))


def others_share(seconds: float = 1.0) -> float:
    """Which share of all cores is in use, while we do nothing."""
    before = _processor_ticks()
    sleep(seconds)
    idle, total = (after - then for after, then in zip(_processor_ticks(), before, strict=True))
    return 1 - idle / total if total else 0.0


def _processor_ticks() -> tuple[int, int]:
    if not PROC.is_dir():
        return 0, 0
    ticks = [int(word) for word in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)  # idle, waiting for a disk


def wait_until_calm(patience_s: float = 600.0) -> None:
    """Wait while others keep the machine busy, but not for ever."""
    until = monotonic() + patience_s
    told = False
    while (share := others_share()) > BUSY_SHARE and monotonic() < until:
        if not told:
            print(f"(the machine is {share:.0%} busy, waiting) ", end="", file=sys.stderr, flush=True)
            told = True
