"""Heliograph alive: several processes on one directory, two of them killed, and the count of what was lost.

    make demo                              or: python examples/demo.py --seconds 5

Three publishers and two subscribers share a data directory and no server. In the middle one publisher and one
subscriber are killed with SIGKILL; the subscriber is started again under its name. Every process tells this one
through a pipe what it was promised or handed. At the end the log is read with nothing but ``json.loads`` and
held against that. Whatever is lost makes the exit code 1.
"""

from __future__ import annotations

import argparse
import collections
import glob
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, NamedTuple

CHANNEL = "orders"
PUBLISHERS = ("publisher-1", "publisher-2", "publisher-3")
SUBSCRIBERS = ("ledger", "mailer")
SEGMENT_BYTES = 1024 * 1024  # small, so that there are several files to look at
PACE_S = 0.001  # a person watches: no faster than about a thousand a second each
CATCH_UP_S = 30.0

Order = tuple[str, int]  # who published it, and the publisher's own count


# -- what the processes do ---------------------------------------------------------------------------------------


def publish(directory: str, name: str) -> None:
    """Publish until standard input ends; after each acknowledgement say so."""
    import heliograph as hg

    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with hg.open(directory, name="demo", segment_bytes=SEGMENT_BYTES) as station:
        number = 0
        while not stop.wait(PACE_S):
            number += 1
            station.publish(CHANNEL, {"n": number, "item": "lamp", "pieces": number % 7 + 1}, key=name)
            os.write(1, b"%s %d\n" % (name.encode(), number))


def subscribe(directory: str, name: str) -> None:
    """Handle messages until standard input ends; handling one is saying that it came."""
    import heliograph as hg

    def handle(message: hg.Message) -> None:
        os.write(1, b"%s %d %d\n" % (message.key.encode(), message.data["n"], message.offset))

    with hg.open(directory, name="demo") as station, station.subscribe(CHANNEL, handle, name=name, start="first"):
        sys.stdin.read()


# -- what this process knows of them -----------------------------------------------------------------------------


class Broken(Exception):
    """A process ended that nobody had killed."""


