"""Ctrl-C at the worst moment: between a write and the word of it in the head."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from heliograph.admin.verify import verify
from heliograph.log.held import HeldLog
from heliograph.log.partition import Partition
from heliograph.station import open_station


@pytest.mark.parametrize("durability", ["always", "os"])
@pytest.mark.parametrize(
    "step", ["_write_file", "pack_moving", "_store", "_extend", "_write_index_entry", "_leave", "_sync"]
)
def test_an_interrupted_publish_neither_doubles_an_offset_nor_hangs_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, step: str
) -> None:
    with open_station(tmp_path, name="host1", durability=durability) as station:
        for number in range(3):
            station.publish("events", number)
        partition = station.engine.writer("events", 0)
        interrupted = _interrupt(monkeypatch, partition, step)
        for number in range(3, 200):
            try:
                station.publish("events", number)
            except KeyboardInterrupt:
                monkeypatch.undo()
                _restore(partition)
        monkeypatch.undo()
        _restore(partition)
        found = list(station.read("events"))
        report = verify(station)
        assert report.ok, report.troubles
    published = [message.data for message in found]
    assert [message.offset for message in found] == list(range(len(found)))
    assert [message.originseq for message in found] == [f"0/{message.offset}" for message in found]
    assert set(published) >= set(range(200)) - {interrupted[0]} if interrupted else set(published) == set(range(200))
    assert len(set(published)) == len(published)


def _interrupt(monkeypatch: pytest.MonkeyPatch, partition: Partition, step: str) -> list[int]:
    """Raise KeyboardInterrupt at one step of the next publish that comes by it; the number it will hit, if any."""
    hit: list[int] = []

    def raise_interrupt(*_: Any, **__: Any) -> Any:
        hit.append(partition.next)
        raise KeyboardInterrupt

    def write_and_interrupt(fd: int, data: bytes, position: int) -> int:
        os.pwrite(fd, data, position)
        return int(raise_interrupt())

    if step == "_write_file":
        partition._write_file = write_and_interrupt
    elif step in ("_extend", "pack_moving"):
        monkeypatch.setattr(f"heliograph.log.partition.{step}", raise_interrupt)
    else:
        monkeypatch.setattr(HeldLog if hasattr(HeldLog, step) else Partition, step, raise_interrupt)
    return hit


def _restore(partition: Partition) -> None:
    partition._write_file = os.pwrite


class SignalsAfterCalls:
    """A mutex as Python has it: in the main thread Ctrl-C may come right after ``acquire``, not as ``with`` begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def release(self) -> None:
        self._lock.release()

    def acquire(self, blocking: bool = True) -> bool:
        had = self._lock.acquire(blocking)
        assert threading.current_thread() is not threading.main_thread(), "Ctrl-C may come now, and nobody lets go"
        return had


@pytest.mark.parametrize("durability", ["always", "os"])
def test_an_interrupt_cannot_come_between_taking_the_mutex_and_seeing_to_its_release(
    tmp_path: Path, durability: str
) -> None:
    with open_station(tmp_path, name="host1", durability=durability) as station:
        station.publish("events", 0)
        partition = station.engine.writer("events", 0)
        before, partition.mutex = partition.mutex, SignalsAfterCalls()  # type: ignore[assignment]
        try:
            for number in range(1, 4):
                station.publish("events", number)
            station.publish_many("events", [4, 5])
        finally:
            partition.mutex = before
        assert [message.data for message in station.read("events")] == list(range(6))
