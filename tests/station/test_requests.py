"""Requests and replies: across threads and processes, with errors, in time and too late, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.log.channel import ChannelSettings
from heliograph.message import Draft
from heliograph.names import REPLY
from heliograph.station import requests
from heliograph.station.mailbox import sweep
from tests.opening import Opener
from tests.proof.tools import Child, eventually

QUICK = hg.Retry(max_retries=1, base_s=0.001, max_s=0.002)
PATIENT_S = 60.0
SOON_S = 0.05


def reply_channels(station: hg.Station) -> list[str]:
    return [info.name for info in station.channels(replies=True) if info.name.startswith(REPLY)]


def test_a_request_gets_what_the_handler_returns(opened: Opener) -> None:
    station = opened()
    with station.reply("sums", lambda request: sum(request.data)):
        answer = station.request("sums", [1, 2, 3], timeout=PATIENT_S)
        assert answer.data == 6
        assert station.request("sums", [], timeout=timedelta(seconds=PATIENT_S)).data == 0


def test_a_request_is_an_ordinary_message_and_its_reply_has_its_correlation(opened: Opener) -> None:
    station = opened()
    with station.reply("orders", lambda request: request.data), hg.correlation("order-17"):
        answer = station.request("orders", 1, timeout=PATIENT_S, type="com.example.order.v1", key="k", headers={"a": 1})
    (request,) = station.read("orders")
    assert (request.type, request.key, request.headers["a"]) == ("com.example.order.v1", "k", 1)
    assert answer.headers == {"replyfor": request.id}
    assert request.headers["replyto"] == answer.channel
    assert answer.correlationid == request.correlationid == "order-17"


def test_a_draft_says_more_than_data(opened: Opener) -> None:
    station = opened()
    draft = Draft(data=1, type="com.example.answer.v1", key="k", headers={"cached": True}, subject="s")
    with station.reply("orders", lambda _: draft):
        answer = station.request("orders", timeout=PATIENT_S)
    assert (answer.type, answer.key, answer.subject) == ("com.example.answer.v1", "k", "s")
    assert answer.headers["cached"] is True


def test_nobody_answers_in_time_and_the_request_is_in_the_log(opened: Opener) -> None:
    station = opened()
    with pytest.raises(hg.ReplyTimeout, match=r"nobody replied to request .* on 'orders' within 0.05 s") as caught:
        station.request("orders", "anybody?", timeout=SOON_S)
    assert isinstance(caught.value, TimeoutError)
    assert [message.data for message in station.read("orders")] == ["anybody?"]
    assert station.stats().requests_waiting == 0


def test_a_late_reply_is_ignored_and_counted(opened: Opener) -> None:
    station = opened()
    with pytest.raises(hg.ReplyTimeout):
        station.request("orders", "late", timeout=SOON_S)
    with station.reply("orders", lambda request: request.data, start="first"):
        eventually(lambda: station.stats().late_replies == 1)
        assert station.request("orders", "in time", timeout=PATIENT_S).data == "in time"
    assert station.stats().late_replies == 1


def test_two_repliers_without_a_name_both_answer_and_the_first_counts(opened: Opener) -> None:
    station = opened()
    with station.reply("orders", lambda _: 1), station.reply("orders", lambda _: 1):
        assert station.request("orders", timeout=PATIENT_S).data == 1
        eventually(lambda: station.stats().late_replies == 1)


def test_an_error_comes_back_after_the_retries_and_the_request_is_in_the_dead_letters(opened: Opener) -> None:
    station = opened()
    calls: list[int] = []

    def handler(request: hg.Message) -> None:
        calls.append(request.data)
        raise ValueError("no such thing")

    with station.reply("orders", handler, retry=QUICK):
        with pytest.raises(hg.ReplyFailed, match="the handler gave up: ValueError: no such thing") as caught:
            station.request("orders", 7, timeout=PATIENT_S)
        eventually(lambda: list(_letters(station)))
    assert caught.value.error_type == "builtins.ValueError"
    assert isinstance(caught.value.reply, hg.Message)
    assert caught.value.reply.data["attempts"] == 2
    assert calls == [7, 7]
    assert len(list(_letters(station))) == 1


def _letters(station: hg.Station) -> Any:
    try:
        return station.read("orders.dead-letter")
    except hg.NotFound:
        return iter(())


def test_a_retry_that_succeeds_answers(opened: Opener) -> None:
    station = opened()
    calls: list[int] = []

    def handler(request: hg.Message) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError
        return 42

    with station.reply("orders", handler, retry=QUICK):
        assert station.request("orders", timeout=PATIENT_S).data == 42


def test_a_request_that_does_not_fit_its_type_gets_an_error(opened: Opener) -> None:
    station = opened()
    other = opened()
    other.register("com.example.n.v1", int)
    with other.reply("orders", lambda request: request.data):
        with pytest.raises(hg.ReplyFailed):
            station.request("orders", "text", type="com.example.n.v1", timeout=PATIENT_S)
        assert station.request("orders", 5, type="com.example.n.v1", timeout=PATIENT_S).data == 5


def test_an_answer_that_cannot_be_published_is_an_error_too(opened: Opener) -> None:
    station = opened()
    with (
        station.reply("orders", lambda _: object(), retry=QUICK),
        pytest.raises(hg.ReplyFailed, match="gave up"),
    ):
        station.request("orders", timeout=PATIENT_S)


def test_messages_that_ask_for_nothing_are_handled_and_not_answered(opened: Opener) -> None:
    station = opened()
    heard: list[Any] = []
    with station.reply("orders", lambda request: heard.append(request.data)):
        station.publish("orders", "just saying")
        eventually(lambda: heard == ["just saying"])
    assert not reply_channels(station)


@pytest.mark.parametrize("replyto", ["orders", "../x", "_reply", 7, True])
def test_a_reply_goes_to_channels_of_replies_only(opened: Opener, replyto: Any) -> None:
    station = opened()
    with station.reply("orders", lambda request: 1, name="worker") as replier:
        station.publish("orders", headers={"replyto": replyto})
        eventually(lambda: replier.stats().delivered == 1)
    assert station.channel("orders").messages == 1
    assert [info.name for info in station.channels(replies=True)] == ["orders"]


@pytest.mark.parametrize("replyto", ["_reply.gone", "_reply.x.dead-letter", "_reply.../..", "_reply."])
def test_an_address_that_leads_nowhere_makes_no_channel(opened: Opener, replyto: str) -> None:
    station = opened()
    with station.reply("orders", lambda request: 1, name="worker", retry=QUICK) as replier:
        station.publish("orders", headers={"replyto": replyto})
        eventually(lambda: replier.position == 1)
    assert not reply_channels(station)


def test_channels_of_replies_are_made_by_requests_only(opened: Opener) -> None:
    station = opened()
    with pytest.raises(hg.InvalidName, match="hold replies"):
        station.create_channel("_reply.mine")
    with pytest.raises(hg.InvalidName, match="hold replies"):
        station.reply("_reply.mine", print)
    for act in (lambda: station.publish("_reply.mine", 1), lambda: station.subscribe("_reply.mine", print)):
        with pytest.raises(hg.NotFound):
            act()
    with pytest.raises(hg.InvalidName, match="reserved"):
        station.reply("orders.dead-letter", print)


def test_nothing_is_left_when_the_station_closes(opened: Opener, root: Path) -> None:
    station, other = opened(), opened()
    with other.reply("orders", lambda _: 1):
        assert station.request("orders", timeout=PATIENT_S).data == 1
        assert len(reply_channels(other)) == 1
        assert [info.name for info in other.channels()] == ["orders"]
        assert [channel.channel for channel in other.stats().channels] == ["orders"]
        station.close()
        assert not reply_channels(other)
    assert list((root / "replies").iterdir()) == []


def test_a_channel_of_replies_that_somebody_deleted_is_made_anew(opened: Opener) -> None:
    station, other = opened(), opened()
    with other.reply("orders", lambda _: 1):
        assert station.request("orders", timeout=PATIENT_S).data == 1
        (channel,) = reply_channels(other)
        other.delete_channel(channel)
        eventually(lambda: not station.requests.ready)
        assert station.request("orders", timeout=PATIENT_S).data == 1
        assert len(reply_channels(other)) == 1


def test_who_waits_is_told_when_the_station_closes(opened: Opener) -> None:
    station = opened()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(station.request, "orders", timeout=PATIENT_S)
        eventually(lambda: station.stats().requests_waiting == 1)
        station.close()
        with pytest.raises(hg.StationClosed):
            asked.result()
    with pytest.raises(hg.StationClosed):
        station.request("orders")


def test_a_wildcard_does_not_hear_replies_and_may_answer(opened: Opener) -> None:
    station = opened()
    heard: list[str] = []
    with (
        station.subscribe(">", lambda message: heard.append(message.channel)),
        station.reply("prices.*", lambda request: request.channel),
    ):
        assert station.request("prices.eu", timeout=PATIENT_S).data == "prices.eu"
        assert station.request("prices.us", timeout=PATIENT_S).data == "prices.us"
        eventually(lambda: len(heard) == 2)
    assert sorted(heard) == ["prices.eu", "prices.us"]


def test_a_handler_may_ask_somebody_else(opened: Opener) -> None:
    station = opened()
    with (
        station.reply("inner", lambda request: request.data + 1),
        station.reply("outer", lambda request: station.request("inner", request.data, timeout=PATIENT_S).data * 2),
    ):
        assert station.request("outer", 20, timeout=PATIENT_S).data == 42


def test_threads_get_each_their_own_answer(opened: Opener) -> None:
    station = opened(durability="os")
    with station.reply("double", lambda request: request.data * 2, concurrency=4), ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda n: station.request("double", n, timeout=PATIENT_S).data, range(300))
        assert list(answers) == [2 * n for n in range(300)]
    assert len(reply_channels(station)) == 1
    assert station.stats().late_replies == 0


def test_thousands_of_requests_wait_at_once_on_one_channel(root: Path) -> None:
    count = 3_000

    async def main() -> None:
        go = asyncio.Event()

        async def handler(request: hg.Message) -> int:
            await go.wait()
            return int(request.data) + 1

        async with hg.open_async(root, name="host1", durability="os") as station:
            await station.reply("numbers", handler)
            asked = [asyncio.create_task(station.request("numbers", n, timeout=PATIENT_S)) for n in range(count)]
            while station.sync_station.requests.waiting < count:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            go.set()
            assert [message.data for message in await asyncio.gather(*asked)] == [n + 1 for n in range(count)]
            assert len(reply_channels(station.sync_station)) == 1

    asyncio.run(main())


def test_too_many_waiting_requests_are_refused(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUESTS_MAX", 1)
    station = opened()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(station.request, "orders", timeout=PATIENT_S)
        eventually(lambda: station.stats().requests_waiting == 1)
        with pytest.raises(hg.Busy, match="nothing was asked"):
            station.request("orders")
        with station.reply("orders", lambda _: 1, start="first"):
            assert asked.result().data == 1
    assert station.channel("orders").messages == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e12, "5", None, True, timedelta(0)], ids=repr)
def test_a_timeout_that_cannot_be_waited_for_is_refused(opened: Opener, timeout: Any) -> None:
    station = opened()
    with pytest.raises(hg.ConfigError, match="timeout is"):
        station.request("orders", timeout=timeout)
    assert station.channels(replies=True) == []


def test_what_cannot_be_asked_or_answered_is_refused_at_once(opened: Opener) -> None:
    station = opened()
    with pytest.raises(hg.InvalidName):
        station.request("../x")
    with pytest.raises(hg.InvalidName):
        station.request("orders.dead-letter")
    with pytest.raises(hg.InvalidMessage, match="set by the station"):
        station.request("orders", headers={"replyto": "x"})
    with pytest.raises(hg.InvalidMessage):
        station.request("orders", object())
    with pytest.raises(hg.ConfigError, match="one by one"):
        station.reply("orders", print, batch=True)
    with pytest.raises(hg.ConfigError, match="cannot be called"):
        station.reply("orders", 7)  # type: ignore[arg-type]
    assert station.stats().requests_waiting == 0


def test_the_asynchronous_station_asks_and_answers(root: Path) -> None:
    async def main() -> None:
        async def double(request: hg.Message) -> Any:
            if request.data is None:
                raise ValueError("nothing")
            return request.data * 2

        async with hg.open_async(root, name="host1") as station:
            async with await station.reply("double", double, retry=QUICK):
                assert (await station.request("double", 21, timeout=PATIENT_S)).data == 42
                with pytest.raises(hg.ReplyFailed, match="ValueError: nothing"):
                    await station.request("double", None, timeout=PATIENT_S)
            with pytest.raises(hg.ReplyTimeout):
                await station.request("double", 1, timeout=SOON_S)
            task = asyncio.create_task(station.request("double", 1, timeout=PATIENT_S))
            while not station.sync_station.requests.waiting:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert station.sync_station.requests.waiting == 0

    asyncio.run(main())


def test_a_coroutine_answers_a_synchronous_station(opened: Opener) -> None:
    station = opened()

    async def handler(request: hg.Message) -> int:
        await asyncio.sleep(0)
        return 1

    with station.reply("orders", handler):
        assert station.request("orders", timeout=PATIENT_S).data == 1


# -- processes ----------------------------------------------------------------------------------------------

REPLY_CODE = """
    import sys, time, heliograph as hg
    station = hg.open(sys.argv[1], name="host1")
    def handler(request):
        sys.stdout.write(f"got {request.data}\\n")
        sys.stdout.flush()
        time.sleep(float(sys.argv[2]))
        return [sys.argv[3], request.data]
    station.reply("orders", handler, name="clerk", start="first")
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    station.close()
"""

REQUEST_CODE = """
    import sys, heliograph as hg
    station = hg.open(sys.argv[1], name="host1")
    print("ready", flush=True)
    print(station.request("orders", "x", timeout=60).data, flush=True)
    sys.stdin.readline()
    station.close()
