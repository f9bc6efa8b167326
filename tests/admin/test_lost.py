"""Damage that was repaired is still a loss: whoever comes to it later is told, of that and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin.backup import backup
from heliograph.admin.restore import restore
from heliograph.admin.verify import verify
from tests.admin.helpers import CHANNEL, MESSAGES, fill, numbers, open_station, overwrite, segments
from tests.proof.tools import eventually

Gaps = list[tuple[int, int, str]]
WHY = "damaged on disk"


def read(station: hg.Station, start: int | str = "first") -> tuple[list[int], Gaps]:
    """What a reader gets, and what it is told it does not."""
    gaps: Gaps = []

    def note(gap: hg.Gap) -> None:
        gaps.append((gap.first, gap.next, gap.reason))

    return [message.offset for message in station.read(CHANNEL, start=start, on_gap=note)], gaps


def place(path: Path, offset: int) -> tuple[Path, int, int]:
    """The segment of an offset, and where its line begins and ends."""
    victim = [one for one in segments(path) if int(one.stem) <= offset][-1]
    lines = victim.read_bytes().split(b"\n")
    number = offset - int(victim.stem)
    begin = sum(len(line) + 1 for line in lines[:number])
    return victim, begin, begin + len(lines[number])


def harm(path: Path, *offsets: int) -> None:
    for offset in offsets:
        victim, begin, _ = place(path, offset)
        overwrite(victim, begin + 40, b"\xff\xff")


def eat_newline(path: Path, offset: int) -> None:
    """Two lines become one, and none of them is intact."""
    victim, _, end = place(path, offset)
    overwrite(victim, end, b"x")


HARMS: dict[str, tuple[Callable[[Path], None], list[int]]] = {
    "one": (lambda path: harm(path, 60), [60]),
    "several, some beside each other": (lambda path: harm(path, 30, 60, 61, 62, 70), [30, 60, 61, 62, 70]),
    "a newline": (lambda path: eat_newline(path, 60), [60, 61]),
    "the end": (lambda path: segments(path)[1].write_bytes(segments(path)[1].read_bytes()[:-300]), []),
    "all": (lambda path: segments(path)[1].write_bytes(b""), []),
}


def ranges(offsets: list[int]) -> Gaps:
    found: Gaps = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1, WHY)
        else:
            found.append((offset, offset + 1, WHY))
    return found


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("compress", [False, True])
def test_a_reader_is_told_the_same_before_and_after_a_repair(tmp_path: Path, how: str, *, compress: bool) -> None:
    wound, offsets = HARMS[how]
    with open_station(tmp_path) as station:
        fill(station)
        wound(tmp_path)
        before = read(station)
        assert before[1]
        if offsets:
            assert before[1] == ranges(offsets)
        assert verify(station, repair=True).ok
        assert read(station) == before
        if compress:
            station.alter_channel(CHANNEL, compress=True)
            station.trim()
            assert segments(tmp_path, ".zst")
        assert read(station) == before
        for start in (0, 59, 61, 62, 100):
            got, gaps = read(station, start)
            assert got == [offset for offset in before[0] if offset >= start]
            assert gaps == [(max(low, start), high, why) for low, high, why in before[1] if high > start]
        assert verify(station).ok
    with open_station(tmp_path) as again:
        assert read(again) == before


def test_a_subscription_is_told_and_gets_everything_else(tmp_path: Path) -> None:
    gaps: list[hg.Gap] = []
    got: list[int] = []
    with open_station(tmp_path) as station:
        fill(station)
        harm(tmp_path, 60)
        assert verify(station, repair=True).ok
        with station.subscribe(
            CHANNEL, lambda message: got.append(message.offset), name="late", start="first", on_gap=gaps.append
        ) as late:
            eventually(lambda: len(got) == MESSAGES - 1)
            assert late.stats().missing == 1
    assert [(gap.first, gap.next, gap.reason) for gap in gaps] == [(60, 61, WHY)]
    assert got == [offset for offset in range(MESSAGES) if offset != 60]


def test_damage_after_a_repair_is_told_beside_what_was_repaired(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        harm(tmp_path, 60)
        assert verify(station, repair=True).ok
        harm(tmp_path, 62)
        assert read(station)[1] == ranges([60, 62])
        assert verify(station, repair=True).ok
        assert read(station)[1] == ranges([60, 62])


def test_a_redacted_line_beside_it_is_no_loss(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        ids = {message.offset: message.id for message in station.read(CHANNEL)}
        harm(tmp_path, 60)
        assert verify(station, repair=True).ok
        station.redact(ids[61], reason="asked for")
        got, gaps = read(station)
        assert gaps == ranges([60])
        assert set(range(MESSAGES)) - set(got) == {60, 61}


def test_what_is_put_back_intact_is_not_lost(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        whole = {path: path.read_bytes() for path in segments(tmp_path)}
        harm(tmp_path, 60)
        assert verify(station, repair=True).ok
    victim = place(tmp_path, 60)[0]
    victim.write_bytes(whole[victim])
    victim.with_suffix(".index").unlink()
    with open_station(tmp_path) as station:
        assert read(station) == (list(range(MESSAGES)), [])


def test_a_restored_backup_tells_of_it_too(tmp_path: Path) -> None:
    with open_station(tmp_path / "data") as station:
        fill(station)
        harm(tmp_path / "data", 60)
        assert verify(station, repair=True).ok
        backup(station, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    with hg.open(tmp_path / "restored") as station:
        assert read(station)[1] == ranges([60])
        assert len(numbers(station)) == MESSAGES - 1


def test_it_goes_with_its_segment(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        harm(tmp_path, 5)
        assert verify(station, repair=True).ok
        assert segments(tmp_path, ".lost")
        station.alter_channel(CHANNEL, retention_bytes=8192)
        station.trim()
        assert not segments(tmp_path, ".lost")
