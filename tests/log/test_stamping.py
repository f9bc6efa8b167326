"""Lines that are finished together are, byte for byte, those that are finished one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heliograph.log import beginnings, stamping
from heliograph.log.beginnings import Beginning, Run
from heliograph.log.lines import batch_of, intact, origin_of
from heliograph.log.packed import EncodedTicket, Packed, Spot
from heliograph.log.stamping import NumberForm, borders_of, one_by_one, sums_of, together

PLACE = b',"origin":"host%d.k3f9q2","originseq":"3/'
FORM = NumberForm(b',"producer":"spark.6f1e","producerseq":"12/', b'"')


@given(
    st.lists(st.binary(max_size=40).filter(lambda body: b"\n" not in body), min_size=1, max_size=300),
    st.integers(1, 10**12),
    st.integers(0, 10**12),
)
@example([b"{"] * 250, 8, 95)  # three lengths of numbers, four of stretches
@example([b"{"] * 250, 9_900, 19_950)  # other digits than the last four change
@example([b"{"] * 25_000, 19_990, 123_456)  # more than once
@example([b"{"], 9, 0)
@example([b""] * 3, 1, 2**62)
def test_together_is_as_one_by_one(bodies: list[bytes], number: int, first: int) -> None:
    data = Packed.of(bodies).data
    borders = borders_of(data)
    made = together(data, borders, sums_of(data), (), FORM, number, PLACE, first)  # type: ignore[arg-type]
    assert made == one_by_one(bodies, FORM, number, PLACE, first)


runs = st.lists(
    st.builds(
        Run,
        st.builds(Beginning, st.text('{é\U0001f600"%0', max_size=9), st.integers(0, 2**31), st.text("a%9", max_size=9)),
        st.integers(1, 60),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@given(runs, st.randoms(use_true_random=False), st.integers(1, 10**12), st.integers(0, 10**12))
@example([Run(Beginning("", 0xFFFF_FFF0 - 7, ""), 23)], Random(1), 95, 2**62)  # to the last number that there is
@example([Run(Beginning("x", 0, "y"), 1)], Random(1), 9, 0)
@example([Run(Beginning("x", 0x1FFF0, "y"), 16), Run(Beginning("x", 0x2FFF0, "y"), 17)], Random(1), 9, 0)
@example([Run(Beginning("x", 0xFFFF, "y"), 0x10002)], Random(1), 1_000, 1_000)
def test_beginnings_that_were_said_once_stand_in_each_line(
    runs: list[Run], random: Random, number: int, first: int
) -> None:
    begins = [begin for run in runs for begin in run.texts()]
    rest = [random.randbytes(random.randrange(90)).replace(b"\n", b"") for _ in begins]
    data = Packed.of(rest).data
    made = together(data, borders_of(data), sums_of(data, runs), runs, FORM, number, PLACE, first)  # type: ignore[arg-type]
    whole = [begin + one for begin, one in zip(begins, rest, strict=True)]
    assert made == one_by_one(whole, FORM, number, PLACE, first)
    assert sums_of(data, runs) == sums_of(Packed.of(whole).data)
    assert Packed(data, runs=runs).size() == len(Packed.of(whole).data)


def _without_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stamping, beginnings):
        monkeypatch.setattr(module, "tools", lambda: None)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("begin", "end"), [(0, 1200), (0, 600), (599, 601), (650, 1200), (1199, 1200), (0, 1)])
def test_some_of_those_that_begin_alike_keep_their_beginnings(
    monkeypatch: pytest.MonkeyPatch, begin: int, end: int, both: bool
) -> None:
    runs = [Run(Beginning("{a", 250, ","), 600), Run(Beginning("{b", 0xFFFF, ";"), 600)]
    whole = [text + b"%d" % at for at, text in enumerate([*runs[0].texts(), *runs[1].texts()])]
    if not both:
        _without_both(monkeypatch)
    data = Packed.of([b"%d" % at for at in range(1200)]).data
    for sums in (b"", sums_of(data, runs)):
        some = Packed(data, sums, runs).part(begin, end)
        assert len(some) == end - begin
        assert some.lines(Spot(FORM, 95, PLACE, 7)) == one_by_one(whole[begin:end], FORM, 95, PLACE, 7)


def test_the_lines_say_what_they_are() -> None:
    bodies = [b'{"id":"%d","data":%d' % (at, at) for at in range(1000)]
    lines = EncodedTicket(Packed.of(bodies), FORM, 95, 1).lines(PLACE, 7).split(b"\n")
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


def test_without_numpy_and_arrow_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"{%d" % at for at in range(600)]
    with_both = EncodedTicket(Packed.of(bodies), FORM, 1, 1).lines(PLACE, 0)
    _without_both(monkeypatch)
    packed = Packed.of(bodies)
    assert EncodedTicket(packed, FORM, 1, 1).lines(PLACE, 0) == with_both
    assert EncodedTicket(packed.part(100, 103), FORM, 1, 1).lines(PLACE, 7) == one_by_one(
        bodies[100:103], FORM, 1, PLACE, 7
    )


@pytest.mark.parametrize("count", [3, 600])
@pytest.mark.parametrize("change", [{"number": 6}, {"first": 8}, {"place": b',"origin":"a.b","originseq":"0/'}, {}])
def test_lines_that_were_made_for_another_spot_are_made_anew(count: int, change: dict[str, Any]) -> None:
    bodies = [b"{%d" % at for at in range(count)]
    packed = Packed.of(bodies)
    spot = Spot(FORM, 5, PLACE, 7)
    packed.prepare(spot._replace(**change))
    assert packed.lines(spot) == one_by_one(bodies, *spot)
    assert packed.lines(spot) == one_by_one(bodies, *spot), "once more, if the first time failed"


def test_lines_that_were_made_before_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Packed.of([b"{"] * 600)
    spot = Spot(FORM, 5, PLACE, 7)
    packed.prepare(spot)
    monkeypatch.setattr(Packed, "_finished", None)
    assert packed.lines(spot).count(b"\n") == 600


@pytest.mark.parametrize(("begin", "end"), [(0, 700), (0, 600), (50, 700), (99, 100)])
@pytest.mark.parametrize("known", [True, False])
def test_some_of_them_are_as_if_they_came_alone(begin: int, end: int, known: bool) -> None:
    bodies = [b'{"n":%d' % at for at in range(700)]
    whole = Packed.of(bodies)
    if known:  # as they were laid aside
        whole = Packed(whole.data, sums_of(whole.data))
    some = whole.part(begin, end)
    assert len(some) == end - begin
    assert some.lines(Spot(FORM, 95, PLACE, 7)) == one_by_one(bodies[begin:end], FORM, 95, PLACE, 7)


def test_the_size_of_a_ticket_is_about_that_of_its_lines() -> None:
    ticket = EncodedTicket(Packed.of([b"x" * 1000] * 20), FORM, 1, 1)
    assert ticket.size <= len(ticket.lines(PLACE, 0)) <= 1.2 * ticket.size
