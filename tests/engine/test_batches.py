"""From stored bytes to messages: decoded once, shared, and never a neighbour's loss."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import heliograph as hg
from heliograph.engine.batches import Cursor
from heliograph.station import Station
from tests.opening import Opener

CHANNEL = "events"


def cursor(station: Station, offset: int = 0) -> Cursor:
    return station.engine.cursor(CHANNEL, 0, offset)


def drain(one: Cursor) -> list[hg.Message]:
    messages = []
    while (batch := one.pull()) is not None:
        assert batch.first < batch.next
        messages += batch.messages
    return messages


def test_subscribers_that_move_together_share_decoded_messages(opened: Opener) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, list(range(100)))
        first, second = cursor(station), cursor(station)
        assert first.pull() is second.pull()


def test_a_reader_that_starts_in_the_middle_of_a_shared_batch_gets_exactly_its_part(opened: Opener) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, list(range(100)))
        drain(cursor(station))
        for start in (0, 1, 50, 99):
            assert [message.data for message in drain(cursor(station, start))] == list(range(start, 100))
        assert cursor(station, 100).pull() is None


def test_batches_are_bounded(opened: Opener) -> None:
    with opened(durability="os") as station:
        for _ in range(60):
            station.publish_many(CHANNEL, ["x" * 1000] * 50)
        one = cursor(station)
        sizes = []
        while (batch := one.pull()) is not None:
            sizes.append(sum(len(message.raw) for message in batch.messages))
        assert len(sizes) > 5
        assert max(sizes) < 2_000_000


def test_a_line_that_is_no_envelope_is_a_problem_of_its_own_and_not_its_neighbours(opened: Opener, root: Path) -> None:
    import google_crc32c

    from heliograph.log.tickets import Ticket

    with opened() as station:
        station.publish(CHANNEL, 0)
        for body in (b'{"not":"an envelope"', b'{"id":5'):
            station.engine.append(CHANNEL, 0, Ticket((body,), (google_crc32c.value(body),), 1), 1.0)
        station.publish(CHANNEL, 3)
        batch = cursor(station).pull()
        assert batch is not None
        assert [message.data for message in batch.messages] == [0, 3]
        assert [(problem.offset, problem.next, problem.kind) for problem in batch.problems] == [
            (1, 2, "undecodable"),
            (2, 3, "undecodable"),
        ]


def test_a_payload_that_does_not_fit_its_type_is_a_mismatch_and_still_readable(opened: Opener) -> None:
    class Alert(msgspec.Struct):
        level: int

    with opened() as station:
        station.publish(CHANNEL, {"level": 1}, type="alert.v1")
        station.publish(CHANNEL, {"level": "high"}, type="alert.v1")
        station.register("alert.v1", Alert)
        batch = cursor(station).pull()
        assert batch is not None
        assert [message.data for message in batch.messages] == [Alert(1)]
        assert [(problem.offset, problem.kind) for problem in batch.problems] == [(1, "mismatch")]
        assert [message.data for message in station.read(CHANNEL)] == [Alert(1), {"level": "high"}]


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_cursor_at_the_end_sees_what_comes_next_and_nothing_twice(opened: Opener, durability: str) -> None:
    with opened(durability=durability, segment_bytes=4096) as station:
        station.publish(CHANNEL, 0)
        one = cursor(station)
        got = [message.data for message in drain(one)]
        for number in range(1, 60):
            station.publish(CHANNEL, number)
            got += [message.data for message in drain(one)]
        assert got == list(range(60))


def test_seeking_goes_anywhere(opened: Opener) -> None:
    with opened(segment_bytes=4096) as station:
        for number in range(100):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
        one = cursor(station)
        for target in (50, 10, 99, 0, 77):
            one.seek(target)
            batch = one.pull()
            assert batch is not None
            assert batch.messages[0].data["n"] == target
        one.close()
        one.seek(3)
        batch = one.pull()
        assert batch is not None
        assert batch.messages[0].offset == 3
