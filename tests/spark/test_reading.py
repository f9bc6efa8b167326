"""What is read of a log, and what is told of it: nothing that is missing is passed over in silence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.errors import ConfigError, Incomplete, NotFound
from tests.opening import Opener
from tests.spark.reading_back import comparable, expected, publish_every_kind, reader, rows


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def offsets(root: Path, channel: str = "alerts", **options: Any) -> list[int]:
    return [row["offset"] for row in rows(reader(root, channel, **options)) if row.get("gap") is None]


def gaps(root: Path, channel: str = "alerts", **options: Any) -> list[tuple[int, int]]:
    found = rows(reader(root, channel, failOnGap="false", **options))
    return [(row["offset"], row["gap"]["next"]) for row in found if row["gap"] is not None]


def test_reading_leaves_no_trace(root: Path, opened: Opener) -> None:
    station = opened()
    publish_every_kind(station, "alerts")
    station.close()
    before = snapshot(root)
    assert rows(reader(root, "alerts"))
    assert snapshot(root) == before


def test_a_directory_that_cannot_be_written_is_read(root: Path, opened: Opener) -> None:
    station = opened()
    publish_every_kind(station, "alerts")
    station.close()
    shutil.copytree(root, root.parent / "copy")  # another inode: its heads are not to be trusted
    assert len(rows(reader(root.parent / "copy", "alerts"))) == len(rows(reader(root, "alerts")))


def test_compressed_and_compacted_segments_are_read_like_others(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=20_000, compress=True, retention_compact=True)
    for n in range(400):
        station.publish("alerts", {"n": n, "text": "x" * 100}, key=f"k{n % 40}")
    station.trim()
    assert list((root / "channels/alerts/0").glob("*.zst"))
    left = {message.offset: message.raw for message in station.read("alerts")}
    assert len(left) < 300
    found = rows(reader(root, "alerts", splitBytes="4kB"))
    assert [comparable(row) for row in found] == [expected(left[at], "alerts", 0, at) for at in sorted(left)]


def test_what_compaction_left_nothing_of_has_no_rows(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=10_000, retention_compact=True)
    for n in range(400):
        station.publish("alerts", {"n": n, "text": "x" * 100}, key=f"k{n % 4}")
    station.trim()
    left = [message.offset for message in station.read("alerts")]
    assert station.channel("alerts").first > 100
    assert offsets(root, startingOffsets="0") == left
    assert offsets(root, startingOffsets="0", endingOffsets="100") == []


def test_only_what_is_on_disk_is_read(root: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability `always`: what is written and not yet synced may still be taken back."""
    station = opened()
    station.publish("alerts", 1)
    fields = station.engine.head_fields("alerts", 0)
    partition = station.engine.writer("alerts", 0)
    partition.head.store(*fields._replace(synced=0, synced_next=0, synced_crc=0))
    assert offsets(root) == []
    partition.head.store(*fields)
    assert offsets(root) == [0]


