"""Latest per key as an application sees it: live readers and writers, other processes, backups, lookups."""

from __future__ import annotations

import ast
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.backup import backup, check, restore
from heliograph.admin.transfer import export_messages, import_messages
from heliograph.admin.verify import verify
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "prices"
SETTINGS: dict[str, Any] = {"segment_bytes": 8192, "retention_compact": True}


def publish(station: Station, first: int, count: int, keys: int = 5) -> list[hg.Receipt]:
    return [
        station.publish(CHANNEL, {"n": number, "pad": "x" * 100}, key=f"k{number % keys}")
        for number in range(first, first + count)
    ]


def rotate(station: Station) -> None:
    station.engine.write(CHANNEL, 0, lambda partition: partition.rotate())


def offsets(station: Station) -> list[int]:
    return [message.offset for message in station.read(CHANNEL)]


def compacted(station: Station, count: int = 200) -> list[hg.Receipt]:
    """A log whose sealed part holds the last of each of five keys, and a rest that is active."""
    receipts = publish(station, 0, count)
    rotate(station)
    station.trim()
    return receipts


# -- who reads and writes meanwhile -----------------------------------------------------------------------------------


def test_threads_read_and_publish_while_it_is_compacted_again_and_again(opened: Opener, root: Path) -> None:
    with opened(**SETTINGS) as station:
        station.create_channel(CHANNEL)
        seen: dict[str, dict[str, int]] = {name: {} for name in ("a", "b", "c")}
        last = dict.fromkeys(seen, -1)
        gaps: list[hg.Gap] = []

        def handler(name: str) -> Any:
            def handle(message: hg.Message) -> None:
                assert message.offset > last[name]
                last[name] = message.offset
                seen[name][str(message.key)] = message.data["n"]

            return handle

        subscriptions = [
            station.subscribe(CHANNEL, handler(name), name=name, start="first", on_gap=gaps.append) for name in seen
        ]
        stop = threading.Event()
        compacting = threading.Thread(target=lambda: [station.trim() for _ in iter(stop.is_set, True)])
        compacting.start()
        number = 0
        while number < 3000 or (station.stats().compacted_messages <= 1000 and number < 60_000):
            publish(station, number, 500, keys=7)
            number += 500
        eventually(lambda: all(one.position == number for one in subscriptions))
        stop.set()
        compacting.join()
        newest = {f"k{one % 7}": one for one in range(number)}
        assert all(found == newest for found in seen.values())
        assert not gaps
        assert [one.stats().missing for one in subscriptions] == [0, 0, 0]
        assert station.stats().compacted_messages > 1000
        assert verify(station).ok
    checked_log(root, CHANNEL, holes=True)


READER = """
    import sys, heliograph as hg
    station = hg.open(sys.argv[1], name="host1")
    gaps, latest, before = [], {}, -1
    print("ready", flush=True)
    for message in station.read("prices", follow=True, on_gap=gaps.append):
        assert message.offset > before
        before = message.offset
        latest[message.key] = message.data["n"]
        if message.key == "end":
            break
    print(len(gaps), latest, flush=True)
"""


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_another_process_reads_on_while_it_is_compacted(opened: Opener, root: Path, compress: bool) -> None:
    with opened(**SETTINGS, compress=compress) as station:
        publish(station, 0, 400)
        with Child(READER, root) as reader:
            assert reader.line() == "ready"
            for first in range(400, 1600, 300):
                publish(station, first, 300)
                station.trim()
            station.publish(CHANNEL, {"n": -1}, key="end")
            gaps, _, latest = reader.line().partition(" ")
            assert gaps == "0"
            # Which key the reader met first depends on what was gone when it came by.
            assert ast.literal_eval(latest) == {**{f"k{n % 5}": n for n in range(1595, 1600)}, "end": -1}
        assert station.stats().compacted_messages > 1000


WRITER = """
    import sys, heliograph as hg
    with hg.open(sys.argv[1], name="host1", segment_bytes=8192, retention_compact=True) as station:
        for number in range(1500):
            station.publish("prices", {"n": number, "pad": "x" * 100}, key=f"other{number % 3}")
            if number == 100:
                print("going", flush=True)
        station.trim()  # waits for its turn: one process at a time
    print("done", flush=True)
"""


