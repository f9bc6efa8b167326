"""The small parts of a log by themselves: lines, index entries, segments, the head, locks, audit."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.disk import Disk, boot_id
from heliograph.log import index, lines, segments
from heliograph.log.audit import Audit
from heliograph.log.head import Fields, Head, TornHead
from heliograph.log.locks import FileLock
from tests.faults import FaultyDisk, QuickDisk

WORDS = st.integers(0, 2**64 - 1)
ENTRY = st.builds(
    index.Entry, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)  # fmt: skip


def line(text: bytes, offset: int, batch: bool = False) -> bytes:
    body = b'{"id":"x","data":' + text
    place = lines.origin_place(b"host1.abc", 0)
    finish = lines.stamp_batch if batch else lines.stamp
    bodies = [body, body] if batch else [body]
    return finish(bodies, [google_crc32c.value(one) for one in bodies], place, offset)


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**40))
def test_a_stamped_line_is_intact_and_knows_its_place(text: bytes, offset: int) -> None:
    text = json.dumps(text.hex()).encode()
    stored = line(text, offset)
    assert stored.endswith(b"}\n")
    assert lines.intact(stored[:-1])
    assert json.loads(stored)["originseq"] == f"0/{offset}"
    place = lines.origin_of(stored[:-1])
    assert place is not None
    assert (place.station, place.incarnation, place.partition, place.offset) == ("host1", "abc", 0, offset)
    assert lines.batch_of(stored[:-1]) is None


@given(st.integers(0, 10**6), st.data())
def test_no_single_flipped_bit_goes_unnoticed(offset: int, data: st.DataObject) -> None:
    stored = bytearray(line(b'"some payload"', offset)[:-1])
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= 1 << data.draw(st.integers(0, 7))
    assert not lines.intact(bytes(stored))


def test_a_batch_says_so_on_each_of_its_lines_unless_it_is_one() -> None:
    first, second = line(b"1", 7, batch=True).splitlines()
    assert lines.batch_of(first) == lines.batch_of(second) == (7, 2)
    body = b'{"id":"x","data":1'
    alone = lines.stamp_batch([body], [google_crc32c.value(body)], lines.origin_place(b"host1.abc", 0), 7)
    assert alone == line(b"1", 7)


@given(
    st.lists(st.binary(max_size=8).map(lambda text: json.dumps(text.hex()).encode()), min_size=1, max_size=12),
    st.one_of(st.integers(0, 2**40), st.sampled_from([8, 98, 995, 1000, 1995, 999_995])),
    st.integers(0, 1000),
    st.sampled_from([b"host1.abc", b"100%d#.abc"]),
)
def test_a_batch_in_columns_becomes_the_lines_that_its_bodies_would(
    texts: list[bytes], first: int, number: int, origin: bytes
) -> None:
    numbers = lines.decimals(range(number, number + len(texts)))
    columns: list[lines.Column] = [b'{"id":"%b#', numbers, b'","data":', texts]
    bodies = [b'{"id":"%%b#%d","data":%b' % (number + at, text) for at, text in enumerate(texts)]
    place = lines.origin_place(origin, 0)
    assert lines.put_together(columns, len(texts)) == bodies
    crcs = [google_crc32c.value(body) for body in bodies]
    assert lines.fill(columns, len(texts), place, first) == lines.stamp_batch(bodies, crcs, place, first)
    assert lines.bytes_in(columns, len(texts)) == sum(map(len, bodies))
    assert max(map(len, bodies)) <= lines.longest_in(columns) <= max(map(len, bodies)) + 4


def test_columns_of_different_lengths_are_never_cut_to_the_shortest() -> None:
    with pytest.raises(ValueError, match="shorter"):
        lines.fill([b'{"id":', [b"1", b"2"], b',"data":', [b"1", b"2", b"3"]], 3, b"", 0)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        lines.fill([b'{"id":', [b"1", b"2"]], 1, b"", 0)


@given(st.lists(st.sampled_from(["good", "bad", "blank", "eaten", "made"]), max_size=12), st.integers(0, 50))
def test_sorting_out_never_gives_an_intact_line_a_wrong_offset(kinds: list[str], first: int) -> None:
    # Newlines made and eaten may cancel each other: then nobody can tell which of the pieces was blank before.
    assume(not {"blank", "eaten", "made"} <= set(kinds))
    parts = []
    good = set()
    for offset, kind in enumerate(kinds, first):
        stored = line(b'"payload"', offset)
        if kind == "good":
            good.add(offset)
        elif kind == "bad":
            stored = b"\xff" + stored[1:]
        elif kind == "blank":
            stored = b" " * (len(stored) - 1) + b"\n"
        elif kind == "eaten":
            stored = stored[:-1] + b"#"
        elif kind == "made":
            stored = stored[:9] + b"\n" + stored[10:]
        parts.append(stored)
    expected = first + len(kinds)
    found = lines.sort_out(b"".join(parts), first, lines.Home("host1", 0), expected)
    assert found.next == expected
    for offset, stored in found.lines:
        assert lines.origin_of(stored).offset == offset  # type: ignore[union-attr]
    told = {offset for low, high, _ in found.missing for offset in range(low, high)}
    readable = {offset for offset, _ in found.lines}
    assert not told & readable
    merged = {offset + 1 for offset, kind in enumerate(kinds, first) if kind == "eaten"}
    assert good - merged <= readable
    blank = {offset for offset, kind in enumerate(kinds, first) if kind == "blank"}
    assert set(range(first, expected)) - readable - told <= blank


@given(ENTRY)
def test_an_index_entry_survives_and_no_flipped_bit_does(entry: index.Entry) -> None:
    data = index.encode(entry)
    assert len(data) == index.SIZE == 64
    assert index.decode(data) == entry
    for at in range(0, 64, 5):
        damaged = bytearray(data)
        damaged[at] ^= 4
        assert index.decode(bytes(damaged)) is None
    assert index.decode(data[:63]) is None


def test_a_chain_ends_where_it_breaks() -> None:
    entries = [index.Entry(n * 10, n * 100, 0, 0, 0, 0, 10, 100, n) for n in range(5)]
    data = b"".join(map(index.encode, entries))
    assert index.chain(data, 0) == entries
    assert index.chain(data, 5) == []
    assert index.chain(data[:-1], 0) == entries[:4]
    gap = b"".join(map(index.encode, [*entries[:2], *entries[3:]]))
    assert index.chain(gap, 0) == entries[:2]


def test_a_search_in_an_index_with_unreadable_entries_finds_an_earlier_place(tmp_path: Path) -> None:
    entries = [index.Entry(n * 10, n * 100, 0, 0, 0, 0, 10, 100, n) for n in range(50)]
    for broken in range(50):
        data = bytearray(b"".join(map(index.encode, entries)))
        data[broken * 64 + 3] ^= 1
        (tmp_path / "index").write_bytes(data)
        file = index.IndexFile(tmp_path / "index", 0, Disk())
        for wanted in (0, 17, 33, 49):
            number = file.last_where(lambda entry, wanted=wanted: entry.first <= wanted * 10)
            assert number <= wanted
        file.close()


def test_segments_are_what_is_named_like_one(tmp_path: Path) -> None:
    for name in (
        "00000000000000000000.jsonl", "00000000000000000010.jsonl.zst", "00000000000000000010.jsonl", "7.jsonl",
        "00000000000000000020.jsonl.tmp-1", "00000000000000000030.index", "head", "00000000000000000040.jsonl.bak",
    ):  # fmt: skip
        (tmp_path / name).write_bytes(b"")
    assert segments.bases(tmp_path, Disk()) == [0, 10]


def test_a_removed_segment_takes_everything_of_its_own_and_nothing_else(tmp_path: Path) -> None:
    for base in (0, 10):
        for suffix in (segments.PLAIN, segments.COMPRESSED, segments.INDEX, segments.FRAMES):
            segments.path_of(tmp_path, base, suffix).write_bytes(b"x")
    segments.remove(tmp_path, 0, Disk())
    assert {name[:20] for name in os.listdir(tmp_path)} == {"00000000000000000010"}
    segments.remove(tmp_path, 0, Disk())


# -- the head ----


@given(st.lists(st.integers(0, 2**63), min_size=17, max_size=17))
def test_a_head_gives_back_what_was_stored(values: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "head"
        Head.create(path, QuickDisk(), boot_id(), Fields())
        head, other = Head(path, Disk()), Head(path, Disk(), writable=False)
        head.store(*values)
        assert head.load() == other.load() == Fields(*values)
        head.close()
        other.close()


def test_a_head_knows_its_boot_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "head"
    Head.create(path, Disk(), b"b" * 16, Fields(next=7))
    head = Head(path, Disk())
    assert head.trusted(b"b" * 16, Disk())
    assert not head.trusted(b"c" * 16, Disk())
    head.close()
    data = path.read_bytes()
    path.rename(tmp_path / "old")  # keeps the inode in use
    path.write_bytes(data)
    head = Head(path, Disk())
    assert not head.trusted(b"b" * 16, Disk())
    head.close()


def test_a_head_written_anew_keeps_its_inode_for_those_who_map_it(tmp_path: Path) -> None:
    path = tmp_path / "head"
    Head.create(path, Disk(), b"b" * 16, Fields(next=7))
    head = Head(path, Disk())
    Head.create(path, Disk(), b"b" * 16, Fields(next=8))
    assert head.load().next == 8
    head.close()


def test_a_head_that_is_too_short_or_whose_writer_died_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "head"
    path.write_bytes(bytes(100))
    with pytest.raises(TornHead):
        Head(path, Disk())
    Head.create(path, Disk(), b"b" * 16, Fields())
    with path.open("r+b") as file:
        file.seek(64)
        file.write(b"\x01")
    head = Head(path, Disk())
    with pytest.raises(TornHead):
        head.load()
    head.store(*Fields(next=3))
    assert head.load().next == 3
    head.close()


def test_a_head_that_could_not_be_written_whole_is_an_error(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail("pwrite", short=100)
    with pytest.raises(OSError):
        Head.create(tmp_path / "head", disk, b"b" * 16, Fields())


# -- locks ----


def test_a_file_lock_is_exclusive_or_shared_and_free_when_closed(tmp_path: Path) -> None:
    one, other, third = (FileLock(tmp_path / "lock", Disk()) for _ in range(3))
    assert one.try_exclusive()
    assert not other.try_exclusive()
    with pytest.raises(hg.Busy, match="lock"):
        other.shared(SYSTEM_CLOCK, 0.01)
    one.release()
    one.release()
    other.shared(SYSTEM_CLOCK, 1)
    third.shared(SYSTEM_CLOCK, 1)
    with pytest.raises(hg.Busy):
        FileLock(tmp_path / "lock", Disk()).exclusive(SYSTEM_CLOCK, 0.01)
    other.release()
    third.release()
    last = FileLock(tmp_path / "lock", Disk())
    last.exclusive(SYSTEM_CLOCK, 1)
    assert f"process {os.getpid()}" in last.noted()
    last.release()


# -- audit ----


def audit(root: Path, **settings: int) -> Audit:
    root.mkdir(exist_ok=True)
    return Audit(root, Disk(), SYSTEM_CLOCK, **{"max_bytes": 10_000, "max_files": 3, **settings})


def test_the_audit_rotates_keeps_so_many_files_and_loses_no_line_of_those(tmp_path: Path) -> None:
    one = audit(tmp_path / "data", max_bytes=1000)
    for number in range(200):
        one.write("event", number=number)
    files = sorted((tmp_path / "data" / "audit").glob("audit*.jsonl"))
    assert 2 <= len(files) <= 4
    numbers = sorted(json.loads(text)["number"] for file in files for text in file.read_text().splitlines())
    assert numbers == list(range(numbers[0], 200))
    assert one.failed == 0


def test_an_audit_that_cannot_be_rotated_grows_and_its_records_are_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = audit(tmp_path / "data", max_bytes=500)

    def refuse(old: Path, new: Path) -> None:
        raise PermissionError(f"{old} to {new}")

    with monkeypatch.context() as patched:
        patched.setattr(one._disk, "rename", refuse)
        for number in range(30):
            one.write("tested", number=number)
    assert one.failed == 0
    assert len(one.path.read_bytes().splitlines()) == 30
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1, "told once"
    one.write("tested", number=30)
    assert not one.path.exists(), "rotated as soon as it can be"
    with monkeypatch.context() as patched:
        patched.setattr(one._disk, "rename", refuse)
        for number in range(31, 60):
            one.write("tested", number=number)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2, "once each time"


def test_what_was_rotated_before_is_kept_while_an_audit_cannot_be_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may have made it append-only, for example: then all but that file can be renamed."""
    one = audit(tmp_path / "data", max_bytes=500)
    for number in range(40):
        one.write("tested", number=number)
    before = {file.name: file.read_bytes() for file in one.path.parent.glob("audit.?.jsonl")}
    assert len(before) == 3
    rename = one._disk.rename

    def refuse(old: Path, new: Path) -> None:
        if old == one.path:
            raise PermissionError(f"{old} to {new}")
        rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(one._disk, "rename", refuse)
        for number in range(40, 80):
            one.write("tested", number=number)
    kept = [file.read_bytes() for file in one.path.parent.glob("audit.?.jsonl")]
    assert len(kept) == 2, "room was made for the next, once"
    assert set(kept) < set(before.values())
    one.write("tested", number=80)
    numbers = [json.loads(text)["number"] for file in one.path.parent.glob("audit.*") for text in file.open()]
    assert set(range(40, 81)) <= set(numbers), "none of those that grew the file is lost"


