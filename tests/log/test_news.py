"""Readers that wait are woken, in this process and in others; and a process does not wake itself for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.clock import SYSTEM_CLOCK
from heliograph.disk import Disk
from heliograph.log.head import NEWS_PLACES, NEWS_PLACES_END, NEWS_WANTED, Fields, Head
from heliograph.log.news import News


class Rung(Disk):
    """Counts the bytes that wake other processes; ``reader`` has read everything then, and asks for news again."""

    def __init__(self) -> None:
        self.bytes = 0
        self.reader: News | None = None

    def pwrite(self, fd: int, data: bytes, position: int) -> int:  # type: ignore[override]
        if data == b"!":
            self.bytes += 1
            if self.reader is not None:
                self.reader.arm()
        return super().pwrite(fd, data, position)

    def rings(self, news: News) -> bool:
        """Whether others are woken when this one tells."""
        before = self.bytes
        news.tell()
        return self.bytes > before


@contextmanager
def processes(path: Path, count: int, disk: Disk) -> Iterator[list[News]]:
    """A partition as several processes have it open."""
    Head.create(path / "head", disk, bytes(16), Fields())
    heads = [Head(path / "head", disk) for _ in range(count)]
    found = [News(path / "news", head, disk, SYSTEM_CLOCK) for head in heads]
    try:
        yield found
    finally:
        for news, head in zip(found, heads, strict=True):
            news.close()
            head.close()


def test_a_reader_that_waits_again_at_once_gets_the_next_news_too(tmp_path: Path) -> None:
    disk = Rung()
    with processes(tmp_path, 2, disk) as (writer, reader):
        reader.arm()
        disk.reader = reader
        writer.tell()
        disk.reader = None
        assert disk.rings(writer), "the second wish was wiped out: its reader sleeps for a second"


def test_a_process_wakes_its_own_readers_and_not_itself(tmp_path: Path) -> None:
    disk = Rung()
    with processes(tmp_path, 2, disk) as (writer, other):
        waiting = [writer.arm(), writer.arm()]
        assert not disk.rings(writer), "it woke its own watching thread"
        assert not any(lock.locked() for lock in waiting)
        other.arm()
        assert disk.rings(writer)


@pytest.mark.parametrize("order", ["wo", "ow", "wow", "owo", "oww", "woo"])
def test_whoever_waits_elsewhere_is_woken_whoever_waits_here(tmp_path: Path, order: str) -> None:
    disk = Rung()
    with processes(tmp_path, 2, disk) as (writer, other):
        for who in order:
            (writer if who == "w" else other).arm()
        assert disk.rings(writer)
        assert not disk.rings(writer), "nobody waits any more"
        writer.arm()
        assert not disk.rings(writer), "the other one was woken already"


def test_readers_that_share_a_place_wake_each_other(tmp_path: Path) -> None:
    disk = Rung()
    with processes(tmp_path, 2, disk) as (one, other):
        other._place = one._place
        for first, second in ((one, other), (other, one)):
            first.arm()
            second.arm()
            first.arm()
            assert disk.rings(first)
            second.arm()
            first.arm()
            assert disk.rings(second)


def test_whoever_knows_nothing_of_places_is_woken(tmp_path: Path) -> None:
    disk = Rung()
    with processes(tmp_path, 1, disk) as (writer,):
        head = Head(tmp_path / "head", disk)
        head.words[NEWS_WANTED] = SYSTEM_CLOCK.monotonic_ns() + 1_000_000_000
        head.close()
        assert disk.rings(writer)


def test_who_waited_long_ago_is_not_woken(tmp_path: Path) -> None:
    disk = Rung()
    with processes(tmp_path, 2, disk) as (writer, other):
        other.arm()
        head = Head(tmp_path / "head", disk)
        head.words[other._place + 1] = SYSTEM_CLOCK.monotonic_ns() - 1
        head.close()
        writer.arm()
        assert not disk.rings(writer)


Steps = st.lists(st.tuples(st.sampled_from(["arm", "tell"]), st.integers(0, 3)), max_size=30)


@given(steps=Steps, places=st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_nobody_sleeps_through_news(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], places: list[int]
) -> None:
    disk = Rung()
    waiting: set[int] = set()
    with processes(tmp_path_factory.mktemp("news"), 4, disk) as found:
        for news, place in zip(found, places, strict=True):
            news._place = NEWS_PLACES + 2 * place
        for step, who in steps:
            if step == "arm":
                found[who].arm()
                waiting.add(who)
            else:
                rang = disk.rings(found[who])
                assert rang or waiting <= {who}, f"{waiting} wait, and {who} woke nobody"
                waiting = set()


def test_places_are_within_the_head(tmp_path: Path) -> None:
    with processes(tmp_path, 40, Disk()) as found:
        for news in found:
            assert NEWS_PLACES <= news._place < NEWS_PLACES_END
            assert (news._place - NEWS_PLACES) % 2 == 0
        assert len({news._place for news in found}) == 16
