"""The same promises with the real station underneath, and SIGKILL at the worst moments."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import heliograph as hg
from tests.delivery.harness import eventually


def live(data: Path, script: str) -> int:
    """Run a subscriber in a process of its own; how it ended."""
    prelude = """
        import os, signal, sys, time
        import heliograph as hg

        def die():
            os.kill(os.getpid(), signal.SIGKILL)

        station = hg.open(sys.argv[1], name="host1", position_flush_ms=1)
        quick = hg.Retry(max_retries=1, base_s=0.001, max_s=0.001)
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code, str(data)], timeout=100, check=False)
    return done.returncode


def test_killed_in_the_handler_again_and_again_every_message_is_handled(tmp_path: Path) -> None:
    data, journal = tmp_path / "data", tmp_path / "journal"
    with hg.open(data, name="host1") as station:
        station.publish_many("alerts", list(range(60)))
    script = f"""
        handled = 0
        journal = open({str(journal)!r}, "a", buffering=1)

        def handle(message):
            global handled
            if handled == 13:
                die()
            time.sleep(0.002)
            journal.write(f"{{message.data}}\\n")
            handled += 1

        subscription = station.subscribe("alerts", handle, name="worker", start="first")
        while subscription.position < 60:
            time.sleep(0.001)
        station.close()
    """
    lives = 1
    while (code := live(data, script)) == -signal.SIGKILL:
        lives += 1
        assert lives < 60, "no progress from life to life"
    assert code == 0
    assert lives > 1
    handled = [int(line) for line in journal.read_text().split()]
    assert set(handled) == set(range(60))
    firsts = list(dict.fromkeys(handled))
    assert firsts == sorted(firsts), "nothing was skipped and handled later"


DYING = """
import os
from heliograph.disk import Disk
def sync_or_die(fd):
    name = os.readlink(f"/proc/self/fd/{fd}")
    if "dead-letter" in name and name.endswith(".jsonl") and os.fstat(fd).st_size:
        die()
    os.fdatasync(fd)
Disk.fdatasync = staticmethod(sync_or_die)
"""
"""Dies when a dead letter is in the file and not on disk."""


@pytest.mark.parametrize("kind", ["", ", queue=True"])
@pytest.mark.parametrize("moment", ["before the letter", "written, not synced", "after the letter"])
def test_killed_around_a_dead_letter_there_is_exactly_one(tmp_path: Path, moment: str, kind: str) -> None:
    data = tmp_path / "data"
    with hg.open(data, name="host1") as station:
        station.publish_many("alerts", list(range(5)))
    at = {
        "before the letter": "station._publish_dead_letter = lambda *letter: die()",
        "written, not synced": DYING,
        "after the letter": """
publish = station._publish_dead_letter
def publish_and_die(*letter):
    publish(*letter)
    die()
station._publish_dead_letter = publish_and_die
""",
    }[moment]
    subscribe = f"""
        def handle(message):
            if message.data == 2:
                raise ValueError("boom")

        subscription = station.subscribe("alerts", handle, name="worker", start="first", retry=quick{kind})
        while sum(one.lag for one in station.subscriptions("alerts")):
            time.sleep(0.001)
        station.close()
    """
    assert live(data, at + textwrap.dedent(subscribe)) == -signal.SIGKILL
    assert live(data, subscribe) == 0
    with hg.open(data, name="host1") as station:
        (letter,) = station.read("alerts.dead-letter")
        assert letter.data["original"]["data"] == 2
        assert letter.data["offset"] == 2


def test_a_message_of_the_largest_size_still_fits_into_a_dead_letter(tmp_path: Path) -> None:
    def handle(message: hg.Message) -> None:
        raise ValueError("boom")

    with hg.open(tmp_path / "data", name="host1", max_bytes=10_000) as station:
        station.publish("alerts", "x" * 9_000)
        station.subscribe("alerts", handle, name="worker", start="first", retry=hg.Retry(max_retries=0))
        eventually(lambda: station.channel("alerts.dead-letter").messages == 1 if _has_letters(station) else False)
        (letter,) = station.read("alerts.dead-letter")
        assert len(letter.data["original"]["data"]) == 9_000


def _has_letters(station: hg.Station) -> bool:
    return "alerts.dead-letter" in {channel.name for channel in station.channels()}


def test_a_letter_whose_writer_was_killed_before_its_sync_is_seen_by_workers_that_go_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with hg.open(data, name="host1") as station:
        station.publish_many("alerts", [0, 1])
        with station.queue("alerts", "worker", start="first") as queue:
            queue.receive(1)[0].nack(error=hg.Reject("the channel of dead letters is open here"))
            assert len(list(station.read("alerts.dead-letter"))) == 1
            pull = """
                queue = station.queue("alerts", "worker")
                (job,) = queue.receive(1, wait_s=60)
                job.nack(error=hg.Reject("too bad"))
            """
            assert live(data, DYING + textwrap.dedent(pull)) == -signal.SIGKILL
            eventually(lambda: [job.nack(error=hg.Reject("too bad")) for job in queue.receive(1, wait_s=1)])
        letters = [letter.data["offset"] for letter in station.read("alerts.dead-letter")]
        assert letters == [0, 1]