def test_another_process_publishes_and_compacts_meanwhile(opened: Opener, root: Path) -> None:
    with opened(**SETTINGS, durability="interval") as station:
        with Child(WRITER, root) as writer:
            assert writer.line() == "going"
            for first in range(0, 600, 100):
                publish(station, first, 100)
                station.trim()
            assert writer.line() == "done"
            writer.finish()
        rotate(station)
        station.trim()
        found = {message.key: message.data["n"] for message in station.read(CHANNEL)}
        assert found == {f"k{n % 5}": n for n in range(595, 600)} | {f"other{n % 3}": n for n in range(1497, 1500)}
        assert len(offsets(station)) == 8
        assert verify(station).ok


def test_it_is_done_by_itself(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.station.upkeep.INTERVAL_S", 0.02)
    with opened(**SETTINGS) as station:
        publish(station, 0, 200)
        eventually(lambda: station.stats().compacted_messages > 100)
        eventually(lambda: len(offsets(station)) < 80)
    records = [json.loads(line) for line in (root / "audit" / "audit.jsonl").read_text().splitlines()]
    assert sum(record["messages"] for record in records if record["event"] == "compacted") > 100


# -- positions and lookups --------------------------------------------------------------------------------------------


def test_positions_stay_and_who_is_behind_sees_fewer(opened: Opener) -> None:
    with opened(**SETTINGS) as station:
        publish(station, 0, 200)
        gaps: list[hg.Gap] = []
        got: list[int] = []

        def handle(message: hg.Message) -> None:
            got.append(message.offset)
            if message.offset == 99:
                raise hg.RetryLater(3600)

        with station.subscribe(CHANNEL, handle, name="slow", start="first") as subscription:
            eventually(lambda: subscription.position == 99)
        rotate(station)
        station.trim()
        assert station.channel(CHANNEL).first > 99, "nothing is left to pass"
        (info,) = station.subscriptions(CHANNEL)
        assert info.offset == 99
        got.clear()
        with station.subscribe(CHANNEL, lambda m: got.append(m.offset), name="slow", on_gap=gaps.append) as after:
            eventually(lambda: after.position == 200)
            assert after.stats().missing == 0
        assert got == [195, 196, 197, 198, 199]
        assert not gaps


def test_ids_times_and_offsets_find_what_is_left(opened: Opener) -> None:
    with opened(**SETTINGS) as station:
        publish(station, 0, 100)
        middle = station.publish(CHANNEL, {"n": 100})  # without a key
        publish(station, 101, 100)
        rotate(station)
        station.trim()
        receipts = list(station.read(CHANNEL))
        assert [message.offset for message in receipts] == [100, *range(196, 201)]
        for message in receipts:
            found = station.get(message.id)
            assert found is not None
            assert found.raw == message.raw
        found = station.get(middle.id, CHANNEL)
        assert found is not None
        assert next(station.read(CHANNEL, start=found.time)).offset == 100
        assert [m.offset for m in station.read(CHANNEL, start=receipts[2].time)] == [197, 198, 199, 200]
        assert [m.offset for m in station.read(CHANNEL, start=150, end=198)] == [196, 197]
        assert list(station.read(CHANNEL, start=101, end=150)) == []


def test_what_went_cannot_be_found_by_its_id(opened: Opener) -> None:
    with opened(**SETTINGS) as station:
        receipts = compacted(station)
        assert station.get(receipts[3].id) is None
        assert station.get(receipts[-1].id) is not None


def test_the_oldest_segments_go_once_nothing_is_left_in_them(opened: Opener, root: Path) -> None:
    with opened(**SETTINGS) as station:
        station.publish(CHANNEL, {"n": 0}, key="k0")
        compacted(station)
        info = station.channel(CHANNEL)
        assert info.first > 150
        assert offsets(station) == list(range(196, 201))
        assert min(int(path.name[:20]) for path in root.rglob("*.jsonl") if "prices" in str(path)) == info.first
        assert station.stats().trimmed_messages == 0, "retention did not do it"
    with opened(**SETTINGS) as station:
        assert offsets(station) == list(range(196, 201))


def test_who_reads_where_empty_segments_were_is_told_of_no_gap_but_of_what_retention_took(opened: Opener) -> None:
    with opened(**SETTINGS) as station:
        publish(station, 0, 100)
        readers = [station.engine.cursor(CHANNEL, 0, offset) for offset in (0, 50)]
        for _ in range(2):  # twice: what was emptied before and what is emptied now are one stretch
            first = station.channel(CHANNEL).next
            publish(station, first, 100)
            rotate(station)
            station.trim()
        assert station.channel(CHANNEL).first > 200
        for reader in readers:
            batch = reader.pull()
            assert batch is not None
            assert not batch.problems
        publish(station, 300, 100)
        rotate(station)
        station.alter_channel(CHANNEL, retention_compact=False, retention_bytes=1)
        station.trim()
        station.engine.forget_batches(CHANNEL, 0)
        for reader, offset in zip(readers, (0, 50), strict=True):
            reader.seek(offset)
            batch = reader.pull()
            assert batch is not None
            assert [(one.kind, one.offset) for one in batch.problems] == [("missing", offset)]


# -- what else is done to segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_backups_hold_what_is_left_and_rewritten_segments_are_copied_again(
    opened: Opener, tmp_path: Path, compress: bool
) -> None:
    with opened(**SETTINGS, compress=compress) as station:
        station.publish(CHANNEL, {"n": -1})  # holds its segment
        publish(station, 0, 150)
        backup(station, tmp_path / "backup")
        rotate(station)
        station.trim()
        publish(station, 150, 3)
        report = backup(station, tmp_path / "backup")
        assert report.incremental
        assert check(tmp_path / "backup") == []
        before = [(message.offset, message.raw) for message in station.read(CHANNEL)]
        again = backup(station, tmp_path / "backup")
        assert again.copied_bytes < 10_000, "nothing changed since"
    restore(tmp_path / "backup", tmp_path / "restored")
    with opened(tmp_path / "restored") as station:
        assert [(message.offset, message.raw) for message in station.read(CHANNEL)] == before
        assert station.publish(CHANNEL, {"n": 153}).offset == 154
        assert verify(station).ok


