"""How far everything is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.delivery.window import Window


def test_the_slowest_lane_holds_the_position() -> None:
    window = Window(3, 3, pieces_max=2, span_max=100)
    window.hand_out({0: 3, 1: 4}, reach=9)
    assert window.committed([8, 7, 0]) == 7
    window.complete(1)
    assert window.committed([8, 7, 0]) == 8
    window.complete(0)
    assert window.committed([8, 7, 0]) == 9


def test_a_lane_between_two_pieces_does_not_hold_the_old_position() -> None:
    window = Window(1, 0, pieces_max=2, span_max=100)
    window.hand_out({0: 0}, reach=5)
    window.hand_out({0: 5}, reach=9)
    window.complete(0)
    assert window.committed([3]) == 5


def test_what_nobody_needs_moves_the_position_only_when_nothing_before_it_is_out() -> None:
    window = Window(2, 0, pieces_max=2, span_max=100)
    window.hand_out({1: 2}, reach=3)
    window.advance(10)
    assert window.committed([0, 2]) == 2
    window.complete(1)
    assert window.committed([0, 2]) == 10


def test_it_moves_back_only_while_nothing_is_out() -> None:
    window = Window(2, 0, pieces_max=2, span_max=100)
    window.hand_out({1: 2}, reach=10)
    with pytest.raises(ValueError, match="nothing is out"):
        window.rewind(5)
    window.complete(1)
    window.rewind(5)
    assert window.committed([0, 0]) == window.reach == 5
    window.hand_out({0: 5}, reach=7)
    assert window.committed([5, 0]) == 5


def test_lanes_and_span_are_bounded() -> None:
    window = Window(2, 0, pieces_max=2, span_max=10)
    window.hand_out({0: 0}, reach=1)
    assert window.has_room([0, 0])
    window.hand_out({0: 1}, reach=2)
    assert not window.has_room([0, 0]), "lane 0 has two pieces"
    with pytest.raises(ValueError):
        window.hand_out({0: 2}, reach=3)
    window.complete(0)
    window.advance(11)
    assert not window.has_room([1, 0]), "offset 1 is ten behind"


def test_the_window_never_moves_back() -> None:
    window = Window(1, 5, pieces_max=2, span_max=10)
    with pytest.raises(ValueError):
        window.advance(4)
    with pytest.raises(ValueError):
        window.hand_out({0: 4}, reach=6)


@given(st.data())
def test_committed_is_the_lowest_offset_that_is_not_done(data: st.DataObject) -> None:
    """Against a model that keeps every offset."""
    lanes = data.draw(st.integers(1, 4))
    window = Window(lanes, 0, pieces_max=10_000, span_max=10_000)
    queues: list[list[list[int]]] = [[] for _ in range(lanes)]
    done: set[int] = set()
    undone_seen = [0] * lanes
    end = 0
    last = 0
    for _ in range(data.draw(st.integers(1, 40))):
        if data.draw(st.booleans()):
            count = data.draw(st.integers(1, 6))
            owners = [data.draw(st.integers(-1, lanes - 1)) for _ in range(count)]
            piles: dict[int, list[int]] = {}
            for offset, owner in enumerate(owners, end):
                if owner < 0:
                    done.add(offset)
                else:
                    piles.setdefault(owner, []).append(offset)
            window.hand_out({lane: pile[0] for lane, pile in piles.items()}, reach=end + count)
            for lane, pile in piles.items():
                queues[lane].append(pile)
            end += count
        else:
            lane = data.draw(st.integers(0, lanes - 1))
            if queues[lane]:
                pile = queues[lane][0]
                done.add(pile.pop(0))
                if pile:
                    undone_seen[lane] = pile[0]
                else:
                    queues[lane].pop(0)
                    window.complete(lane)
        committed = window.committed(undone_seen)
        assert committed == next(offset for offset in range(end + 1) if offset not in done)
        assert committed >= last
        last = committed
