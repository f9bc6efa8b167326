"""``python -m bench [NAME…]``: measure, print a table, keep JSON, draw a plot."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from bench.harness import ROOT, Bench, NotRun, Row
from bench.observe import wait_until_calm
from bench.report import draw, print_table, results_of, save
from bench.warmth import touch_memory

SUBJECTS = (
    "durable",
    "interval",
    "subscribing",
    "latency",
    "producers",
    "arrivals",
    "groups",
    "queues",
    "nats",
    "peers",
    "federation",
    "history",
    "schedule",
    "size",
    "spark",
)
RESULTS = ROOT / "bench" / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subjects asked for. The exit code is 1 when a subject could not be measured."""
    asked = parse(arguments)
    names = asked.names or list(SUBJECTS)
    rows: list[Row] = []
    load: dict[str, float] = {}
    not_run: dict[str, str] = {}
    failed = False
    asked.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=asked.dir))
    try:
        bench = Bench(directory, quick=asked.quick, long=asked.long)
        if not asked.quick:
            warm_up(asked.dir)
        for name in names:
            if asked.pause_if_busy:
                wait_until_calm()
            load[name] = round(os.getloadavg()[0], 2)
            try:
                rows += measure(name, bench)
            except NotRun as reason:
                not_run[name] = str(reason)
                print("not run", file=sys.stderr)
            except Exception as error:  # noqa: BLE001 - the other subjects are worth knowing all the same
                failed = True
                print(f"{name} could not be measured: {error!r}", file=sys.stderr)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    results = results_of(rows, "quick" if asked.quick else "normal", load=load, not_run=not_run)
    print_table(results)
    # What is kept in the repository comes from whole runs only.
    whole = set(names) == set(SUBJECTS) and not asked.quick and not failed and not not_run
    target = asked.results / ("latest" if whole else "partial")
    save(results, target.with_suffix(".json"))
    draw(results, target.with_suffix(".svg"))
    return int(failed)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUBJECTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a look that takes less than a minute")
    parser.add_argument("--long", action="store_true", help="the largest sizes as well: 20 GB of disk")
    parser.add_argument("--pause-if-busy", action="store_true", help="wait until others leave the machine alone")
    parser.add_argument("--dir", type=Path, default=ROOT / ".bench", help="measure on the disk of this directory")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and plot go")
    asked = parser.parse_args(arguments)
    for name in asked.names:
        if name not in SUBJECTS:
            parser.error(f"there is no subject '{name}'; choose from {', '.join(SUBJECTS)}")
    return asked


def warm_up(directory: Path) -> None:
    """Once after each start of the machine, with a word on the way."""
    print("touching the free memory … ", end="", file=sys.stderr, flush=True)
    started = perf_counter()
    size = touch_memory(directory / "touched")
    done = f"{size >> 20:,} MB, {perf_counter() - started:.0f} s" if size else "nothing to do"
    print(done, file=sys.stderr)


def measure(name: str, bench: Bench) -> list[Row]:
    """One subject, with a word on the way."""
    print(f"{name} … ", end="", file=sys.stderr, flush=True)
    started = perf_counter()
    rows: list[Row] = importlib.import_module(f"bench.{name}").run(bench)
    print(f"{perf_counter() - started:.0f} s", file=sys.stderr)
    return rows


if __name__ == "__main__":
    sys.exit(main())