def test_what_others_wrote_without_a_sync_is_synced_before_it_is_read(
    root: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fdatasync
    from heliograph.disk import SYSTEM_DISK

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(type(SYSTEM_DISK), "fdatasync", staticmethod(note))
    station = opened(durability="os")
    station.publish("alerts", 1)
    assert offsets(root) == [0]
    assert [path for path in synced if path.endswith(".jsonl")]


def test_trimmed_messages_are_an_error_or_counted(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=10_000, retention_bytes=30_000)
    for n in range(300):
        station.publish("alerts", {"n": n, "text": "x" * 200})
    station.trim()
    first = station.channel("alerts").first
    assert first > 10
    assert offsets(root) == list(range(first, 300))  # `first` is what is left
    with pytest.raises(Incomplete, match=f"offsets 5 to {first - 1}: deleted by retention"):
        offsets(root, startingOffsets="5")
    assert gaps(root, startingOffsets="5") == [(5, first)]
    assert offsets(root, startingOffsets="5", failOnGap="false") == list(range(first, 300))


def test_damage_is_an_error_or_counted(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=20_000)
    for n in range(200):
        station.publish("alerts", {"n": n, "text": "x" * 200})
    station.close()
    file = sorted((root / "channels/alerts/0").glob("*.jsonl"))[1]
    data = bytearray(file.read_bytes())
    place = data.index(b"\n", len(data) // 2) + 150
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(Incomplete, match="damaged on disk"):
        offsets(root)
    (missing,) = gaps(root)
    assert missing[1] == missing[0] + 1
    assert offsets(root, failOnGap="false") == [n for n in range(200) if n != missing[0]]


def test_malformed_lines_are_an_error_or_counted(root: Path, opened: Opener) -> None:
    import google_crc32c

    from heliograph.log.tickets import Ticket

    station = opened()
    station.publish("alerts", 1)
    body = b'{"id":7'
    station.engine.append("alerts", 0, Ticket((body,), (google_crc32c.value(body),), 1), 1.0)
    station.publish("alerts", 2)
    with pytest.raises(Incomplete, match="offsets 1 to 1: not a message"):
        offsets(root)
    assert gaps(root) == [(1, 2)]
    assert offsets(root, failOnGap="false") == [0, 2]


def test_a_deleted_channel_is_told(root: Path, opened: Opener) -> None:
    station = opened()
    station.publish("alerts", 1)
    one, lenient = reader(root, "alerts"), reader(root, "alerts", failOnGap="false")
    planned = one.partitions()
    station.delete_channel("alerts")
    with pytest.raises(Incomplete, match="deleted"):
        list(one.read(planned[0]))
    station.publish("alerts", "of another life")
    with pytest.raises(Incomplete, match="lives anew"):
        list(one.read(planned[0]))
    (batch,) = list(lenient.read(planned[0]))
    assert batch.to_pylist()[0]["gap"]["next"] == 1


def test_a_channel_deleted_in_the_middle_is_never_silence(root: Path, opened: Opener) -> None:
    station = opened()
    for n in range(20_000):
        station.publish("alerts", {"n": n, "text": "x" * 100})
    one = reader(root, "alerts", "offset BIGINT")
    (split,) = one.partitions()
    batches: Iterator[Any] = one.read(split)
    next(batches)
    station.delete_channel("alerts")
    with pytest.raises(Incomplete):
        list(batches)


def test_a_new_life_in_the_middle_is_an_error(root: Path, opened: Opener) -> None:
    """The log may have been cut and gone on: what was read may be neither this nor that."""
    station = opened()
    for n in range(20_000):
        station.publish("alerts", {"n": n, "text": "x" * 100})
    one = reader(root, "alerts", "offset BIGINT", failOnGap="false")
    batches: Iterator[Any] = one.read(one.partitions()[0])
    next(batches)
    station.engine.new_incarnation("alerts", "a test")
    with pytest.raises(Incomplete, match="got a new life, while it was read"):
        list(batches)


def test_what_comes_while_it_is_read_is_left_for_the_next(root: Path, opened: Opener) -> None:
    station = opened()
    for n in range(10):
        station.publish("alerts", n)
    one = reader(root, "alerts", "offset BIGINT")
    planned = one.partitions()
    for n in range(10_000):
        station.publish("alerts", n)
    assert [row["offset"] for split in planned for batch in one.read(split) for row in batch.to_pylist()] == [
        *range(10)
    ]


def test_ten_megabytes_in_a_message(root: Path, opened: Opener) -> None:
    station = opened()
    large = "x" * 9_990_000
    station.publish("alerts", 1)
    station.publish("alerts", {"large": large})
    station.publish("alerts", 2)
    found = rows(reader(root, "alerts", "offset BIGINT, data STRING"))
    assert [row["offset"] for row in found] == [0, 1, 2]
    assert len(found[1]["data"]) == len(large) + len('{"large":""}')


def test_empty_channels_and_patterns_that_match_none(root: Path, opened: Opener) -> None:
    station = opened()
    station.create_channel("alerts", partitions=3)
    assert offsets(root) == []
    assert offsets(root, "nothing.>") == []
    with pytest.raises(NotFound, match="there is no channel 'missing'"):
        offsets(root, "alerts,missing")
    with pytest.raises(NotFound, match="holds no station"):
        offsets(root.parent / "elsewhere")


def test_several_channels_and_partitions(root: Path, opened: Opener) -> None:
    station = opened()
    station.create_channel("a.b", partitions=3)
    for n in range(30):
        station.publish("a.b", n, key=str(n))
    station.publish("a.c", 1)
    station.publish("d", 1)
    found = rows(reader(root, "a.>,d"))
    places = {("a.b", 0), ("a.b", 1), ("a.b", 2), ("a.c", 0), ("d", 0)}
    assert {(row["channel"], row["partition"]) for row in found} == places
    assert len(found) == 32


def test_words_for_where_to_begin_and_to_end(root: Path, opened: Opener) -> None:
    station = opened()
    station.create_channel("many", partitions=2)
    base = datetime(2026, 11, 15, tzinfo=UTC)
    for n in range(10):
        station.publish_many("alerts", [hg.Draft(data=n, time=base + timedelta(minutes=n))])
        station.publish("many", n, key="one")
    for start, want in {
        "first": 0, "earliest": 0, "new": 10, "latest": 10, "4": 4, "2026-11-15T00:03:00Z": 3,
        '{"alerts": 7}': 7, '{"alerts": {"0": 6}}': 6, '{"alerts": {"0": -2}}': 0, '{"alerts": "latest"}': 10,
        '{"alerts": "2026-11-15T00:08:30Z"}': 9, "2027-01-01": 10,
    }.items():  # fmt: skip
        assert offsets(root, startingOffsets=start) == list(range(want, 10)), start
        assert offsets(root, endingOffsets=start) == list(range(want)), start
    assert offsets(root, startingOffsets="2", endingOffsets="100") == list(range(2, 10))
    for wrong in ("newest", "٣", "３", "-٣m", '{"alerts": "٣"}', '{"alerts": {"0": "٣"}}', '{"many": "٣"}'):
        for option in ("startingOffsets", "endingOffsets"):
            with pytest.raises(ConfigError, match="not a start"):
                offsets(root, "alerts,many", **{option: wrong})
    for many in ("3", '{"many": 3}', '{"many": "3"}'):
        with pytest.raises(ConfigError, match="belongs to one partition"):
            offsets(root, "many", startingOffsets=many)
    assert offsets(root, "many", startingOffsets='{"many": -1}') == []
    for wrong in ("2", "x", "01", "-1"):
        with pytest.raises(ConfigError, match=f"'many' has no partition '{wrong}', only 0 to 1"):
            offsets(root, "many", startingOffsets=f'{{"many": {{"{wrong}": 3}}}}')
    with pytest.raises(ConfigError, match="names channel 'others'"):
        offsets(root, startingOffsets='{"others": 3}')
    with pytest.raises(ConfigError, match="not understood"):
        offsets(root, startingOffsets='{"alerts": [3]}')