def test_a_restored_subscription_is_told_of_no_gap_where_nothing_was_left(opened: Opener, tmp_path: Path) -> None:
    with opened(**SETTINGS) as station:
        publish(station, 0, 100)
        station.subscribe(CHANNEL, print, name="slow", start=50, paused=True).close()
        publish(station, 100, 100)
        rotate(station)
        station.trim()
        assert station.channel(CHANNEL).first > 50
        backup(station, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    got: list[int] = []
    gaps: list[hg.Gap] = []
    with opened(tmp_path / "restored") as station:
        with station.subscribe(CHANNEL, lambda m: got.append(m.offset), name="slow", on_gap=gaps.append) as live:
            eventually(lambda: live.position == 200)
        assert got == list(range(195, 200))
        assert not gaps


def test_export_and_import_take_what_is_left(opened: Opener, tmp_path: Path) -> None:
    with opened(**SETTINGS) as station:
        compacted(station)
        out = io.BytesIO()
        assert export_messages(station, CHANNEL, out).messages == 5
        with opened(tmp_path / "other") as other:
            import_messages(other, out.getvalue().splitlines(keepends=True))
            assert [message.data["n"] for message in other.read(CHANNEL)] == list(range(195, 200))


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_redaction_and_damage_in_a_compacted_segment(opened: Opener, root: Path, compress: bool) -> None:
    with opened(**SETTINGS, compress=compress) as station:
        station.publish(CHANNEL, {"n": -1, "secret": "hush"})
        receipts = publish(station, 0, 200, keys=30)
        rotate(station)
        station.trim()
        station.redact(receipts[-1].id)
        station.trim()
        assert offsets(station) == [0, *range(171, 200)]
        assert verify(station).ok
        if not compress:
            path = max(path for path in root.rglob("*.jsonl") if path.stat().st_size)
            data = path.read_bytes()
            path.write_bytes(data.replace(b'"n":190,', b'"n":777,', 1))
            gaps: list[hg.Gap] = []
            left = [message.offset for message in station.read(CHANNEL, on_gap=gaps.append)]
            assert left == [n for n in [0, *range(171, 200)] if n != 191]
            assert [(gap.first, gap.next) for gap in gaps] == [(191, 192)]
            assert not verify(station).ok
            assert verify(station, repair=True).ok
        publish(station, 200, 60, keys=30)
        rotate(station)
        station.trim()
        assert [n for n in offsets(station) if n] == list(range(231, 261))
        assert verify(station).ok


def test_retention_by_age_and_compaction_go_together(opened: Opener) -> None:
    with opened(segment_bytes=8192, retention_compact=True, retention_bytes=20_000) as station:
        compacted(station)
        publish(station, 200, 400)
        station.trim()
        assert station.channel(CHANNEL).bytes < 30_000
        assert {message.key for message in station.read(CHANNEL)} == {f"k{n}" for n in range(5)}
