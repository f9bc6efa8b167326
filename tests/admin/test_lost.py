"""Damage that was repaired is still a loss: whoever comes to it later is told, of that and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import heliograph as hg
from heliograph.admin.backup import backup
from heliograph.admin.restore import restore
from heliograph.admin.verify import verify
from heliograph.disk import SYSTEM_DISK
from heliograph.log import lost
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


HURT = {"torn": b"[[60,", "empty": b"", "other": b'{"60":61}', "absurd": b"[[61,60]]\n", "elsewhere": b"[[0,61]]\n"}


def hurt(station: hg.Station, path: Path, data: bytes) -> Path:
    """A repaired segment whose list of what it lost is damaged."""
    fill(station)
    harm(path, 60)
    assert verify(station, repair=True).ok
    (found,) = segments(path, ".lost")
    found.write_bytes(data)
    return found


@pytest.mark.parametrize("how", HURT)
def test_a_list_that_is_damaged_is_reported_and_set_aside(tmp_path: Path, how: str) -> None:
    with open_station(tmp_path) as station:
        file = hurt(station, tmp_path, HURT[how])
        report = verify(station)
        assert not report.ok
        ((kind, path, derived),) = [(one.kind, one.path, one.derived) for one in report.troubles]
        assert (kind, path, derived) == ("lost", str(file.relative_to(tmp_path)), False)
        assert file.read_bytes() == HURT[how], "nobody asked for a repair"
        report = verify(station, repair=True)
        assert report.ok and [one.repaired for one in report.troubles] == [True]
        assert not file.exists()
        (aside,) = (tmp_path / "quarantine").rglob("*.lost*")
        assert aside.read_bytes() == HURT[how]
        assert "lost" in (tmp_path / "audit" / "audit.jsonl").read_text().splitlines()[-1]
        assert verify(station).ok


def test_damage_beside_a_damaged_list_is_noted_in_a_new_one(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        file = hurt(station, tmp_path, b"[[60,")
        harm(tmp_path, 62)
        assert verify(station, repair=True).ok
        assert msgspec.json.decode(file.read_bytes()) == [[62, 63]]
        (aside,) = (tmp_path / "quarantine").rglob("*.lost*")
        assert aside.read_bytes() == b"[[60,"


def test_a_damaged_list_is_never_written_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / f"{50:020d}.lost"
    file.write_bytes(b"[[60,")
    with pytest.raises(hg.Damaged, match="verify --repair"):
        lost.note(tmp_path, 50, [(62, 63)], SYSTEM_DISK)
    assert file.read_bytes() == b"[[60,"
    assert lost.load(tmp_path, 50, SYSTEM_DISK) == [], "a reader goes on"
    assert str(file) in caplog.text
