"""Who dies while it keeps the lock has not said the times of its last messages: they are found all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import heliograph as hg
from heliograph.admin.verify import verify
from tests.arrivals import lines
from tests.federation.stations import ROOT

PROGRAM = """
import sys, time, heliograph as hg
station = hg.open(sys.argv[1], name="host1", durability="interval", sync_interval_ms=60_000)
station.publish("alerts", "early")
time.sleep(0.05)
for number in range(3):
    station.publish("alerts", number)
print("done", flush=True)
time.sleep(60)
"""


def test_reading_from_a_time_finds_the_last_messages_of_a_killed_process(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert child.stdout is not None and child.stdout.readline() == b"done\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with hg.open(tmp_path / "data", name="host1") as station:
        times = [message.time for message in station.read("alerts")]
        station.engine.relayed.arrive("alerts", lines(0, 2_000))  # older ones, until the entry of the index is full
        assert [message.data for message in station.read("alerts", start=times[1])][:3] == [0, 1, 2]
        assert verify(station).ok