class Life:
    """One process, and what it has told. A worker that is started again has two."""

    def __init__(self, role: str, name: str, directory: str) -> None:
        self.name = name
        self.told: list[tuple[Order, int]] = []  # the order, and for subscribers its offset
        self.state = "running"
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, "--name", name, "--directory", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                publisher, number, *offset = line.split()
                self.told.append(((publisher.decode(), int(number)), int(offset[0]) if offset else -1))

    def check(self) -> None:
        if self.state == "running" and self.process.poll() is not None:
            raise Broken(f"{self.name} ended by itself with exit code {self.process.returncode}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()  # what it said before it died counts
        self.state = "killed"

    def finish(self) -> None:
        if self.state == "running":
            assert self.process.stdin is not None
            self.process.stdin.close()
            if self.process.wait(timeout=CATCH_UP_S) != 0:
                raise Broken(f"{self.name} ended with exit code {self.process.returncode}")
            self._thread.join()
            self.state = "done"

    def clear_away(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Tally(NamedTuple):
    """What came of it."""

    acknowledged: int
    lost: int  # acknowledged, but not in the log
    doubled: int  # twice in the log
    unconfirmed: int  # in the log, but its publisher died before it could say so
    logged: int
    subscribers: dict[str, dict[str, int]]  # name -> delivered, missing, again, disorder

    @property
    def clean(self) -> bool:
        wrong = [one["missing"] + one["disorder"] for one in self.subscribers.values()]
        return self.lost == self.doubled == sum(wrong) == 0 < self.acknowledged


def tally(acked: list[Order], log: list[Order], lives: dict[str, list[list[tuple[Order, int]]]]) -> Tally:
    """Hold what was promised and what was delivered against what is in the log."""
    found = collections.Counter(log)
    subscribers = {}
    for name, told in lives.items():
        got = [order for life in told for order, _ in life]
        pairs = [pair for life in told for pair in itertools.pairwise(life)]
        subscribers[name] = {
            "delivered": len(set(got)),
            "missing": len(set(found) - set(got)),
            "again": len(got) - len(set(got)),
            "disorder": sum(after[1] <= before[1] for before, after in pairs),
        }
    return Tally(
        acknowledged=len(acked),
        lost=len(set(acked) - set(found)),
        doubled=sum(count - 1 for count in found.values()),
        unconfirmed=len(set(found) - set(acked)),
        logged=len(log),
        subscribers=subscribers,
    )


def read_log(directory: str) -> list[Order]:
    """Every message on disk, without any help from Heliograph."""
    orders = []
    for path in sorted(glob.glob(f"{directory}/channels/{CHANNEL}/0/*.jsonl")):
        with open(path, encoding="utf-8") as file:
            for line in file:
                event = json.loads(line)
                orders.append((event["partitionkey"], event["data"]["n"]))
    return orders


# -- the story ---------------------------------------------------------------------------------------------------


class Story:
    """Starts, kills and counts; the view shows it."""

    def __init__(self, directory: str, seconds: float, view: Any) -> None:
        self.directory = directory
        self.seconds = seconds
        self.view = view
        self.lives: list[Life] = []

    def start(self, role: str, name: str) -> None:
        self.lives.append(Life(role, name, self.directory))

    def live(self, name: str) -> Life:
        return [life for life in self.lives if life.name == name][-1]

    def told(self, names: tuple[str, ...]) -> dict[str, list[list[tuple[Order, int]]]]:
        return {name: [life.told for life in self.lives if life.name == name] for name in names}

    def run(self) -> Tally:
        for name in SUBSCRIBERS:
            self.start("subscribe", name)
        for name in PUBLISHERS:
            self.start("publish", name)
        self.wait_until_all_work()
        started = time.monotonic()
        acts = [
            (0.30, lambda: self.kill("publisher-2", "while it publishes; it stays dead")),
            (0.45, lambda: self.kill("mailer", "in its handler or between two")),
            (0.65, self.start_mailer_again),
        ]
        while (passed := time.monotonic() - started) < self.seconds:
            if acts and passed >= acts[0][0] * self.seconds:
                acts.pop(0)[1]()
            self.show()
            time.sleep(0.1)
        self.view.tell("publishers stop; subscribers catch up")
        for name in PUBLISHERS:
            self.live(name).finish()
        log = read_log(self.directory)
        self.catch_up(set(log))
        for life in self.lives:
            life.finish()
        self.view.show(self.lives, last=True)
        acked = [order for lives in self.told(PUBLISHERS).values() for life in lives for order, _ in life]
        return tally(acked, log, self.told(SUBSCRIBERS))

    def show(self) -> None:
        for life in self.lives:
            life.check()
        self.view.show(self.lives)

    def wait_until_all_work(self) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while not all(life.told for life in self.lives) and time.monotonic() < deadline:
            self.show()
            time.sleep(0.05)

    def kill(self, name: str, when: str) -> None:
        life = self.live(name)
        self.view.tell(f"SIGKILL {name} (process {life.process.pid}), {when}")
        life.kill()

    def start_mailer_again(self) -> None:
        self.start("subscribe", "mailer")
        self.view.tell(f"mailer starts again as process {self.live('mailer').process.pid}")

    def catch_up(self, wanted: set[Order]) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline:
            told = self.told(SUBSCRIBERS).values()
            if all(wanted <= {order for life in lives for order, _ in list(life)} for lives in told):
                return
            self.show()
            time.sleep(0.2)

    def clear_away(self) -> None:
        for life in self.lives:
            life.clear_away()


class PlainView:
    """One line a second, and one for everything that happens."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._next = 0.0

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:5.1f} s  {text}", flush=True)

    def tell(self, event: str) -> None:
        self._say(f"** {event}")

    def show(self, lives: list[Life], *, last: bool = False) -> None:
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + 1.0
            counts: collections.Counter[str] = collections.Counter()
            for life in lives:
                counts["published" if life.name in PUBLISHERS else life.name] += len(life.told)
            parts = [f"{name} {counts[name]:,}" for name in ("published", *SUBSCRIBERS)]
            self._say("   ".join(parts))

    def close(self) -> None:
        pass


class TerminalView:
    """A table that stays in place, and below it what happened."""

    def __init__(self) -> None:
        from rich.live import Live

        self._started = time.monotonic()
        self._events: list[str] = []
        self._seen: dict[Life, tuple[float, int, float]] = {}
        self._live = Live(refresh_per_second=8)
        self._live.start()

    def tell(self, event: str) -> None:
        self._events.append(f"{time.monotonic() - self._started:5.1f} s  {event}")

    def _rate(self, life: Life) -> float:
        now, count = time.monotonic(), len(life.told)
        since, before, rate = self._seen.get(life, (now, count, 0.0))
        if now - since >= 1.0:
            since, before, rate = now, count, (count - before) / (now - since)
        self._seen[life] = (since, before, rate)
        return rate

    def show(self, lives: list[Life], *, last: bool = False) -> None:  # noqa: ARG002 - the table shows all
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2), header_style="dim")
        for title, side in (("process", "left"), ("", "left"), ("messages", "right"), ("a second", "right")):
            table.add_column(title, justify=side)  # type: ignore[arg-type]
        table.add_column("state")
        colours = {"running": "green", "killed": "bold red", "done": "dim"}
        for life in lives:
            verb = "acknowledged" if life.name in PUBLISHERS else "delivered"
            rate = f"{self._rate(life):,.0f}" if life.state == "running" else ""
            state = Text(life.state, style=colours.get(life.state, "red"))
            table.add_row(f"{life.name} [dim]{life.process.pid}[/dim]", verb, f"{len(life.told):,}", rate, state)
        events = [Text(event, style="red" if "SIGKILL" in event else "cyan") for event in self._events]
        self._live.update(Group(table, Text(""), *events))

    def close(self) -> None:
        self._live.stop()


# -- the end -----------------------------------------------------------------------------------------------------


def report(found: Tally) -> None:
    """The count, and what it means."""
    print(f"\n  {found.acknowledged:>8,}  acknowledged to the publishers")
    print(f"  {found.acknowledged - found.lost:>8,}  of these are in the log" + _verdict(found.lost, "LOST"))
    if found.unconfirmed:
        print(f"  {found.unconfirmed:>8,}  more in the log: stored, but its publisher died before it could tell")
    if found.doubled:
        print(f"  {found.doubled:>8,}  are in the log twice: FAILED")
    for name, one in found.subscribers.items():
        print(f"  {one['delivered']:>8,}  delivered to {name} of {found.logged:,}{_verdict(one['missing'], 'MISSING')}")
        why = " (done, not yet saved as done, when killed)" if one["again"] else ""
        print(f"  {one['again']:>8,}    of these more than once{why}")
        if one["disorder"]:
            print(f"  {one['disorder']:>8,}    out of order: FAILED")
    if found.clean:
        print("\n  Nothing acknowledged is lost; every subscriber got every message, in order.")
    else:
        print("\n  FAILED: see above. Please report it with the directory below.")


def _verdict(wrong: int, word: str) -> str:
    return f", {wrong:,} {word}" if wrong else f", {word.lower()}: 0"


def show_where_to_look(directory: str) -> None:
    """The files, and two lines of grep's output."""
    segments = f"channels/{CHANNEL}/0/*.jsonl"
    grep = f"""grep -h '"partitionkey":"publisher-2"' {segments} | tail -n 2"""
    print("\nEverything is still there. The last two messages of the killed publisher:\n")
    print(f"$ cd {shlex.quote(directory)}\n$ {grep}", flush=True)
    subprocess.run(["sh", "-c", grep], cwd=directory, check=False)
    helio = os.path.join(os.path.dirname(sys.executable), "helio")
    print("\nTry also, there:\n")
    print(f"  jq -r '[.partitionkey, .data.n] | @tsv' {segments} | tail")
    print(f"  {helio if os.path.exists(helio) else 'helio'} -d . read {CHANNEL} --where key=publisher-2 --limit 5\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to publish (default: 12)")
    parser.add_argument("--plain", action="store_true", help="one line a second, as when piped")
    parser.add_argument("--directory", help="where to work; by default a new directory in the temporary one")
    parser.add_argument("--role", choices=("publish", "subscribe"), help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that tells the story
        {"publish": publish, "subscribe": subscribe}[arguments.role](arguments.directory, arguments.name)
        return 0
    directory = arguments.directory or tempfile.mkdtemp(prefix="heliograph-demo-")
    print("Three publishers and two subscribers, five processes, one directory, no server.\n", flush=True)
    view = TerminalView() if sys.stdout.isatty() and not arguments.plain else PlainView()
    story = Story(directory, arguments.seconds, view)
    try:
        found = story.run()
    except KeyboardInterrupt:
        return 130
    except Broken as error:
        print(f"\nFAILED: {error}. Please report it with {directory}", file=sys.stderr)
        return 1
    finally:
        view.close()
        story.clear_away()
    report(found)
    show_where_to_look(directory)
    return 0 if found.clean else 1


if __name__ == "__main__":
    sys.exit(main())
