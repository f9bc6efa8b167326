"""Lines that were first published elsewhere stand between a log's own: what they say of themselves is not about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.admin.verify import verify
from heliograph.disk import SYSTEM_DISK
from heliograph.log import lines, returned
from heliograph.station import Station
from tests.arrivals import HOST2, identities, line, sealed, stored
from tests.opening import Opener

HERE = lines.Home("host1", 0, frozenset(["oldold"]))
CHANNEL = "alerts"


def batched(seq: int, origin: str, mark: bytes) -> bytes:
    return sealed(line(seq, origin)[:-18].replace(b',"origin"', b',"batch":"%b","origin"' % mark, 1))


def segment(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0" / "00000000000000000000.jsonl"


def arrive(station: Station, some: list[bytes]) -> None:
    assert station.engine.relayed.arrive(CHANNEL, some).appended == len(some)


@pytest.mark.parametrize(
    ("origin", "partition", "expected"),
    [
        ("host1.newnew", 0, 17),
        ("host1.newnew", 1, 11),
        (HOST2, 0, 11),
        ("host1.oldold", 0, 11),
        ("host11.newnew", 0, 11),
    ],
)
def test_only_a_line_of_this_very_log_sets_the_count_right(origin: str, partition: int, expected: int) -> None:
    data = b"\n".join([line(9, "host1.newnew"), b"eaten newlines", line(17, origin, partition), b""])
    found = lines.sort_out(data, 9, HERE)
    assert [offset for offset, _ in found.lines] == [9, expected]


@pytest.mark.parametrize("head", ["lost", "there"])
@pytest.mark.parametrize("torn", [1, 40, 200, 700, 1000])
def test_a_torn_write_of_lines_from_elsewhere_is_cut_to_whole_lines(
    opened: Opener, root: Path, head: str, torn: int
) -> None:
    with opened() as station:
        arrive(station, [line(0)])
    some = [batched(seq, HOST2, b"1/6") for seq in range(1, 7)]
    with segment(root).open("ab") as file:
        file.write(b"".join(one + b"\n" for one in some)[:torn])
    if head == "lost":
        (root / "channels" / CHANNEL / "0" / "head").unlink()
    station = opened()
    kept = b"".join(one + b"\n" for one in some)[:torn].count(b"\n")
    assert stored(root) == [line(0), *some[:kept]]
    assert station.engine.relayed.arrive(CHANNEL, [line(0), *some]).appended == 6 - kept
    assert [one[2] for one in identities(root)] == list(range(7))
    assert verify(station).ok


@pytest.mark.parametrize("head", ["lost", "there"])
def test_half_a_batch_of_our_own_still_goes(opened: Opener, root: Path, head: str) -> None:
    with opened() as station:
        station.publish(CHANNEL, 0)
        arrive(station, [batched(0, HOST2, b"0/3")])
        life = f"host1.{station.channel(CHANNEL).incarnation}"
    with segment(root).open("ab") as file:
        file.write(b"".join(batched(seq, life, b"2/3") + b"\n" for seq in (2, 3)))
    if head == "lost":
        (root / "channels" / CHANNEL / "0" / "head").unlink()
    station = opened()
    assert [one[:2] for one in identities(root)] == [(life, 0), (HOST2, 0)]
    assert verify(station).ok


@pytest.mark.parametrize("head", ["lost", "there"])
def test_half_a_batch_of_our_own_that_came_back_stays(opened: Opener, root: Path, head: str) -> None:
    """It stands at the very offsets that it had, by chance; the rest of it may never come."""
    with opened() as station:
        station.publish(CHANNEL, 0)
        life = f"host1.{station.channel(CHANNEL).incarnation}"
        arrive(station, [batched(seq, life, b"1/4") for seq in (1, 2)])
        assert station.channel(CHANNEL).incarnation not in life
        assert returned.load(segment(root).parent) == {life.removeprefix("host1.")}
        assert verify(station).ok
    if head == "lost":
        (root / "channels" / CHANNEL / "0" / "head").unlink()
    station = opened()
    assert identities(root) == [(life, 0, 0), (life, 0, 1), (life, 0, 2)]
    assert verify(station).ok
    arrive(station, [batched(seq, life, b"1/4") for seq in (4, 3)])
    assert [message.offset for message in station.read(CHANNEL)] == list(range(5))


def test_an_index_made_again_counts_lines_from_elsewhere(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        for first in range(0, 200, 20):
            arrive(station, [line(seq + 1000) for seq in range(first, first + 20)])
            station.publish(CHANNEL, first)
    before = stored(root)
    for path in segment(root).parent.glob("*.index"):
        path.unlink()
    station = opened()
    assert [message.raw for message in station.read(CHANNEL)] == before
    assert [message.offset for message in station.read(CHANNEL)] == list(range(210))
    assert verify(station, repair=True).ok
    assert [message.raw for message in station.read(CHANNEL, start=105)] == before[105:]


def test_a_damaged_line_from_elsewhere_costs_only_itself(opened: Opener, root: Path) -> None:
    with opened() as station:
        arrive(station, [line(seq + 70) for seq in range(6)])
        station.publish(CHANNEL, "own")
    data = segment(root).read_bytes()
    segment(root).write_bytes(data.replace(b'"data":1,"origin":"host2.aaaaaa","originseq":"0/73"', b"?" * 51, 1))
    station = opened()
    read = {message.offset: message for message in station.read(CHANNEL)}
    assert sorted(read) == [0, 1, 2, 4, 5, 6]
    assert read[6].data == "own"


def test_nothing_came_back(tmp_path: Path) -> None:
    assert returned.load(tmp_path) == frozenset()
    returned.note(tmp_path, "aaaaaa", SYSTEM_DISK)
    returned.note(tmp_path, "bbbbbb", SYSTEM_DISK)
    returned.note(tmp_path, "aaaaaa", SYSTEM_DISK)
    assert returned.load(tmp_path) == {"aaaaaa", "bbbbbb"}
    (tmp_path / returned.FILE).write_bytes(b"\0\0")
    assert returned.load(tmp_path) == frozenset()
