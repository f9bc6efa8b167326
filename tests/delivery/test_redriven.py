"""Messages for one subscription only: all others pass over them, count them, and are not held up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from heliograph.engine.port import Problem
from heliograph.message import decode_line, decode_lines, new_id
from tests.delivery.harness import MiniStation, eventually


@pytest.fixture
def mini() -> Iterator[MiniStation]:
    station = MiniStation()
    yield station
    station.close()


def line(data: Any, redrivefor: object, channel: str) -> bytes:
    envelope = {
        "specversion": "1.0", "id": new_id(), "source": "test", "type": "t", "channel": channel,
        "time": "2026-11-15T20:30:01.123456Z", "data": data,
    }  # fmt: skip
    return msgspec.json.encode(envelope | ({} if redrivefor is None else {"redrivefor": redrivefor}))


def publish(mini: MiniStation, *names: object) -> None:
    """Messages, each for whom; decoded together, as a log's are. Their data are 0, 1, 2 …"""
    engine = mini.engine
    data = b"".join(line(number, name, engine.channel) + b"\n" for number, name in enumerate(names))
    messages = decode_lines(data, len(engine.entries), len(engine.entries) + len(names), 0, None)
    assert messages is not None
    with engine.news:
        engine.entries.extend(messages)
        engine.news.notify_all()


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}, {"batch": True}, {"timeout_s": 30}, {"name": "pager"}])
@pytest.mark.parametrize("coroutine", [False, True])
def test_what_is_for_others_is_passed_over_and_counted(
    mini: MiniStation, options: dict[str, Any], coroutine: bool
) -> None:
    seen: list[int] = []

    def handle(got: Any) -> None:
        seen.extend(one.data for one in (got if isinstance(got, list) else [got]))

    async def handle_async(got: Any) -> None:
        await asyncio.sleep(0)
        handle(got)

    publish(mini, None, "mailer", "pager", "mailer", None, "pager")
    subscription = mini.subscribe(handle_async if coroutine else handle, **options)
    eventually(lambda: subscription.position == 6)
    named = "name" in options
    assert sorted(seen) == ([0, 2, 4, 5] if named else [0, 4])
    stats = subscription.stats()
    assert (stats.delivered, stats.passed_over) == ((4, 2) if named else (2, 4))
    assert (stats.dropped, stats.expired, stats.filtered, stats.failed, stats.lag) == (0, 0, 0, 0, 0)
    if named:
        subscription.close()
        assert mini.saved("pager") == 6


def test_nothing_but_messages_for_others_moves_the_position_on(mini: MiniStation) -> None:
    publish(mini, "mailer", "mailer")
    subscription = mini.subscribe(lambda _: pytest.fail("delivered"), batch=True, name="pager")
    eventually(lambda: subscription.position == 2)
    assert subscription.stats().passed_over == 2
    assert [part.passed_over for part in subscription.partition_stats()] == [2]


@pytest.mark.parametrize("value", ["", 7, ["pager"], {}])
def test_what_names_nobody_is_for_everybody(mini: MiniStation, value: object) -> None:
    """Another system may mean something else by that attribute."""
    seen: list[int] = []
    publish(mini, value)
    subscription = mini.subscribe(lambda message: seen.append(message.data))
    eventually(lambda: subscription.position == 1)
    assert seen == [0]


def test_a_message_for_another_that_does_not_fit_its_type_is_no_dead_letter_of_ours(mini: MiniStation) -> None:
    engine = mini.engine
    for number, name in enumerate(["mailer", "pager"]):
        problem = Problem(number, number + 1, "mismatch", "does not fit", line(number, name, engine.channel))
        engine.entries.append(problem)
    subscription = mini.subscribe(lambda _: pytest.fail("delivered"), name="pager")
    eventually(lambda: subscription.position == 2)
    assert [letter["offset"] for letter in mini.letters.written] == [1]
    assert subscription.stats().passed_over == 1


def test_only_batches_that_hold_one_are_looked_through(mini: MiniStation) -> None:
    publish(mini, *[None] * 5)
    assert not mini.engine.entries[0].lines.addressed  # type: ignore[union-attr]
    publish(mini, None, "pager")
    assert mini.engine.entries[5].lines.addressed  # type: ignore[union-attr]
    alone = decode_line(line(1, "pager", "c"), 0, 0, None)
    assert (alone.redrivefor, alone.lines.addressed) == ("pager", True)
    assert not decode_line(line(1, None, "c"), 0, 0, None).lines.addressed
