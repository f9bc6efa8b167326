"""Arguments of a wrong kind are refused where they are handed over, by an error of ours that says what to pass."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.arguments import check_many, check_seconds
from tests.client.conftest import Hub

WRONG: list[Any] = [None, 5, -1, 1.5, math.nan, "soon", "", [], b"x", {"a": object()}, object(), {1}, Exception]


def handle(message: hg.Message) -> None:
    del message


# By method: arguments that are fine, each of which is wrong in turn. An awaited method has the same.
PUBLISH: dict[str, Any] = {
    "channel": "alerts", "type": None, "key": None, "headers": None, "correlation_id": None,
}  # fmt: skip
BOTH: dict[str, dict[str, Any]] = {
    "publish": {**PUBLISH, "subject": None, "id": None, "ttl": None},
    "publish_many": {**PUBLISH, "payloads": [1], "ttl": None},
    "read": {"channel": "alerts", "start": "first", "end": None, "partition": None, "on_gap": None},
    "subscribe": {
        "channel": "alerts", "handler": handle, "name": "worker", "start": "new", "concurrency": 1, "retry": None,
        "on_gap": None,
    },
    "queue": {
        "channel": "alerts", "name": "jobs", "start": "new", "visibility_s": None, "max_in_flight": None,
        "max_deliveries": None,
    },
    "request": {**PUBLISH, "timeout": 0.05, "subject": None},
    "reply": {"channel": "alerts", "handler": handle, "name": None},
    "register": {"type_name": "x.v1", "cls": dict},
}  # fmt: skip
STATION: dict[str, dict[str, Any]] = {
    **BOTH,
    "publish": {**BOTH["publish"], "wait": None, "deliver_at": None, "delay": None},
    "publish_many": {**BOTH["publish_many"], "wait": None, "deliver_at": None, "delay": None},
    "read": {**BOTH["read"], "where": None},
    "subscribe": {
        **BOTH["subscribe"], "name": None, "timeout_s": None, "buffer": None, "overflow": "block", "where": None,
    },
    "producer": {"id": "p"},
    "forget_producer": {"channel": "alerts", "id": "p"},
    "cancel": {"id": "x"},
    "schedule": {**PUBLISH, "name": "s", "cron": "0 0 * * *", "timezone": "UTC", "missed": "one", "ttl": None},
    "unschedule": {"name": "x"},
    "queue_info": {"channel": "alerts", "name": "x"},
    "release": {"channel": "alerts", "name": "x", "worker": None, "partition": 0, "offset": None},
    "requeue": {"channel": "alerts", "name": "jobs", "places": [(0, 0)]},
    "get": {"id": "x", "channel": "alerts"},
    "redact": {"id": "x", "channel": "alerts"},
    "create_channel": {"name": "new", "partitions": 1, "retention_bytes": None},
    "alter_channel": {"name": "alerts", "partitions": None, "retention_bytes": None},
    "seek": {"channel": "alerts", "name": "x", "to": "first", "partition": None},
    "forget": {"channel": "alerts", "name": "x"},
}  # fmt: skip


async def done(result: Any) -> None:
    """Have it done, and undone."""
    if inspect.isasyncgen(result):
        async for _ in result:
            pass
        return
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Iterator):
        list(result)
    close = getattr(result, "close", None)
    if close is not None and inspect.isawaitable(closing := close()):
        await closing


async def refusals(of: Any, methods: dict[str, dict[str, Any]]) -> list[str]:
    """What raised something else than an error of ours."""
    bare = []
    for method, arguments in methods.items():
        for name in arguments:
            for wrong in WRONG:
                if name == "timeout" and isinstance(wrong, int | float):
                    continue  # nobody answers: that would be waited for
                try:
                    await done(getattr(of, method)(**{**arguments, name: wrong}))
                except hg.HeliographError:
                    continue
                except Exception as error:
                    bare.append(f"{method}({name}={wrong!r}): {type(error).__name__}: {error}")
    return bare


def test_a_station_refuses_in_its_own_words(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", 1)
        assert asyncio.run(refusals(station, STATION)) == []


def test_an_asynchronous_station_does_so_too(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.publish("alerts", 1)
            return await refusals(station, STATION)

    assert asyncio.run(main()) == []


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    net = Hub(tmp_path)
    everything = [">"]
    rules = {"name": "tool", "publish": everything, "subscribe": everything, "reply": everything}
    net.station("hub", peers=[rules])
    return net


CLIENT = {
    **BOTH,
    "publish": {**BOTH["publish"], "timeout": 1.0},
    "publish_many": {**BOTH["publish_many"], "timeout": 1},
}


def test_a_client_does_so_too(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("alerts", 1)
        assert asyncio.run(refusals(client, CLIENT)) == []


def test_an_asynchronous_client_does_so_too(hub: Hub) -> None:
    async def main() -> list[str]:
        async with hg.connect_async(hub.url, tls=hub.tls("tool")) as client:
            return await refusals(client, CLIENT)

    with hub.open("hub") as station:
        station.publish("alerts", 1)
        assert asyncio.run(main()) == []


@pytest.mark.parametrize("wrong", [5, 1.5, [], {"a": 1}, object(), b"x"])
def test_opening_says_what_to_pass(tmp_path: Path, wrong: Any) -> None:
    refusals: list[Callable[[], object]] = [
        lambda: hg.open(tmp_path, name=wrong),
        lambda: hg.open(wrong, name="host1"),
        lambda: hg.open(tmp_path, name="host1", durability=wrong),
        lambda: hg.connect(wrong),
        lambda: hg.connect("wss://localhost:1", tls=wrong),
        lambda: hg.connect("wss://localhost:1", tls={"cert": wrong, "key": "b", "ca": "c"}),
        lambda: hg.connect("wss://localhost:1", timeout="soon"),  # type: ignore[arg-type]
    ]
    if wrong != []:  # no configuration
        refusals.append(lambda: hg.open(tmp_path, name="host1", config=wrong))
    for attempt in refusals:
        with pytest.raises(hg.HeliographError):
            attempt()


def test_what_is_handed_out_refuses_in_the_same_words(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", 1)
        queue, producer = station.queue("alerts", "jobs", start="first"), station.producer("p")
        subscription, step = station.subscribe("alerts", handle), station.atomic()
        (job,) = queue.receive()
        refused: list[tuple[Callable[[], object], str]] = [
            (lambda: queue.ack(job), "use a list of Job"),  # type: ignore[arg-type]
            (lambda: queue.extend(5), "use a list of Job"),  # type: ignore[arg-type]
            (lambda: queue.give_back([5]), "use a list of Job"),  # type: ignore[list-item]
            (lambda: queue.receive("all"), "max_messages is 'all'; use 1 to"),  # type: ignore[arg-type]
            (lambda: producer.publish([], 1), "is not a channel name"),  # type: ignore[arg-type]
            (lambda: producer.publish_many("alerts", 5), "a batch is a list of payloads, not 5"),  # type: ignore[arg-type]
            (lambda: producer.last({}), "is not a channel name"),  # type: ignore[arg-type]
            (lambda: subscription.close(timeout_s="soon"), "timeout_s is 'soon'; use a number"),  # type: ignore[arg-type]
            (lambda: step.commit(5, "x"), "commit takes the message that was handled, not 5"),  # type: ignore[arg-type]
            (lambda: hg.Draft(headers=5), "headers must be a mapping"),  # type: ignore[arg-type]
            (lambda: hg.Draft(time=5), "time must be a datetime"),  # type: ignore[arg-type]
            (lambda: hg.Retry(max_retries="3"), "max_retries is '3'; use a whole number"),  # type: ignore[arg-type]
            (lambda: hg.Retry(base_s="1s"), "base_s is '1s'; use a number"),  # type: ignore[arg-type]
            (lambda: station.publish("alerts", 1, wait="long"), "wait is 'long'"),  # type: ignore[arg-type]
            (lambda: station.read("alerts", on_gap=5), "on_gap is 5, which cannot be called"),  # type: ignore[arg-type]
        ]
        for attempt, says in refused:
            with pytest.raises(hg.HeliographError, match=says):
                attempt()
        job.ack()


def test_jobs_of_the_other_kind_are_told_apart(tmp_path: Path, hub: Hub) -> None:
    async def main() -> None:
        async with hg.open_async(tmp_path / "own", name="host1") as station, await station.queue("a", "q") as queue:
            with pytest.raises(hg.InvalidArgument, match="use a list of AsyncJob"):
                await queue.ack([5])  # type: ignore[list-item]

    asyncio.run(main())
    with hub.open("hub"), hub.connect() as client:
        queue = client.queue("alerts", "jobs")
        with pytest.raises(hg.InvalidArgument, match="use a list of ClientJob"):
            queue.ack(5)  # type: ignore[arg-type]
        subscription = client.subscribe("alerts", handle)
        with pytest.raises(hg.InvalidArgument, match="timeout_s is 'soon'"):
            subscription.close(timeout_s="soon")  # type: ignore[arg-type]
        assert subscription.live
        subscription.close(timeout_s=1)


def test_an_argument_of_a_wrong_kind_is_caught_as_a_setting_and_as_a_type_error() -> None:
    for kind in (hg.ConfigError, TypeError):
        with pytest.raises(kind, match="timeout is 'soon'"):
            check_seconds("timeout", "soon")
    assert check_seconds("timeout", timedelta(minutes=1)) == 60
    assert check_many("times", iter([datetime.min]), datetime) == [datetime.min]
