"""Readers in the middle of a segment while it is compacted: none is told of a gap, none misses what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine import batches
from heliograph.log import index, indexing, segments
from heliograph.log.cursor import LogCursor
from heliograph.station import Station
from tests.log.test_compact import QuickFaulty
from tests.opening import Opener

CHANNEL = "prices"
COUNT = 300
SETTINGS: dict[str, Any] = {"segment_bytes": 300 << 10, "retention_compact": True}  # more than one chunk


def fill(station: Station, count: int = COUNT) -> list[int]:
    """Three keys that change all the time, and every tenth message without a key; the offsets that stay."""
    for number in range(count):
        key = None if number % 10 == 0 else f"k{number % 3}"
        station.publish(CHANNEL, {"n": number, "pad": "x" * 1500}, key=key)
    rotate(station)
    newest = {number % 3: number for number in range(count) if number % 10}
    return sorted([*range(0, count, 10), *newest.values()])


def rotate(station: Station) -> None:
    station.engine.write(CHANNEL, 0, lambda partition: partition.rotate())


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


class Reader:
    """Reads in small steps and keeps account."""

    def __init__(self, station: Station, start: int) -> None:
        self.start = start
        self.gaps: list[hg.Gap] = []
        self.got: list[int] = []
        self._messages = station.read(CHANNEL, start=start, on_gap=self.gaps.append)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            message = next(self._messages, None)
            if message is not None:
                assert message.data["n"] == message.offset
                self.got.append(message.offset)

    def finish(self, kept: list[int]) -> None:
        self.step(2 * COUNT)
        assert not self.gaps
        assert self.got == sorted(set(self.got))
        assert {offset for offset in kept if offset >= self.start} <= set(self.got)


STARTS = (0, 7, 100, 140, 222, 299)


@pytest.fixture(autouse=True)
def _no_index_is_made_from_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """There always is one that fits; one that is made anew does not know when its lines were appended."""

    def refuse(*_: object) -> None:
        raise AssertionError("an index was made again though there is one")

    monkeypatch.setattr(indexing, "build_index", refuse)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_readers_that_began_before_go_on_with_what_they_have_open(opened: Opener, compressed: bool) -> None:
    with opened(**SETTINGS, compress=compressed) as station:
        kept = fill(station)
        readers = [Reader(station, start) for start in STARTS]
        for reader in readers:
            reader.step()
        station.trim()
        for reader in readers:
            reader.finish(kept)
        assert [message.offset for message in station.read(CHANNEL)] == kept


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("kind", ["rename", "unlink", "open", "sync_directory", "write"])
def test_readers_between_any_two_steps_of_a_compaction(opened: Opener, compressed: bool, kind: str) -> None:
    """Whole readings from several places, and steps of readings that go on, before and after each step."""
    disk = QuickFaulty()
    with opened(**SETTINGS, disk=disk) as station:
        kept = fill(station)
        if compressed:
            station.alter_channel(CHANNEL, compress=True, retention_compact=False)
            station.trim()
            station.alter_channel(CHANNEL, retention_compact=True)
        lasting = [Reader(station, start) for start in STARTS]
        moments = 0

        def look(path: str, *_: object) -> None:
            nonlocal moments
            moments += 1
            for reader in lasting:
                reader.step(3)
            for start in STARTS[moments % 2 :: 2]:
                station.engine.forget_batches(CHANNEL, 0)  # what another one decoded needs no file
                Reader(station, start).finish(kept)

        disk.before[kind] = disk.after[kind] = look
        station.trim()
        disk.before.clear()
        disk.after.clear()
        assert moments > 3 or kind == "unlink"
        for reader in lasting:
            reader.finish(kept)
        assert [message.offset for message in station.read(CHANNEL)] == kept


def meanwhile(disk: QuickFaulty, kind: str, suffix: str, action: Callable[[], object]) -> None:
    """Do something once, in the middle of what a reader does: after it opened, or before it reads, such a file."""

    def hook(path: str, *_: object) -> None:
        if path.endswith(suffix) and not done:
            done.append(path)
            action()

    done: list[str] = []
    (disk.after if kind == "open" else disk.before)[kind] = hook


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize(("kind", "which"), [("open", "segment"), ("open", "index"), ("pread", "segment")])
def test_a_segment_that_is_replaced_while_a_reader_opens_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, compressed: bool, kind: str, which: str
) -> None:
    """Old lines with a new index, or the other way round, are not taken for damage, and mend nothing that is right."""
    disk = QuickFaulty()
    with opened(**SETTINGS, disk=disk) as station:
        kept = fill(station)
        if compressed:
            station.alter_channel(CHANNEL, compress=True, retention_compact=False)
            station.trim()
            station.alter_channel(CHANNEL, retention_compact=True)
        suffix = segments.INDEX if which == "index" else segments.COMPRESSED if compressed else segments.PLAIN
        reader = Reader(station, 13)
        monkeypatch.setattr(LogCursor, "_doubt", None)
        meanwhile(disk, kind, suffix, station.trim)
        reader.step()
        assert station.stats().compacted_messages
        disk.after.clear()
        disk.before.clear()
        reader.finish(kept)
        assert_indexes_fit(station)


def assert_indexes_fit(station: Station) -> None:
    place = station.engine.log(CHANNEL, 0).place
    active = station.engine.head_fields(CHANNEL, 0).base
    disk = station.engine.disk
    for base in [base for base in segments.bases(place.directory, disk) if base < active]:
        entries = index.chain(disk.read_file(segments.path_of(place.directory, base, segments.INDEX)), base)
        segment = segments.open_segment(place.directory, base, disk)
        assert entries[-1].end == segment.size()
        segment.close()


def test_what_was_the_active_segment_is_sealed_and_compacted_while_a_reader_looks_for_it(opened: Opener) -> None:
    """The reader was told how far it may go before; that is not how long the segment is now."""
    disk = QuickFaulty()
    with opened(segment_bytes=1 << 20, retention_compact=True, disk=disk) as station:
        for number in range(50):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 150}, key="k")

        def seal_and_compact() -> None:
            rotate(station)
            station.trim()

        reader = Reader(station, 5)
        done: list[str] = []

        def hook(path: str, *_: object) -> None:
            if path.endswith(segments.PLAIN) and not done:
                done.append(path)
                seal_and_compact()

        disk.before["open"] = hook
        reader.finish([49])
        assert done


def test_cursors_that_share_batches_do_not_take_each_others_places_in_other_files(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has the old file open, the other the new: a place in the one means nothing in the other."""
    with opened(**SETTINGS) as station:
        for number in range(COUNT):  # most of it stays, so that each place is one in the other file, too
            station.publish(CHANNEL, {"n": number, "pad": "x" * 1500}, key="k" if number % 10 == 0 else None)
        rotate(station)
        kept = [number for number in range(COUNT) if number % 10 or number == COUNT - 10]
        old = LogCursor(station.engine.log(CHANNEL, 0), 0, station.engine.disk)
        chunk = old.read()
        assert chunk is not None
        station.trim()
        new = LogCursor(station.engine.log(CHANNEL, 0), 0, station.engine.disk)
        begun = new.read()
        assert begun is not None
        monkeypatch.setattr(LogCursor, "_doubt", None)
        new.skip(chunk.next, chunk.place)
        got = []
        while (chunk := new.read()) is not None:
            assert not chunk.missing
            got += [n for n, line in enumerate(chunk.data.split(b"\n")[:-1], chunk.first) if line]
        assert {offset for offset in kept if offset >= got[0]} == set(got)
        old.close()
        new.close()


def test_a_long_stretch_of_empty_lines_is_passed_in_a_few_steps(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = QuickFaulty()
    with opened(retention_compact=True, disk=disk) as station:
        station.publish(CHANNEL, {"n": 0})
        for _ in range(3):
            station.publish_many(CHANNEL, [None] * 99_999 + [1], key="k")
        rotate(station)
        station.trim()
        monkeypatch.setattr(batches, "decode_line", None)  # not line by line
        disk.counts.clear()
        assert [message.offset for message in station.read(CHANNEL)] == [0, 300_000]
        assert disk.counts["pread"] < 100
        assert [message.offset for message in station.read(CHANNEL, start=123_456)] == [300_000]
        got: list[int] = []
        with station.subscribe(CHANNEL, lambda message: got.append(message.offset), name="w", start="first") as reader:
            while reader.position < 300_001:
                pass
        assert got == [0, 300_000]
        assert reader.stats().missing == 0
