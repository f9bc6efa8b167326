"""After a crash: whatever is left of the active segment's tail, of its index and of its head, in any combination."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.log import indexing, recovery
from heliograph.station import Station
from tests.faults import Died, FaultyDisk, QuickDisk
from tests.opening import Opener
from tests.proof.tools import checked_log

NOW_US = 1_800_000_000_000_000
CHANNEL = "events"
SEGMENT = "00000000000000000000.jsonl"


def partition(root: Path, channel: str = CHANNEL) -> Path:
    return root / "channels" / channel / "0"


def fill(station: Station, singles: int = 5, batch: int = 3) -> None:
    for number in range(singles):
        station.publish(CHANNEL, {"n": number, "pad": "x" * (number * 7)})
    if batch:
        station.publish_many(CHANNEL, [{"n": singles + i, "pad": "é" * i} for i in range(batch)])


def numbers(station: Station) -> list[int]:
    return [message.data["n"] for message in station.read(CHANNEL)]


def expected_after(data: bytes, cut: int) -> int:
    """How many lines must be left when the segment ends at a byte: whole lines, whole batches."""
    lines = data[:cut].split(b"\n")[:-1]
    while lines:
        first, count = (int(part) for part in json.loads(lines[-1]).get("batch", f"{len(lines) - 1}/1").split("/"))
        if first + count == len(lines):
            break
        lines.pop()
    return len(lines)


class Segment:
    """A segment's bytes, put into a directory of their own and recovered there."""

    def __init__(self, directory: Path, data: bytes) -> None:
        self.directory = directory
        self.data = data
        self.place = indexing.Place(directory, "host1", 0, directory / "quarantine")

    def recovered(self, content: bytes, index: bytes | None = None) -> recovery.Recovered:
        self.directory.mkdir(exist_ok=True)
        (self.directory / SEGMENT).write_bytes(content)
        path = self.directory / SEGMENT.replace(".jsonl", ".index")
        path.unlink(missing_ok=True)
        if index is not None:
            path.write_bytes(index)
        return recovery.recover(self.place, QuickDisk(), None, NOW_US)

    def check(self, content: bytes, kept: int, index: bytes | None = None) -> None:
        """Exactly the first ``kept`` lines survive, and a second recovery changes nothing."""
        size = sum(len(line) for line in self.data.splitlines(keepends=True)[:kept])
        for _ in range(2 if len(content) % 10 == 0 else 1):
            fields = self.recovered(content, index).fields
            assert (fields.next, fields.written, fields.synced_next) == (kept, size, kept)
            content = (self.directory / SEGMENT).read_bytes()
            assert content == self.data[:size]


@pytest.fixture
def segment(opened: Opener, root: Path, tmp_path: Path) -> Segment:
    with opened() as station:
        fill(station)
    return Segment(tmp_path / "segment", (partition(root) / SEGMENT).read_bytes())


# -- tails ----


def test_a_segment_cut_at_every_byte_keeps_every_whole_line_and_no_half_batch(segment: Segment) -> None:
    for cut in range(len(segment.data) + 1):
        segment.check(segment.data[:cut], expected_after(segment.data, cut))


def test_zeros_behind_the_last_whole_line_are_cut(segment: Segment) -> None:
    for cut in range(0, len(segment.data) + 1, 7):
        for zeros in (1, 511, 4096):
            segment.check(segment.data[:cut] + bytes(zeros), expected_after(segment.data, cut))


def test_garbage_behind_the_last_whole_line_is_cut(segment: Segment) -> None:
    luck = random.Random(1)
    for cut in range(0, len(segment.data) + 1, 5):
        garbage = luck.randbytes(luck.randint(1, 600))
        segment.check(segment.data[:cut] + garbage, expected_after(segment.data, cut))


def test_garbage_that_looks_like_json_is_cut(segment: Segment) -> None:
    whole = len(segment.data)
    for garbage in (
        b"{}\n",
        b'{"specversion":"1.0"}\n',
        b"null\n[]\n",
        b'{"crc":"00000000"}\n',
        b'x,"crc":"00000000"}\n',
    ):
        segment.check(segment.data + garbage, expected_after(segment.data, whole))


def test_half_a_line_over_an_older_longer_tail_is_cut(segment: Segment) -> None:
    """A block that was reused holds the end of some older line: its newline must not save the new half."""
    lines = segment.data.splitlines(keepends=True)
    for at in range(1, len(lines[1])):
        mixed = lines[1][:at] + lines[2][at:]
        if mixed not in lines:
            segment.check(lines[0] + mixed, 1)


def test_a_copy_of_an_earlier_line_does_not_make_an_offset_twice(segment: Segment) -> None:
    lines = segment.data.splitlines(keepends=True)
    fields = segment.recovered(b"".join(lines[:3]) + lines[1]).fields
    assert fields.next in (3, 4)
    left = (segment.directory / SEGMENT).read_bytes().splitlines(keepends=True)
    assert left[:3] == lines[:3]


