"""Asking and answering between FastStream's handlers and stations, in both directions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faststream import BaseMiddleware
from faststream.exceptions import AckMessage

import heliograph as hg
from heliograph.faststream import AckPolicy, HeliographBroker, HeliographResponse
from tests.faststream.stories import QUICK, at, eventually, letters, run


def summing(root: Path, **options: Any) -> HeliographBroker:
    broker = at(root)

    @broker.subscriber("sums", start="first", retry=QUICK, **options)
    async def add(a: int, b: int) -> HeliographResponse:
        if a + b < 0:
            raise ValueError("below zero")
        return HeliographResponse({"sum": a + b}, headers={"exact": True}, type="com.example.sum.v1", key="k")

    return broker


def test_a_handler_answers_requests_of_brokers_and_of_stations(root: Path) -> None:
    broker = summing(root, name="clerk")

    async def story() -> None:
        async with broker:
            await broker.start()
            reply = await broker.request({"a": 1, "b": 2}, "sums", timeout=30, correlation_id="mine")
            assert await reply.decode() == {"sum": 3}
            assert (reply.correlation_id, reply.headers["exact"]) == ("mine", True)
            assert (reply.raw_message.type, reply.raw_message.key) == ("com.example.sum.v1", "k")
            declared = broker.publisher("sums")
            again = await declared.request({"a": 2, "b": 2}, timeout=30)
            assert await again.decode() == {"sum": 4}
            async with hg.open_async(root) as other:
                message = await other.request("sums", {"a": 3, "b": 4}, timeout=30)
                assert message.data == {"sum": 7}

    run(story)


def test_a_broker_asks_a_handler_of_a_station(root: Path) -> None:
    broker = at(root)

    async def story() -> None:
        async with broker:
            await broker.station.reply("prices", lambda request: request.data["amount"] * 3, name="clerk")
            reply = await broker.request({"amount": 14}, "prices", timeout=30)
            assert await reply.decode() == 42
            with pytest.raises(TimeoutError):
                await broker.request({}, "nobody", timeout=0.05)

    run(story)


@pytest.mark.parametrize("options", [{}, {"name": "clerk", "queue": True}, {"ack_policy": AckPolicy.REJECT_ON_ERROR}])
def test_whoever_asks_is_told_that_the_handler_gave_up(root: Path, options: dict[str, Any]) -> None:
    broker = summing(root, **options)

    async def story() -> None:
        async with broker:
            await broker.start()
            with pytest.raises(hg.ReplyFailed, match="below zero"):
                await broker.request({"a": -1, "b": 0}, "sums", timeout=30)
            (letter,) = await letters(broker, "sums")
            assert letter["error"] == "ValueError: below zero"

    run(story)


def test_whoever_asks_is_told_of_an_error_that_was_acknowledged(root: Path) -> None:
    broker = summing(root, ack_policy=AckPolicy.ACK)

    @broker.subscriber("shrugs", start="first")
    async def shrug(body: Any) -> None:
        raise AckMessage

    async def story() -> None:
        async with broker:
            await broker.start()
            with pytest.raises(hg.ReplyFailed, match="below zero"):
                await broker.request({"a": -1, "b": 0}, "sums", timeout=30)
            with pytest.raises(hg.ReplyFailed, match="without an answer"):
                await broker.request("?", "shrugs", timeout=30)
            assert {info.name for info in await broker.station.channels()} == {"sums", "shrugs"}

    run(story)


def test_middlewares_see_answers(root: Path) -> None:
    class Signing(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["by"] = cmd.publish_type.value
            return await call_next(cmd)

    broker = at(root, middlewares=[Signing])

    @broker.subscriber("echo")
    async def echo(body: str) -> str:
        return body

    async def story() -> None:
        async with broker:
            await broker.start()
            reply = await broker.request("hello", "echo", timeout=30)
            assert (await reply.decode(), reply.headers["by"]) == ("hello", "REPLY")

    run(story)


def test_no_reply_answers_nobody(root: Path) -> None:
    broker = summing(root, no_reply=True)

    async def story() -> None:
        async with broker:
            await broker.start()
            with pytest.raises(hg.ReplyTimeout):
                await broker.request({"a": 1, "b": 2}, "sums", timeout=0.2)

    run(story)


def test_reply_to_names_a_channel_for_the_answer(root: Path) -> None:
    broker, seen = summing(root, name="clerk"), []

    @broker.subscriber("answers", start="first")
    async def hear(answer: dict[str, int]) -> None:
        seen.append(answer["sum"])

    async def story() -> None:
        async with broker:
            await broker.start()
            await asyncio.gather(*(broker.publish({"a": a, "b": 1}, "sums", reply_to="answers") for a in range(3)))
            await eventually(lambda: len(seen) == 3)

    run(story)
    assert sorted(seen) == [1, 2, 3]


def test_dead_letters_are_subscribed_to_like_any_channel(root: Path) -> None:
    broker, seen = summing(root, name="clerk"), []

    @broker.subscriber("sums.dead-letter", name="undertaker", start="first")
    async def bury(letter: dict[str, Any]) -> None:
        seen.append(letter["original"]["data"])

    async def story() -> None:
        async with broker:
            await broker.start()
            await broker.publish({"a": -1, "b": 0}, "sums")
            await eventually(lambda: seen)

    run(story)
    assert seen == [{"a": -1, "b": 0}]
