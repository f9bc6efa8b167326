"""Threads of one group commit wake each other, and one that was interrupted holds up nobody."""

from __future__ import annotations

import threading

import pytest

from heliograph.log.tickets import Ticket


class Waiting:
    """A thread that waits for its ticket."""

    def __init__(self) -> None:
        self.ticket = Ticket((b"{",), (0,), 0)
        self.ticket.prepare_to_wait()
        self.woken: list[bool] = []
        self._thread = threading.Thread(target=lambda: self.woken.append(self.ticket.wait()), daemon=True)

    def start(self) -> Waiting:
        self._thread.start()
        return self

    def ended(self) -> bool:
        self._thread.join(5)
        return not self._thread.is_alive()


def crowd(count: int) -> list[Waiting]:
    return [Waiting() for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 64])
@pytest.mark.parametrize("leads", [None, 0, -1])
def test_everybody_wakes_and_learns_the_same(count: int, leads: int | None) -> None:
    waiting = [one.start() for one in crowd(count)]
    tickets = [one.ticket for one in waiting]
    error = OSError("no disk")
    Ticket.wake(tickets, error, None if leads is None else tickets[leads])
    assert all(one.ended() for one in waiting)
    assert [one.woken for one in waiting] == [[True]] * count
    assert {one.ticket.error for one in waiting} == {error}


@pytest.mark.parametrize("when", ["before it is resolved", "after it was resolved", "after it was woken"])
@pytest.mark.parametrize("deserters", [{0}, {1}, {0, 1}, {5, 6, 7}, set(range(0, 20, 2)), set(range(19))])
def test_whoever_deserts_whenever_the_others_wake(deserters: set[int], when: str) -> None:
    waiting = crowd(20)
    deserting = [waiting[at].ticket for at in sorted(deserters)]  # nobody waits for these
    staying = [one.start() for at, one in enumerate(waiting) if at not in deserters]
    if when == "before it is resolved":
        for ticket in deserting:
            ticket.desert()
    Ticket.wake([one.ticket for one in waiting], None, None)
    if when == "after it was resolved":
        for ticket in deserting:
            ticket.desert()
    if when == "after it was woken":
        for ticket in deserting:
            ticket.wait()  # returns in time or not at all: it is the next one in its chain, or its turn has come
            ticket.desert()
    assert all(one.ended() for one in staying)
    assert [one.woken for one in staying] == [[True]] * len(staying)


def test_many_desert_in_the_same_moment() -> None:
    for _ in range(50):
        waiting = crowd(24)
        staying = [one.start() for one in waiting[::3]]
        deserting = [one.ticket for at, one in enumerate(waiting) if at % 3]
        begin = threading.Barrier(3)

        def desert(part: list[Ticket], begin: threading.Barrier = begin) -> None:
            begin.wait()
            for ticket in part:
                ticket.desert()

        threads = [threading.Thread(target=desert, args=(deserting[at::2],)) for at in range(2)]
        for thread in threads:
            thread.start()
        begin.wait()
        Ticket.wake([one.ticket for one in waiting], None, None)
        for thread in threads:
            thread.join()
        assert all(one.ended() for one in staying)