def test_an_index_does_not_save_what_the_segment_lost(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        for number in range(300):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
    data = (partition(root) / SEGMENT).read_bytes()
    index = (partition(root) / SEGMENT.replace(".jsonl", ".index")).read_bytes()
    assert len(index) >= 4 * 64
    segment = Segment(tmp_path / "segment", data)
    for cut in range(0, len(data), 997):
        segment.check(data[:cut], expected_after(data, cut), index)


def test_a_damaged_index_costs_nothing(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        for number in range(300):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
    data = (partition(root) / SEGMENT).read_bytes()
    index = (partition(root) / SEGMENT.replace(".jsonl", ".index")).read_bytes()
    segment = Segment(tmp_path / "segment", data)
    luck = random.Random(2)
    damaged = [b"", index[:63], index[64:], bytes(len(index)), luck.randbytes(len(index)), index + index]
    for _ in range(40):
        flipped = bytearray(index)
        flipped[luck.randrange(len(index))] ^= 1 << luck.randrange(8)
        damaged.append(bytes(flipped))
    for one in damaged:
        segment.check(data, 300, one)


def test_what_is_cut_and_held_whole_lines_is_set_aside(segment: Segment) -> None:
    lines = segment.data.splitlines(keepends=True)
    half_batch = b"".join(lines[:7])
    segment.check(half_batch, 5)
    quarantined = b"".join(path.read_bytes() for path in segment.place.quarantine.iterdir())
    assert lines[5] in quarantined
    assert lines[6] in quarantined


def test_an_atomic_batch_that_lost_a_line_in_the_middle_is_cut_whole(segment: Segment) -> None:
    """A power cut may bring the last block of a batch to the disk and not the first."""
    lines = segment.data.splitlines(keepends=True)
    for lost in (5, 6):
        blank = bytes(len(lines[lost]) - 1) + b"\n"
        content = b"".join([*lines[:lost], blank, *lines[lost + 1 :]])
        segment.check(content, 5)
        segment.check(content.replace(b"\0\n", b"\0\0"), 5)


def test_a_half_batch_in_front_of_whole_lines_is_not_half_visible(opened: Opener, root: Path) -> None:
    """Several publishers share one write: a power cut may take a block of the first and leave the last."""
    with opened() as station:
        station.publish(CHANNEL, {"n": 0})
        station.publish_many(CHANNEL, [{"n": 1}, {"n": 2}, {"n": 3}])
        station.publish(CHANNEL, {"n": 4})
        station.publish_many(CHANNEL, [{"n": 5}, {"n": 6}])
    path = partition(root) / SEGMENT
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], bytes(len(lines[2]) - 1) + b"\n", *lines[3:]]))
    (partition(root) / "head").unlink()
    for _ in range(2):
        with opened() as station:
            gaps: list[hg.Gap] = []
            read = [message.data["n"] for message in station.read(CHANNEL, on_gap=gaps.append)]
            assert read == [0, 4, 5, 6]
            assert {offset for gap in gaps for offset in range(gap.first, gap.next)} == {1, 2, 3}
    quarantined = b"".join(path.read_bytes() for path in (root / "quarantine").rglob("*.bad"))
    assert lines[1] in quarantined
    assert lines[3] in quarantined


def test_a_batch_that_an_index_cuts_in_two_is_whole_all_the_same(opened: Opener, root: Path) -> None:
    """An index made from the lines alone may end inside a batch; the next recovery must not take the rest for half."""
    with opened() as station:
        station.publish_many(CHANNEL, [{"n": n, "pad": "x" * 1000} for n in range(100)])
    for _ in range(3):
        (partition(root) / "head").unlink()
        with opened() as station:
            assert numbers(station) == list(range(100))


def test_a_batch_is_never_mistaken_for_whole_because_of_what_its_payload_says(
    opened: Opener, root: Path, tmp_path: Path
) -> None:
    with opened() as station:
        tricks = [
            ',"batch":"0/1","origin":"',
            {"batch": "0/1", "origin": "host1.abc"},
            ',"crc":"00000000"}',
            "\n",
            "\\n",
        ]
        station.publish_many(CHANNEL, tricks)
        station.publish(CHANNEL, ',"batch":"0/99"')
        assert [message.data for message in station.read(CHANNEL)] == [*tricks, ',"batch":"0/99"']
    data = (partition(root) / SEGMENT).read_bytes()
    segment = Segment(tmp_path / "segment", data)
    for cut in range(len(data) + 1):
        segment.check(data[:cut], expected_after(data, cut))


# -- through the station: head, index and tail in every combination ----


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _garbage(path: Path) -> None:
    path.write_bytes(random.Random(3).randbytes(path.stat().st_size or 64))


def _shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _torn(path: Path) -> None:
    with path.open("r+b") as file:  # the sequence is odd and half of the fields are of another time
        file.seek(64)
        sequence = int.from_bytes(file.read(8), "little")
        file.seek(64)
        file.write((sequence | 1).to_bytes(8, "little"))
        file.seek(72)
        file.write(b"\x07" * 40)


def _other_boot(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"another boot id!")
        file.seek(72)
        file.write(b"\x05" * 40)


