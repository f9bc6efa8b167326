"""``read_only=True`` leaves no trace, with and without a live writer, whatever state the directory is in."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph import disk as disks
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import Child, eventually, tree

CHANNEL = "events"


def filled(opened: Opener, **settings: Any) -> None:
    with opened(segment_bytes=4096, **settings) as station:
        for number in range(60):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
        station.subscribe(CHANNEL, print, name="worker", start="first", paused=True).close()


def look_everywhere(station: Station) -> list[int]:
    numbers = [message.data["n"] for message in station.read(CHANNEL)]
    first = next(iter(station.read(CHANNEL, start=30)))
    assert station.get(first.id).offset == 30  # type: ignore[union-attr]
    list(station.read(CHANNEL, start="-5m"))
    station.channels()
    station.subscriptions()
    station.stats()
    got: list[int] = []
    with station.subscribe(CHANNEL, lambda message: got.append(message.offset), start="first"):
        eventually(lambda: len(got) == len(numbers))
    station.sync()
    return numbers


def _nothing(root: Path) -> None:
    pass


def _no_head(root: Path) -> None:
    (root / "channels" / CHANNEL / "0" / "head").unlink()


def _no_index(root: Path) -> None:
    for path in (root / "channels" / CHANNEL / "0").glob("*.index"):
        path.unlink()


def _no_frames(root: Path) -> None:
    for path in (root / "channels" / CHANNEL / "0").glob("*.frames"):
        path.unlink()


def _half_a_line(root: Path) -> None:
    _no_head(root)
    with max((root / "channels" / CHANNEL / "0").glob("*.jsonl")).open("ab") as file:
        file.write(b'{"half')


def _no_locks(root: Path) -> None:
    for path in root.rglob("*lock"):
        path.unlink()


def _torn(root: Path) -> None:
    with (root / "channels" / CHANNEL / "0" / "head").open("r+b") as file:
        file.seek(64)
        file.write(b"\x01")


@pytest.mark.parametrize("state", [_nothing, _no_head, _no_index, _no_frames, _half_a_line, _no_locks, _torn])
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_reading_leaves_no_trace(opened: Opener, root: Path, state: Any, compress: bool) -> None:
    filled(opened)
    if compress:
        with opened(compress=True) as station:
            station.trim()
        assert list((root / "channels" / CHANNEL / "0").glob("*.zst"))
    state(root)
    before = tree(root)
    for _ in range(2):
        with opened(read_only=True) as station:
            assert look_everywhere(station) == list(range(60))
    assert tree(root) == before


def test_reading_works_where_nothing_can_be_written(opened: Opener, root: Path) -> None:
    """Not even as root: every call that would write fails."""
    import errno

    from tests.faults import MUTATING, FaultyDisk

    filled(opened)
    _no_index(root)

    class Medium(FaultyDisk):
        def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise OSError(errno.EROFS, "read-only medium")
            return super().open(path, flags, mode)

    disk = Medium()
    disk.fail_at(1, errno.EROFS, tuple(kind for kind in MUTATING if kind != "open"), for_ever=True)
    with opened(read_only=True, disk=disk) as station:
        assert look_everywhere(station) == list(range(60))
    assert not disk.fired, "it tried to write"


def test_everything_that_would_write_is_refused(opened: Opener, root: Path) -> None:
    filled(opened)
    before = tree(root)
    with opened(read_only=True) as station:
        doors: dict[str, Any] = {
            "publish": lambda: station.publish(CHANNEL, 1),
            "publish_many": lambda: station.publish_many(CHANNEL, [1]),
            "publish elsewhere": lambda: station.publish("other", 1),
            "subscribe by name": lambda: station.subscribe(CHANNEL, print, name="w"),
            "create": lambda: station.create_channel("other"),
            "alter": lambda: station.alter_channel(CHANNEL, compress=True),
            "delete": lambda: station.delete_channel(CHANNEL),
            "trim": station.trim,
            "seek": lambda: station.seek(CHANNEL, "worker", 0),
            "forget": lambda: station.forget(CHANNEL, "worker"),
            "redact": lambda: station.redact(next(iter(station.read(CHANNEL))).id),
        }
        for door, act in doors.items():
            with pytest.raises(hg.ReadOnly, match="read_only"):
                act()
                pytest.fail(f"{door} was allowed")
    assert tree(root) == before


def test_a_read_only_station_follows_a_live_writer(opened: Opener, root: Path) -> None:
    code = """
        import sys, time, heliograph as hg
        station = hg.open(sys.argv[1], name="host1", segment_bytes=4096, durability=sys.argv[2])
        station.publish("events", {"n": 0, "pad": ""})
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(1, 200):
            station.publish("events", {"n": n, "pad": "x" * 100})
        station.sync()
        print("done", flush=True)
        sys.stdin.readline()
    """
    for durability in ("always", "interval"):
        with Child(code, root / durability, durability) as writer:
            writer.line()
            with opened(root / durability, read_only=True) as station:
                got: list[int] = []

                def follow(station: Station, got: list[int]) -> None:
                    for message in station.read(CHANNEL, follow=True):
                        got.append(message.data["n"])
                        if len(got) == 200:
                            return

                thread = threading.Thread(target=follow, args=(station, got), daemon=True)
                thread.start()
                writer.tell()
                assert writer.line() == "done"
                thread.join(30)
                assert got == list(range(200))


def test_a_read_only_reader_does_not_keep_the_first_writer_from_recovering(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(opened)
    monkeypatch.setattr(disks, "boot_id", lambda: b"after the reboot")
    with max((root / "channels" / CHANNEL / "0").glob("*.jsonl")).open("ab") as file:
        file.write(bytes(300))
    with opened(read_only=True) as reader:
        assert look_everywhere(reader) == list(range(60))
        with opened() as writer:
            assert writer.publish(CHANNEL, {"n": 60, "pad": ""}).offset == 60
            assert look_everywhere(writer) == list(range(61))
        assert [message.data["n"] for message in reader.read(CHANNEL)] == list(range(61))


def test_a_read_only_reader_does_not_show_what_a_power_cut_could_take_back(opened: Opener, root: Path) -> None:
    """Durability `always` means: nobody saw it before it was on disk."""
    from tests.log.test_commit import SlowDisk, held_up

    disk = SlowDisk()
    with opened(disk=disk) as station:
        station.publish(CHANNEL, 0)
        leader = held_up(station, disk)  # "leader" is written, its sync has not returned
        with opened(read_only=True) as reader:
            assert [message.data for message in reader.read(CHANNEL)] == [0]
            disk.gate.set()
            leader.join(30)
            assert [message.data for message in reader.read(CHANNEL)] == [0, "leader"]


def test_a_file_is_no_station(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(hg.NotFound, match="file holds no station"):
        hg.open(tmp_path / "file", read_only=True)
