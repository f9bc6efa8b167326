"""What those are told who share out a channel among many readers: all of it, in bounded parts, and what rules allow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.errors import HeliographError, InvalidName, NotAllowed, ProtocolError
from heliograph.federation import asking, librarian, ranges
from heliograph.federation.librarian import Librarian
from heliograph.federation.rules import Rules
from heliograph.log.cursor import LogCursor
from tests.opening import Opener

ALL = Rules("reader", subscribe=[">"])
FEW = Rules("few", subscribe=["alerts", "sensors.a"])
ROOM = 1 << 20


@pytest.fixture
def station(opened: Opener) -> hg.Station:
    return opened(segment_bytes=20_000)


def fill(station: hg.Station, count: int, channel: str = "alerts") -> None:
    for first in range(0, count, 50):
        station.publish_many(channel, [{"n": n, "text": "x" * 200} for n in range(first, first + 50)])


def life(station: hg.Station, channel: str = "alerts") -> str:
    return station.engine.incarnation(channel)


def lines(station: hg.Station, first: int, following: int, size: int, room: int = ROOM) -> Iterator[ranges.Lined]:
    """All answers until there is nothing more, each checked for what it says of its lines."""
    desk = Librarian(station)
    while first < following:
        ask = ranges.Lines(
            channel="alerts", partition=0, incarnation=life(station), first=first, next=following, bytes=size
        )
        head, text = desk.lines(ask, ALL, room)
        assert len(text) <= room
        assert text.count(b"\n") == sum(count for _, count in head.runs)
        assert first < head.next <= following
        first = head.next
        yield head


# -- how much, and no more --------------------------------------------------------------------------------------------


def test_lines_come_in_answers_of_the_size_that_was_asked_for(station: hg.Station) -> None:
    fill(station, 500)
    for size in (1, 5_000, 100_000, 10**9):
        answers = list(lines(station, 3, 333, size))
        covered = [at for head in answers for first, count in head.runs for at in range(first, first + count)]
        assert covered == list(range(3, 333))
    assert len(answers) == 1
    assert len(list(lines(station, 0, 500, 1))) == len(list(lines(station, 0, 500, 0))) == 500
    assert len(list(lines(station, 0, 500, 10**9, room=20_000))) > 5


def test_a_line_that_fits_no_answer_is_lacking_and_its_neighbours_are_not(station: hg.Station) -> None:
    fill(station, 50)
    station.publish("alerts", "x" * 50_000)
    fill(station, 50)
    answers = list(lines(station, 0, 101, 10**9, room=20_000))
    assert [lack[:2] for head in answers for lack in head.lacks] == [(50, 51)]
    assert sum(count for head in answers for _, count in head.runs) == 100


def test_a_gap_is_told_once_whatever_the_size_of_the_answers(station: hg.Station, root: Path) -> None:
    fill(station, 200)
    file = sorted((root / "channels/alerts/0").glob("*.jsonl"))[1]
    text = bytearray(file.read_bytes())
    for part in (4, 2):
        text[text.index(b"\n", len(text) // part) + 150] ^= 1
    file.write_bytes(text)
    told = [[lack for head in lines(station, 0, 200, size) for lack in head.lacks] for size in (1, 700, 10**9)]
    assert len(told[0]) == 2 and all(following == first + 1 for first, following, _ in told[0])
    assert told == [told[0]] * 3


def test_a_survey_goes_on_where_it_stopped(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"sensors.{n:02}" for n in range(25)]
    for name in names:
        station.create_channel(name, partitions=2)
    monkeypatch.setattr(librarian, "PARTITIONS_MAX", 8)
    desk, found, after, answers = Librarian(station), [], "", 0
    while True:
        answer = desk.survey(ranges.Survey(patterns=["sensors.>"], channels=["missing"], after=after), ALL)
        found += [one.name for one in answer.channels]
        answers += 1
        if not answer.more:
            break
        after = found[-1]
    assert found == names
    assert answers == 7


def test_pieces_go_on_where_they_stopped(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(station, 1_000)
    monkeypatch.setattr(librarian, "LOOKS_MAX", 3)
    desk, at, found = Librarian(station), 5, []
    while at < 990:
        answer = desk.pieces(
            ranges.Pieces(channel="alerts", partition=0, first=at, next=990, bytes=30_000, count=4), ALL
        )
        assert len(answer.pieces) <= 4
        found += answer.pieces
        assert at < answer.next <= 990
        at = answer.next
    assert [first for first, _, _ in found] == [5, *(following for _, following, _ in found[:-1])]
    assert found[-1][1] == 990


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ranges.Survey, {"channels": ["a"] * 1_001}),
        (ranges.Ids, {"channel": "a", "places": [[0, 0]] * 1_025}),
        (ranges.Ids, {"channel": "a", "places": [[0, -1]]}),
        (ranges.Pieces, {"channel": "a", "partition": 0, "first": 0, "next": 9, "bytes": 0}),
        (ranges.Pieces, {"channel": "a", "partition": 0, "first": 0, "next": 9, "bytes": 9, "count": 10_001}),
        (ranges.Pieces, {"channel": "a", "partition": 0, "first": 0, "next": 9, "bytes": 9, "times_us": [0, 2**64]}),
        (ranges.Pieces, {"channel": "a", "partition": 5_000, "first": 0, "next": 9, "bytes": 9}),
        (ranges.Lines, {"channel": "a", "partition": 0, "incarnation": "x", "first": -1, "next": 9}),
        (ranges.Schema, {"channel": "a", "type": "x" * 1_001}),
    ],
)
def test_what_is_out_of_bounds_is_refused(kind: Any, said: dict[str, Any]) -> None:

    with pytest.raises(ProtocolError):
        asking.decode(msgspec.json.encode(said) + b"\n", kind)


@given(
    st.sampled_from([ranges.SURVEY, ranges.IDS, ranges.PIECES, ranges.LINES, ranges.SCHEMA]),
    st.dictionaries(
        st.sampled_from(["channel", "channels", "patterns", "partition", "first", "next", "bytes", "incarnation",
                         "places", "times_us", "type", "count", "after"]),
        st.sampled_from([0, 1, 7, 2**62, 2**63 - 1, "alerts", "", ">", "a.*", "../x", ["alerts"], [[0, 5]], [0, 9]]),
    ),
)  # fmt: skip
def test_whatever_is_asked_is_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, said: dict[str, Any]
) -> None:

    path = tmp_path_factory.getbasetemp() / "librarian"
    with hg.open(path, name="hub", durability="os") as station, contextlib.suppress(HeliographError):
        station.publish("alerts", 1)
        body = Librarian(station).answer(name, msgspec.json.encode(said) + b"\n", ALL, ROOM)
        assert body.startswith(b"{")
        assert len(body) < ROOM


# -- who may, and what is not there -----------------------------------------------------------------------------------


def test_the_rules_hold_for_each_request(station: hg.Station) -> None:
    desk = Librarian(station)
    for channel in ("alerts", "secrets", "sensors.a", "sensors.b"):
        station.publish(channel, 1)
    for ask in (
        lambda: desk.survey(ranges.Survey(channels=["alerts", "secrets"]), FEW),
        lambda: desk.survey(ranges.Survey(patterns=["secrets.>"]), FEW),
        lambda: desk.ids(ranges.Ids(channel="secrets", places=[(0, 0)]), FEW),
        lambda: desk.pieces(ranges.Pieces(channel="secrets", partition=0, first=0, next=1, bytes=1), FEW),
        lambda: desk.schema(ranges.Schema(channel="secrets", type="x"), FEW),
        lambda: desk.lines(
            ranges.Lines(channel="secrets", partition=0, incarnation=life(station, "secrets"), first=0, next=1), FEW, 9
        ),
    ):
        with pytest.raises(NotAllowed):
            ask()
    there = desk.survey(ranges.Survey(patterns=["sensors.>", "*"]), FEW).channels
    assert [one.name for one in there] == ["alerts", "sensors.a"]
    with pytest.raises(InvalidName):
        desk.survey(ranges.Survey(channels=["../x"]), ALL)


def test_what_is_not_there_is_no_error(station: hg.Station) -> None:
    desk = Librarian(station)
    station.publish("alerts", 1)
    assert desk.survey(ranges.Survey(channels=["missing"]), ALL) == ranges.Surveyed()
    assert desk.ids(ranges.Ids(channel="missing", places=[(0, 0)]), ALL).ids == [""]
    assert desk.ids(ranges.Ids(channel="alerts", places=[(0, 5), (7, 0)]), ALL).ids == ["", ""]
    for channel, partition in (("missing", 0), ("alerts", 7)):
        ask = ranges.Pieces(channel=channel, partition=partition, first=3, next=9, bytes=5)
        assert desk.pieces(ask, ALL) == ranges.Pieced(pieces=[(3, 9, 0)], next=9)
    assert desk.schema(ranges.Schema(channel="missing", type="x"), ALL) == ranges.SchemaFound()
    gone = ranges.Lines(channel="missing", partition=0, incarnation="k3f9q2", first=3, next=9)
    assert desk.lines(gone, ALL, ROOM) == (ranges.Lined(incarnation="", next=3), b"")
    for partition, first in ((0, 5), (7, 0)):
        ended = ranges.Lines(channel="alerts", partition=partition, incarnation=life(station), first=first, next=9)
        assert desk.lines(ended, ALL, ROOM) == (ranges.Lined(incarnation=life(station), next=first), b"")


def test_lines_of_another_life_are_not_given(station: hg.Station) -> None:
    station.publish("alerts", 1)
    ask = ranges.Lines(channel="alerts", partition=0, incarnation="another", first=0, next=1)
    assert Librarian(station).lines(ask, ALL, ROOM) == (ranges.Lined(incarnation=life(station), next=0), b"")


def test_the_newest_schema_is_given(station: hg.Station) -> None:
    station.engine.create("alerts")
    for version in ({"type": "object"}, {"type": "string"}):
        station.engine.schemas.add("alerts", "com.example.v1", version, lambda _: True)
    found = Librarian(station).schema(ranges.Schema(channel="alerts", type="com.example.v1"), ALL)
    assert found == ranges.SchemaFound(version=2, schema={"type": "string"})


@pytest.mark.parametrize("again", [False, True])
def test_whose_files_go_while_they_are_read_is_told_that_its_life_ended(
    station: hg.Station, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    fill(station, 100)
    before = life(station)

    def gone(_: LogCursor) -> None:
        station.delete_channel("alerts")
        if again:
            fill(station, 50)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(LogCursor, "read", gone)
    ask = ranges.Lines(channel="alerts", partition=0, incarnation=before, first=3, next=9)
    head, text = Librarian(station).lines(ask, ALL, ROOM)
    assert (head.incarnation, head.next, text) == (life(station) if again else "", 3, b"")
    assert head.incarnation != before
    monkeypatch.setattr(LogCursor, "read", lambda _: (_ for _ in ()).throw(FileNotFoundError(2, "lost")))
    if again:  # that is no life that ended
        with pytest.raises(FileNotFoundError):
            Librarian(station).lines(msgspec.structs.replace(ask, incarnation=life(station)), ALL, ROOM)