def _kept(path: Path) -> None:
    pass


Damage = Callable[[Path], None]
HEADS: list[Damage] = [_kept, os.unlink, _zeroed, _garbage, _shortened, _emptied, _torn, _other_boot]
INDEXES: list[Damage] = [_kept, os.unlink, _zeroed, _garbage, _shortened, _emptied]
TAILS = [b"", b'{"half', bytes(700), b"garbage\nand more\n", b"\xff" * 64]


@pytest.mark.parametrize("head", HEADS, ids=lambda damage: f"head{damage.__name__}")
@pytest.mark.parametrize("index", INDEXES, ids=lambda damage: f"index{damage.__name__}")
def test_whatever_happens_to_head_and_index_every_message_is_found_and_publishing_goes_on(
    opened: Opener, root: Path, head: Damage, index: Damage
) -> None:
    with opened(segment_bytes=30_000) as station:
        for number in range(200):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
    for tail in TAILS:
        active = max(partition(root).glob("*.jsonl"))
        with active.open("ab") as file:
            file.write(tail)
        head(partition(root) / "head")
        for path in partition(root).glob("*.index"):
            index(path)
        with opened(segment_bytes=30_000) as station:
            before = numbers(station)
            assert before == list(range(len(before)))
            assert station.publish(CHANNEL, {"n": len(before), "pad": ""}).offset == len(before)
            assert numbers(station) == [*before, len(before)]
    assert len(checked_log(root, CHANNEL)) == 200 + len(TAILS)


def test_a_stale_head_of_this_boot_loses_nothing(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        copies = []
        for number in range(60):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
            copies.append((partition(root) / "head").read_bytes())
    for copy in copies:
        with (partition(root) / "head").open("r+b") as file:
            file.write(copy)
        with opened(segment_bytes=4096) as station:
            assert numbers(station) == list(range(60))
            assert station.channel(CHANNEL).next == 60


def test_a_flipped_bit_in_the_head_loses_nothing(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        for number in range(60):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
    good = (partition(root) / "head").read_bytes()
    luck = random.Random(4)
    for expected in range(60, 120):
        flipped = bytearray((partition(root) / "head").read_bytes())
        flipped[luck.randrange(208)] ^= 1 << luck.randrange(8)
        with (partition(root) / "head").open("r+b") as file:
            file.write(flipped)
        with opened(segment_bytes=4096) as station:
            assert numbers(station) == list(range(expected))
            assert station.publish(CHANNEL, {"n": expected, "pad": "x" * 100}).offset == expected
    assert len(good) == 4096


def test_an_index_from_before_the_last_appends_is_no_harm(opened: Opener, root: Path) -> None:
    with opened() as station:
        for number in range(200):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
        stale = {path: path.read_bytes() for path in partition(root).glob("*.index")}
        for number in range(200, 400):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
    for path, data in stale.items():
        path.write_bytes(data)
    (partition(root) / "head").unlink()
    with opened() as station:
        assert numbers(station) == list(range(400))
        assert [message.data["n"] for message in station.read(CHANNEL, start=399)] == [399]


def test_recovery_is_interrupted_at_every_call_of_the_disk_and_then_finished(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station)
    lines = (partition(root) / SEGMENT).read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], b"\xff" * 30 + lines[2][30:-1], *lines[3:], b'{"half'])  # eats a newline, too
    shutil.copytree(root, root.parent / "pristine")
    for number in range(1, 200):
        shutil.rmtree(root)
        shutil.copytree(root.parent / "pristine", root)
        (partition(root) / SEGMENT).write_bytes(damaged)
        (partition(root) / "head").unlink()
        disk = FaultyDisk()
        disk.kill_at(number)
        try:
            opened(disk=disk).close()
        except Died:
            disk.bury()
        with opened() as station:
            assert [number for number in numbers(station) if number != 3] == [0, 1, 4, 5, 6, 7]
            assert station.publish(CHANNEL, {"n": 8}).offset == 8
        if not disk.fired:
            break
    assert number > 10
    assert not disk.fired


# -- live repair: somebody died between its write and its word in the head ----


def test_what_a_dead_writer_left_behind_the_head_is_adopted_by_the_next_append(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station)
        reference = (partition(root) / SEGMENT).read_bytes()
        head = (partition(root) / "head").read_bytes()
        station.publish(CHANNEL, {"n": 8})
    last = (partition(root) / SEGMENT).read_bytes()[len(reference) :]
    for tail, expected in ((last, 9), (last[:-1], 8), (last + last[:20], 9), (b"", 8), (bytes(100), 8)):
        (partition(root) / SEGMENT).write_bytes(reference)
        with (partition(root) / "head").open("r+b") as file:
            file.write(head)
        with opened() as station:
            assert station.channel(CHANNEL).next == 8
            with (partition(root) / SEGMENT).open("ab") as file:
                file.write(tail)  # as a process would that is killed now
            assert station.publish(CHANNEL, {"n": expected}).offset == expected
            assert numbers(station) == list(range(expected + 1))
        assert len(checked_log(root, CHANNEL)) == expected + 1
