"""The head is shared memory: readers never see half of it, and a dead writer's half is mended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from heliograph.disk import SYSTEM_DISK, boot_id
from heliograph.engine.files import FilesEngine
from heliograph.log.head import SEQUENCE, Fields, Head, TornHead
from heliograph.station import Station, open_station
from tests.proof.tools import Child, checked_log

Opener = Any
HAMMERED_S = 1.0

STORER = """
    import sys
    from pathlib import Path
    from heliograph.disk import SYSTEM_DISK
    from heliograph.log.head import Fields, Head
    head, count = Head(Path(sys.argv[1]), SYSTEM_DISK), len(Fields._fields)
    print("ready", flush=True)
    k = 0
    while True:
        k += 1
        head.store(*[k] * count)
"""

PUBLISHER = """
    import sys
    import heliograph as hg
    with hg.open(sys.argv[1], durability="os") as station:
        print("ready", flush=True)
        for number in range(20_000):
            station.publish("a", number)
        print("done", flush=True)
        sys.stdin.read()
"""


def head_of(root: Path, channel: str = "a") -> Path:
    return root / "channels" / channel / "0" / "head"


def load(path: Path) -> Fields:
    head = Head(path, SYSTEM_DISK)
    try:
        return head.load()
    finally:
        head.close()


def make_odd(path: Path) -> None:
    """What a writer leaves that dies in the middle of a store, which also spoiled a field."""
    head = Head(path, SYSTEM_DISK)
    head.words[SEQUENCE] |= 1
    head.words[SEQUENCE + 1] = 999_999
    head.close()


def numbers(station: Station, channel: str = "a") -> list[int]:
    return [message.data for message in station.read(channel)]


def test_a_reader_never_sees_half_of_what_another_process_stores(tmp_path: Path) -> None:
    path = tmp_path / "head"
    Head.create(path, SYSTEM_DISK, boot_id(), Fields())
    head = Head(path, SYSTEM_DISK, writable=False)
    seen = set()
    with Child(STORER, path) as storer:
        assert storer.line() == "ready"
        until = time.monotonic() + HAMMERED_S
        while time.monotonic() < until:
            try:
                fields = head.load()
            except TornHead:  # the storer was put to sleep in the middle, which no reader can tell from its death
                continue
            assert len(set(fields)) == 1, f"torn: {fields}"
            seen.add(fields.next)
    assert len(seen) > 100, "the reader hardly met the storer"
    head.close()


def test_a_reader_never_sees_half_of_what_publishing_moves(tmp_path: Path) -> None:
    with open_station(tmp_path, name="host1", durability="os") as station:
        station.publish("a", -1)
    path = head_of(tmp_path)
    head = Head(path, SYSTEM_DISK, writable=False)
    log = path.with_name(f"{0:020d}.jsonl").open("rb", buffering=0)
    lines = crc = looks = 0
    with Child(PUBLISHER, tmp_path) as publisher, log:
        assert publisher.line() == "ready"
        while lines < 20_001:
            try:
                fields = head.load()
            except TornHead:
                continue
            data = log.read(fields.written - log.tell())
            lines, crc = lines + data.count(b"\n"), google_crc32c.extend(crc, data)
            assert (lines, crc, log.tell()) == (fields.next, fields.crc, fields.written), f"torn: {fields}"
            looks += 1
    assert looks > 100, "the reader hardly met the publisher"
    head.close()


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_the_next_appender_mends_a_head_whose_writer_died(opened: Opener, root: Path, durability: str) -> None:
    station = opened(durability=durability)
    for n in range(3):
        station.publish("a", n)
    station.engine.writer("a", 0).close()  # it gives a kept lock back, as the kernel does for a dead one
    make_odd(head_of(root))
    other = opened(durability=durability)
    assert other.publish("a", 3).offset == 3
    assert load(head_of(root)).next == 4
    assert numbers(other) == [0, 1, 2, 3]
    other.close()
    assert sorted(checked_log(root, "a")) == [0, 1, 2, 3]


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_reader_mends_a_head_whose_writer_died(opened: Opener, root: Path, durability: str) -> None:
    station = opened(durability=durability)
    station.publish_many("a", [0, 1, 2])
    station.engine.writer("a", 0).close()
    make_odd(head_of(root))
    other = opened(durability=durability)
    assert numbers(other) == [0, 1, 2]
    assert load(head_of(root)).next == 3
    assert other.channel("a").next == 3


def test_a_reader_without_a_trace_sees_through_a_torn_head_and_leaves_it(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish_many("a", [0, 1, 2])
    make_odd(head_of(root))
    before = head_of(root).read_bytes()
    assert numbers(opened(read_only=True)) == [0, 1, 2]
    assert head_of(root).read_bytes() == before


def test_a_fence_and_the_channels_generation_survive_a_torn_head(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish("a", 0)
    station.alter_channel("a", segment_bytes=8192)
    generation = load(head_of(root)).generation
    make_odd(head_of(root))
    station.publish("a", 1)
    assert load(head_of(root)).generation > generation
    assert numbers(station) == [0, 1]


def test_a_missing_head_is_made_again_when_nobody_has_the_directory_open(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish_many("a", [0, 1, 2])
        before = station.channel("a").incarnation
    head_of(root).unlink()
    with opened() as station:
        assert numbers(station) == [0, 1, 2]
        assert station.publish("a", 3).offset == 3
        assert station.channel("a").incarnation == before  # nothing was lost that anybody had seen
    assert load(head_of(root)).next == 4


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("what", ["boot", "inode", "magic"])
def test_a_head_of_another_boot_or_file_is_not_believed(opened: Opener, root: Path, what: str, read_only: bool) -> None:
    with opened() as station:
        station.publish_many("a", [0, 1, 2])
    truth = load(head_of(root))
    _lie(head_of(root), truth, what)
    with opened(read_only=read_only) as station:
        assert numbers(station) == [0, 1, 2]
        assert (station.channel("a").first, station.channel("a").next) == (0, 3)
    if not read_only:
        assert load(head_of(root)).next == 3


def _lie(path: Path, truth: Fields, what: str) -> None:
    """A head that says less than there is, with an identity that is not this one's."""
    Head.create(path, SYSTEM_DISK, bytes(16) if what == "boot" else boot_id(), truth._replace(next=1, first=1))
    with path.open("r+b") as file:
        if what == "inode":
            file.seek(24)
            file.write((path.stat().st_ino + 1).to_bytes(8, "little"))
        if what == "magic":
            file.write(b"HELIOHD9")


@pytest.mark.parametrize("unsynced", [False, True])
def test_after_a_boot_channels_begin_a_new_life_only_if_somebody_may_have_seen_what_is_lost(
    opened: Opener, root: Path, unsynced: bool
) -> None:
    station = opened(durability="interval" if unsynced else "always")
    station.publish_many("a", [0, 1, 2])
    before = station.channel("a").incarnation
    _die(station.engine)
    with head_of(root).open("r+b") as file:
        file.seek(8)
        file.write(bytes(16))
    with opened() as again:
        assert (again.channel("a").incarnation != before) == unsynced
        assert numbers(again) == [0, 1, 2]


def _die(engine: FilesEngine) -> None:
    """As a killed process: its locks are free, and nothing is said or synced any more."""
    if engine._syncer is not None:
        engine._syncer.close()
    engine._keeper.close()
    engine.abandon()


def test_a_head_that_is_too_short_is_made_again(root: Path) -> None:
    with open_station(root, name="host1") as station:
        station.publish_many("a", [0, 1, 2])
    with head_of(root).open("r+b") as file:
        file.truncate(100)
    with open_station(root) as station:
        assert numbers(station) == [0, 1, 2]
        assert station.publish("a", 3).offset == 3
