"""Where a subscription resumes when its log is not the one it was: nothing new is skipped, and it is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine.port import Position
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"


def fill(station: Station, numbers: range, pad: int = 20) -> None:
    for number in numbers:
        station.publish(CHANNEL, {"n": number, "pad": "x" * pad})


def saved(station: Station, offset: int) -> Position:
    """The position of somebody who has done everything before an offset."""
    last = next(iter(station.read(CHANNEL, start=offset - 1))) if offset else None
    now_us = station.engine.clock.time_ns() // 1000
    return Position(station.engine.incarnation(CHANNEL), offset, last.id if last else "", now_us)


def audited(root: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (root / "audit" / "audit.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == "position-moved"]


@pytest.mark.parametrize("offset", [0, 1, 7, 20])
def test_a_position_that_fits_is_taken_as_it_is(opened: Opener, root: Path, offset: int) -> None:
    with opened() as station:
        fill(station, range(20))
        assert station.engine.fit_position(CHANNEL, 0, saved(station, offset)) == (offset, None)
        assert not audited(root)


def test_a_position_that_fits_is_taken_in_a_new_incarnation_too(opened: Opener) -> None:
    with opened() as station:
        fill(station, range(20))
        position = saved(station, 7)
        station.engine.new_incarnation(CHANNEL, "for this test")
        assert station.engine.fit_position(CHANNEL, 0, position) == (7, None)


def test_a_position_ahead_of_the_log_is_brought_back_and_told(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station, range(20))
        position = Position(station.engine.incarnation(CHANNEL), 50, "gone", station.engine.clock.time_ns() // 1000)
        offset, gap = station.engine.fit_position(CHANNEL, 0, position)
        assert offset <= 20
        assert gap is not None
        assert (gap.channel, gap.partition, gap.first, gap.next) == (CHANNEL, 0, offset, 50)
        (record,) = audited(root)
        assert (record["before"], record["after"]) == (50, offset)


def test_a_trimmed_position_begins_where_the_log_begins(opened: Opener) -> None:
    with opened(segment_bytes=4096, retention_bytes=4096) as station:
        fill(station, range(80))
        position = saved(station, 5)
        station.trim()
        first = station.channel(CHANNEL).first
        assert first > 5
        offset, gap = station.engine.fit_position(CHANNEL, 0, position)
        assert offset == first
        assert gap is not None
        assert (gap.first, gap.next) == (5, first)


def test_a_position_behind_a_redacted_message_is_believed_in_the_same_life(opened: Opener) -> None:
    with opened() as station:
        fill(station, range(20))
        position = saved(station, 7)
        station.redact(position.id)
        assert station.engine.fit_position(CHANNEL, 0, position) == (7, None)


def test_a_position_behind_a_redacted_message_is_not_believed_in_another_life(opened: Opener) -> None:
    with opened() as station:
        fill(station, range(20))
        position = saved(station, 7)
        station.redact(position.id)
        station.engine.new_incarnation(CHANNEL, "for this test")
        offset, gap = station.engine.fit_position(CHANNEL, 0, position)
        assert offset <= 7
        assert gap is not None or offset == 7


@pytest.mark.parametrize("handled", [60, 25], ids=["it had read on", "it had not read on"])
@pytest.mark.parametrize("after", [5, 60], ids=["still shorter", "longer again"])
@pytest.mark.parametrize("pad", [20, 800], ids=["not indexed yet", "indexed"])
def test_what_was_appended_after_an_older_copy_was_restored_is_delivered(
    opened: Opener, root: Path, tmp_path: Path, handled: int, after: int, pad: int
) -> None:
    with opened() as station:
        fill(station, range(30), pad)
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        fill(station, range(30, 60), pad)
        station.subscribe(CHANNEL, lambda _: None, name="worker-1", paused=True).close()
        station.seek(CHANNEL, "worker-1", handled)
        position = station.engine.load_position(CHANNEL, "worker-1", 0)
        assert position is not None
    root.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "copy", root)
    with opened() as station:
        station.engine.save_position(CHANNEL, "worker-1", 0, position)  # positions lived elsewhere, the log did not
        fill(station, range(1000, 1000 + after), pad)
        got: list[int] = []
        gaps: list[hg.Gap] = []
        station.subscribe(CHANNEL, lambda message: got.append(message.data["n"]), name="worker-1", on_gap=gaps.append)
        eventually(lambda: got and got[-1] == 999 + after)
        new = range(1000, 1000 + after)
        assert [number for number in got if number >= 1000] == list(new), "appended after the restore, and skipped"
        assert got == sorted(got)
        if handled > 30:
            assert gaps
            assert audited(root)
        else:
            assert got == [*range(handled, 30), *new]


def test_a_subscription_that_had_handled_nothing_yet_does_not_skip_what_came_after_a_restore(
    opened: Opener, root: Path, tmp_path: Path
) -> None:
    """Its position names no message that could be recognised."""
    with opened() as station:
        fill(station, range(10))
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        fill(station, range(10, 30))
        station.subscribe(CHANNEL, lambda _: None, name="worker-1", start="new", paused=True).close()
        position = station.engine.load_position(CHANNEL, "worker-1", 0)
        assert position is not None
        assert (position.offset, position.id) == (30, "")
    root.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "copy", root)
    with opened() as station:
        station.engine.save_position(CHANNEL, "worker-1", 0, position)
        fill(station, range(1000, 1050))
        got: list[int] = []
        station.subscribe(CHANNEL, lambda message: got.append(message.data["n"]), name="worker-1")
        eventually(lambda: got and got[-1] == 1049)
        assert [number for number in got if number >= 1000] == list(range(1000, 1050))


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_saved_position_is_never_ahead_of_what_is_synced(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    with opened(durability=durability, sync_interval_ms=60_000, position_flush_ms=1) as station:
        save = station.engine.positions.save
        saves: list[tuple[int, int]] = []

        def watched(channel: str, subscription: str, partition: int, position: Position) -> None:
            saves.append((position.offset, station.engine.head_fields(channel, partition).synced_next))
            save(channel, subscription, partition, position)

        monkeypatch.setattr(station.engine.positions, "save", watched)
        got: list[int] = []
        with station.subscribe(CHANNEL, lambda message: got.append(message.offset), name="worker-1", start="first"):
            for number in range(200):
                station.publish(CHANNEL, {"n": number})
            eventually(lambda: len(got) == 200)
        assert saves[-1][0] == 200
        assert all(offset <= synced for offset, synced in saves), saves
