"""Handlers that are elsewhere: how much goes there at once, and what their answers mean for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from heliograph.delivery.far import AHEAD_BYTES, AHEAD_FIRST, AHEAD_MAX, FarHandler, FarInvoker, Told
from heliograph.delivery.invoke import Ended, Run
from heliograph.message import Message, decode_line


def message(offset: int, size: int = 10) -> Message:
    begin = b'{"specversion":"1.0","id":"%d","source":"s","type":"t","time":"2026-11-16T08:00:00Z",' % offset
    return decode_line(begin + b'"channel":"c","data":"%b"}' % (b"x" * size), offset, 0, None)


class Elsewhere(FarHandler):
    """Answers as it is told to: numbers of messages that are done, and perhaps an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[list[int]] = []

    def deliver(self, messages: Sequence[Message]) -> Told:
        self.asked.append([one.offset for one in messages])
        answer = self.answers.pop(0) if self.answers else len(messages)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Told) else Told(min(answer, len(messages)))


def run_of(count: int, size: int = 10) -> Run:
    return Run([message(offset, size) for offset in range(count)])


def test_all_are_handled_and_more_go_at_once_each_time() -> None:
    far, run = Elsewhere(), run_of(200)
    assert FarInvoker(far, [])(run) is Ended.FINISHED
    assert [offset for part in far.asked for offset in part] == list(range(200))
    assert [len(part) for part in far.asked] == [AHEAD_FIRST, 32, 64, 88]
    assert run.taken() == 200


def test_a_slow_one_gets_little() -> None:
    far, run = Elsewhere(16, 1, 1, 1, 1), run_of(40)
    invoke = FarInvoker(far, [])
    assert invoke(run) is Ended.FINISHED
    assert [len(part) for part in far.asked][:6] == [16, 24, 2, 2, 2, 2]
    assert [part[0] for part in far.asked][:6] == [0, 16, 17, 18, 19, 20]


def test_an_error_is_that_of_the_message_behind_those_that_are_done() -> None:
    far, run = Elsewhere(16, Told(3, ValueError("boom"))), run_of(40)
    outcome = FarInvoker(far, [])(run)
    assert isinstance(outcome, ValueError)
    assert run.done() == 19
    assert run.undone().offset == 19


def test_an_error_of_the_first_one_counts_none_as_done() -> None:
    run = run_of(5)
    assert isinstance(FarInvoker(Elsewhere(Told(0, ValueError("boom"))), [])(run), ValueError)
    assert (run.done(), run.undone().offset) == (0, 0)


def test_nobody_there_is_an_interruption_and_so_is_being_asked_to_stop() -> None:
    run = run_of(20)
    assert FarInvoker(Elsewhere(16, 0), [])(run) is Ended.INTERRUPTED
    assert run.done() == 16
    run, far = run_of(20), Elsewhere()
    assert FarInvoker(far, [True])(run) is Ended.INTERRUPTED
    assert (run.done(), far.asked) == (0, [])


def test_whatever_delivering_raises_is_the_outcome() -> None:
    run = run_of(3)
    assert isinstance(FarInvoker(Elsewhere(OSError("gone")), [])(run), OSError)
    assert run.done() == 0


def test_a_part_is_bounded_in_bytes_and_in_number() -> None:
    far = Elsewhere()
    FarInvoker(far, [])(run_of(8, AHEAD_BYTES // 2))
    assert [len(part) for part in far.asked] == [1] * 8, "two of them would be too much"
    far = Elsewhere()
    FarInvoker(far, [])(run_of(10_000, 0))
    assert max(len(part) for part in far.asked) == AHEAD_MAX


def test_called_as_any_other_handler_it_raises() -> None:
    Elsewhere()(message(0))
    with pytest.raises(ValueError, match="boom"):
        Elsewhere(Told(0, ValueError("boom")))(message(0))
    with pytest.raises(ConnectionError):
        Elsewhere(0)(message(0))
