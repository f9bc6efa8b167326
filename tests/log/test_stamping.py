"""Lines that are finished together are, byte for byte, those that are finished one by one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heliograph.log import stamping
from heliograph.log.lines import batch_of, intact, origin_of
from heliograph.log.stamping import EncodedTicket, NumberForm, one_by_one, together

PLACE = b',"origin":"host%d.k3f9q2","originseq":"3/'
FORM = NumberForm(b',"producer":"spark.6f1e","producerseq":"12/', b'"')


@given(
    st.lists(st.binary(max_size=40).filter(lambda body: b"\n" not in body), min_size=1, max_size=300),
    st.integers(1, 10**12),
    st.integers(0, 10**12),
)
@example([b"{"] * 250, 8, 95)  # three lengths of numbers, four of stretches
@example([b"{"], 9, 0)
@example([b""] * 3, 1, 2**62)
def test_together_is_as_one_by_one(bodies: list[bytes], number: int, first: int) -> None:
    made = together(bodies, FORM, number, PLACE, first)
    assert made == one_by_one(bodies, FORM, number, PLACE, first)


def test_the_lines_say_what_they_are() -> None:
    bodies = [b'{"id":"%d","data":%d' % (at, at) for at in range(1000)]
    lines = EncodedTicket(bodies, FORM, 95, 1).lines(PLACE, 7).split(b"\n")
    assert lines.pop() == b""
    for at, line in enumerate(lines):
        assert intact(line)
        assert line.startswith(
            b'{"id":"%d","data":%d,"producer":"spark.6f1e","producerseq":"12/%d",' % (at, at, 95 + at)
        )
        assert batch_of(line) == (7, 1000)
        place = origin_of(line)
        assert place is not None
        assert (place.partition, place.offset) == (3, 7 + at)


def test_without_numpy_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = EncodedTicket([b"{%d" % at for at in range(600)], FORM, 1, 1)
    with_numpy = ticket.lines(PLACE, 0)
    monkeypatch.setattr(stamping, "_numpy", lambda: None)
    assert ticket.lines(PLACE, 0) == with_numpy


def test_the_size_of_a_ticket_is_about_that_of_its_lines() -> None:
    ticket = EncodedTicket([b"x" * 1000] * 20, FORM, 1, 1)
    assert ticket.size <= len(ticket.lines(PLACE, 0)) <= 1.2 * ticket.size