def test_the_audit_of_many_threads_mixes_no_lines(tmp_path: Path) -> None:
    one = audit(tmp_path / "data", max_bytes=2000, max_files=1000)

    def write(thread: int) -> None:
        for number in range(50):
            one.write("event", thread=thread, number=number, pad="x" * 50)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = [
        json.loads(text)
        for file in (tmp_path / "data" / "audit").glob("audit*.jsonl")
        for text in file.read_text().splitlines()
    ]
    assert len(records) == 400
    assert len({(record["thread"], record["number"]) for record in records}) == 400


def test_an_audit_that_cannot_be_written_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    (tmp_path / "data").mkdir()
    one = Audit(tmp_path / "data", disk, SYSTEM_CLOCK, max_bytes=1000, max_files=3)
    disk.fail("write", times=2)
    one.write("lost")
    one.write("lost", reason="\ud800", what=object())
    disk.heal()
    one.write("kept")
    assert one.failed == 2
    assert json.loads((tmp_path / "data" / "audit" / "audit.jsonl").read_text())["event"] == "kept"


def test_a_record_stands_by_itself_though_the_disk_had_no_room_for_all_of_the_one_before(tmp_path: Path) -> None:
    disk = FaultyDisk()
    (tmp_path / "data").mkdir()
    one = Audit(tmp_path / "data", disk, SYSTEM_CLOCK, max_bytes=1000, max_files=3)
    one.write("first")
    disk.fail("write", short=10)
    disk.fail("write", errno.ENOSPC, at=2)
    one.write("half")
    disk.heal()
    one.write("kept")
    first, half, kept = (tmp_path / "data" / "audit" / "audit.jsonl").read_text().splitlines()
    assert (json.loads(first)["event"], len(half), json.loads(kept)["event"], one.failed) == ("first", 10, "kept", 1)


def test_a_record_that_another_process_is_writing_is_waited_for_and_no_empty_line_put_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "audit" / "audit.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"event":"first"')  # as far as the kernel shows it yet

    class Meanwhile(Clock):
        def sleep(self, _: float) -> None:  # type: ignore[override]
            path.write_text('{"event":"first"}\n')

    Audit(tmp_path / "data", FaultyDisk(), Meanwhile(), max_bytes=1000, max_files=3).write("second")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["first", "second"]


def test_the_segment_of_an_offset_is_found_among_strays(tmp_path: Path) -> None:
    strays = (f"{95:020d}.index", "0000000000000000003x.jsonl", "00000000000000000099.jsonl.bak")
    for name in (f"{0:020d}.jsonl", f"{40:020d}.jsonl.zst", f"{90:020d}.jsonl", *strays):
        (tmp_path / name).touch()
    found = [segments.holding(tmp_path, offset, Disk()) for offset in (0, 39, 40, 89, 90, 99)]
    assert found == [0, 0, 40, 40, 90, 90]
    (tmp_path / f"{0:020d}.jsonl").unlink()
    assert segments.holding(tmp_path, 39, Disk()) == -1
