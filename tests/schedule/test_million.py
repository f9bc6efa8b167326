"""A million waiting messages: they cost neither memory nor a restart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.schedule.database import FILE
from heliograph.schedule.waiting import ORDER
from tests.schedule.conftest import Hands, Opener

MANY = 1_000_000
DUE_US = 4_000_000_000_000_000  # in the year 2096

OPEN = """
import json, resource, sys
import heliograph as hg

def read_bytes():
    lines = open("/proc/self/io").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))

with hg.open(sys.argv[1]) as station:
    dispatcher = station.timetable._dispatcher
    first = next(station.scheduled()).id
    while dispatcher._until_us > 1 << 61:
        pass
    station.publish("alerts", 1, delay=3600)
    print(json.dumps([read_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ? - 1)
INSERT INTO waiting (id, channel, due_us, asked_us, time_us, body)
SELECT printf('m%07d', n), 'alerts', ?2 + n, ?2 + n, 0,
       CAST('{"specversion":"1.0","id":"' || n || '","source":"host1","type":"t","channel":"alerts","data":0' AS BLOB)
FROM numbers
"""


def fill(station: hg.Station, number: int) -> None:
    """In one transaction, as publish_many stores its batch."""
    with Hands(station).waiting._database.writing() as connection:
        connection.execute(FILL, (number, DUE_US))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="says nothing about what a process reads")
def test_opening_and_dispatching_read_little_and_keep_nothing_of_a_million(tmp_path: Path) -> None:
    found: dict[int, tuple[int, int]] = {}
    for number in (1_000, MANY):
        root = tmp_path / str(number)
        with hg.open(root, name="host1", durability="os") as station:
            fill(station, number)
            assert station.scheduled_count() == number
        done = subprocess.run([sys.executable, "-c", OPEN, root], capture_output=True, check=True)
        read, resident = map(int, done.stdout.strip(b"[]\n ").split(b","))
        found[number] = (read, resident)
    (few_read, few_kb), (many_read, many_kb) = found.values()
    size = (tmp_path / str(MANY) / "schedule" / FILE).stat().st_size
    assert many_read - few_read < size / 20, "opening reads them all"
    assert many_kb < few_kb * 1.2, "waiting messages take memory"


def test_the_dispatcher_finds_what_is_due_through_an_index(opened: Opener) -> None:
    station = opened()
    fill(station, 10)
    database = Hands(station).waiting._database
    questions = [
        f"SELECT * FROM waiting WHERE due_us <= 5 AND moving = 0 ORDER BY {ORDER} LIMIT 1000",
        f"SELECT * FROM waiting WHERE ({ORDER}) > (5, 5, 5) ORDER BY {ORDER} LIMIT 500",
        f"SELECT * FROM waiting WHERE channel = 'a' AND ({ORDER}) > (5, 5, 5) ORDER BY {ORDER} LIMIT 500",
        "SELECT * FROM waiting WHERE channel = 'a' AND moving = 1 ORDER BY asked_us, seq",
        "SELECT min(due_us) FROM waiting",
        "SELECT * FROM waiting WHERE id = 'a'",
        "SELECT count(*) FROM waiting WHERE error <> ''",
    ]
    with database.reading() as connection:
        for question in questions:
            plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {question}")]
            assert any("INDEX" in step for step in plan), (question, plan)
            assert ORDER not in question or not any("TEMP" in step for step in plan), "all of one moment are sorted"


def test_a_schedule_of_before_gets_the_index_that_is_needed(opened: Opener) -> None:
    station = opened()
    station.publish("alerts", 1, delay=3600)
    database = Hands(station).waiting._database
    with database.writing() as connection:
        connection.execute("DROP INDEX waiting_order")
        connection.execute("CREATE INDEX waiting_due ON waiting (due_us)")
    station.close()
    again = opened()
    assert again.scheduled_count() == 1
    with Hands(again).waiting._database.reading() as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert "waiting_order" in names and "waiting_due" not in names