"""


def test_another_process_answers(opened: Opener, root: Path) -> None:
    station = opened()
    child = Child(REPLY_CODE, root, 0, "a")
    assert child.line() == "ready"
    assert station.request("orders", 1, timeout=PATIENT_S).data == ["a", 1]
    child.tell()
    child.finish()


def test_when_the_replier_is_killed_in_the_middle_the_next_one_answers(opened: Opener, root: Path) -> None:
    station = opened()
    first = Child(REPLY_CODE, root, 600, "first")
    assert first.line() == "ready"
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(station.request, "orders", 1, timeout=PATIENT_S)
        assert first.line() == "got 1"
        first.kill()
        second = Child(REPLY_CODE, root, 0, "second")
        assert asked.result().data == ["second", 1]
    second.tell()
    second.finish()


def test_what_a_killed_process_asked_with_is_swept_away_and_nobody_elses(opened: Opener, root: Path) -> None:
    station = opened()
    child = Child(REQUEST_CODE, root)
    assert child.line() == "ready"
    with station.reply("orders", lambda request: request.data, start="first"):
        assert child.line() == "x"
        station.request("orders", 1, timeout=PATIENT_S)
        assert len(reply_channels(station)) == 2
        assert sweep(station.engine) == []
        child.kill()
        station.trim()
        assert len(reply_channels(station)) == 1
        assert station.request("orders", 2, timeout=PATIENT_S).data == 2


def test_a_channel_of_replies_without_a_lock_is_nobodys(opened: Opener) -> None:
    station = opened()
    station.engine.create("_reply.restored", ChannelSettings())
    assert sweep(station.engine) == ["_reply.restored"]
    assert not reply_channels(station)


def test_sweeping_all_the_time_disturbs_nobody(opened: Opener) -> None:
    station = opened(durability="os")
    stop = threading.Event()

    def sweeping() -> None:
        while not stop.is_set():
            sweep(station.engine)

    with ThreadPoolExecutor() as pool, station.reply("orders", lambda request: request.data):
        pool.submit(sweeping)
        try:
            for n in range(15):
                with hg.open(station.path, durability="os") as other:
                    assert other.request("orders", n, timeout=PATIENT_S).data == n
        finally:
            stop.set()


def test_a_channel_that_another_process_deleted_does_not_keep_a_station_from_closing(opened: Opener) -> None:
    station, other = opened(durability="os"), opened(durability="os")
    station.publish("orders", 1)
    other.delete_channel("orders")
    station.sync()
    station.close()


def test_who_cannot_publish_cannot_answer(opened: Opener) -> None:
    with opened() as station:
        station.publish("prices", 1)
    with opened(read_only=True) as station, pytest.raises(hg.ReadOnly):
        station.reply("prices", lambda request: request.data)
