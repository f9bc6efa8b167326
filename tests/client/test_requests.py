"""Requests that clients of a hub publish, and answer: with cuts, and with nothing that is not allowed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.federation.desk import Desk
from heliograph.limits import LINK_FRAME_BYTES_MIN
from tests.client.conftest import Hub
from tests.federation.chaos import Proxy
from tests.federation.stations import audited, lines, wait_for

Proxies = Callable[..., Proxy]
ASKER = {"name": "asker", "publish": ["prices"]}
CLERK = {"name": "clerk", "subscribe": ["prices"], "reply": ["prices"]}
WATCHER = {"name": "watcher", "subscribe": ["prices"]}


pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def shop(hub: Hub) -> Hub:
    hub.station("hub", peers=[ASKER, CLERK, WATCHER])
    return hub


def double(request: hg.Message) -> Any:
    return request.data * 2


def test_a_client_asks_and_a_station_answers(shop: Hub) -> None:
    with shop.open("hub") as station, shop.connect("asker", service="till") as client:
        station.reply("prices", double)
        reply = client.request("prices", 21, key="lamp", headers={"region": "eu"}, correlation_id="c1", subject="s")
        assert (reply.data, reply.correlationid) == (42, "c1")
        (asked,) = station.read("prices")
        assert (asked.source, asked.key, asked.headers["region"], asked.subject) == ("asker/till", "lamp", "eu", "s")
        assert station.stats().requests_waiting == 0
        assert client.channels() == [], "it may read nothing: not even its own channel of replies"


def test_a_client_answers_whoever_asks(shop: Hub) -> None:
    with shop.open("hub") as station, shop.connect("asker") as asker, shop.connect("clerk") as clerk:
        with pytest.raises(hg.ReplyTimeout, match=r"nobody replied to request .* within 0\.(2|1\d{1,2}) s"):
            asker.request("prices", 1, timeout=0.2)
        answering = clerk.reply("prices", lambda request: hg.Draft(data=request.data * 3, type="price.v1"))
        reply = asker.request("prices", 14, timeout=30)
        assert (reply.data, reply.type, reply.source) == (42, "price.v1", "clerk")
        assert station.request("prices", 5, timeout=30).data == 15
        station.publish("prices", "no question")
        wait_for(lambda: answering.delivered == 3)


@pytest.mark.parametrize("options", [{"group": True}, {"queue": True}, {}])
def test_a_worker_answers_and_its_failures_are_told(shop: Hub, options: dict[str, Any]) -> None:
    def clerk_s(request: hg.Message) -> Any:
        if request.data == "broken":
            raise KeyError("lamp")
        return request.data.upper()

    with shop.open("hub") as station, shop.connect("asker") as asker, shop.connect("clerk") as clerk:
        clerk.reply("prices", clerk_s, name="clerks", retry=hg.Retry(max_retries=1, base_s=0.01), **options)
        assert asker.request("prices", "lamp", timeout=30).data == "LAMP"
        with pytest.raises(hg.ReplyFailed, match="KeyError: 'lamp'") as failed:
            asker.request("prices", "broken", timeout=30)
        assert failed.value.error_type == "builtins.KeyError"
        assert asker.request("prices", "sofa", timeout=30).data == "SOFA"
        (letter,) = wait_for(lambda: list(station.read("prices.dead-letter")))
        assert letter.data["attempts"] == 2


def test_a_plain_replier_that_fails_says_so(shop: Hub) -> None:
    with shop.open("hub"), shop.connect("asker") as asker, shop.connect("clerk") as clerk:
        clerk.reply("prices", lambda request: 1 / request.data)
        assert asker.request("prices", 4, timeout=30).data == 0.25
        with pytest.raises(hg.ReplyFailed, match="ZeroDivisionError"):
            asker.request("prices", 0, timeout=30)


def test_asking_answering_and_reading_are_three_rights(shop: Hub) -> None:
    with shop.open("hub") as station, shop.connect("asker") as asker, shop.connect("watcher") as watcher:
        with pytest.raises(hg.NotAllowed, match="watcher is not allowed to publish 'prices'"):
            watcher.request("prices", 1)
        with pytest.raises(hg.NotAllowed, match="watcher is not allowed to reply to 'prices'"):
            watcher.reply("prices", double, name="w", group=True)
        seen: list[hg.Message] = []
        watcher.subscribe("prices", seen.append)
        forged = watcher.reply("prices", double)
        with pytest.raises(hg.ReplyTimeout):
            asker.request("prices", 21, timeout=1)
        wait_for(lambda: seen and forged.failed == 1)
        replyto = msgspec.json.decode(seen[0].raw)["replyto"]
        for attempt in (
            lambda: watcher.publish(replyto, 42),
            lambda: asker.publish(replyto, 42),
        ):
            with pytest.raises(hg.InvalidName):
                attempt()
        for client in (asker, watcher):
            with pytest.raises(hg.NotAllowed):
                list(client.read(replyto))
        assert [info.name for info in station.channels()] == ["prices"]


def test_a_worker_that_may_not_answer_any_more_ends_and_leaves_the_requests_to_others(shop: Hub) -> None:
    with shop.open("hub") as station, shop.connect("asker") as asker, shop.connect("clerk") as clerk:
        answering = clerk.reply("prices", double, name="clerks", group=True, retry=hg.Retry(max_retries=0))
        assert asker.request("prices", 21, timeout=30).data == 42
        shop.station("hub", peers=[ASKER, {**CLERK, "reply": []}, WATCHER])
        wait_for(lambda: audited(shop.path("hub"), "links-reloaded"))
        with pytest.raises(hg.ReplyTimeout):
            asker.request("prices", 1, timeout=2)
        wait_for(lambda: not answering.live)
        assert isinstance(answering.error, hg.NotAllowed)
        station.reply("prices", double, name="clerks", group=True)
        assert asker.request("prices", 4, timeout=30).data == 8
        assert not [info for info in station.channels() if info.name == "prices.dead-letter"], "nobody gave it up"


def test_an_id_of_another_gets_nothing(shop: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the id of a request that waits, or of one in the log, does not get its reply."""
    go_on = threading.Event()
    shop.station("hub", peers=[ASKER, {**ASKER, "name": "thief"}])
    with shop.open("hub") as station, shop.connect("asker") as asker, shop.connect("thief") as thief:
        station.reply("prices", lambda request: go_on.wait(60) and "secret", concurrency=2)
        replies: list[Any] = []
        asking = threading.Thread(target=lambda: replies.append(asker.request("prices", 1, timeout=60).data))
        asking.start()
        (known,) = wait_for(lambda: list(station.read("prices")))
        monkeypatch.setattr("heliograph.client.drafting.new_id", lambda: known.id)
        with pytest.raises(hg.AlreadyExists):
            thief.request("prices", 1, timeout=5)
        go_on.set()
        asking.join(30)
        assert replies == ["secret"]
        from heliograph.federation.errands import REQUEST, Replied, Request

        async def pretend() -> None:
            inner = thief._inner
            body, _ = inner._drafting.events("prices", [1], hg.Draft(), None)
            line = await inner._keeper.line(asyncio.get_running_loop().time() + 5)
            await line.ask(REQUEST, Request(channel="prices", timeout_s=5, again_s=1.0), Replied, body[0])

        with pytest.raises(hg.NotAllowed, match="was not asked by thief"):
            thief._loop.run(pretend())


def test_a_request_that_is_cut_is_published_once_and_its_reply_comes(shop: Hub, proxy: Proxies) -> None:
    line = proxy()
    with shop.open("hub") as station, shop.connect("asker", url=f"wss://localhost:{line.port}") as client:
        handled: list[Any] = []

        def slow(request: hg.Message) -> Any:
            handled.append(request.data)
            line.cut()
            time.sleep(0.3)
            return request.data * 2

        station.reply("prices", slow)
        assert client.request("prices", 21, timeout=30).data == 42
        assert handled == [21]
    assert len(lines(shop.path("hub"), "prices")) == 1


def test_a_reply_that_came_while_the_client_was_away_is_found(shop: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1]
    say = Desk._say

    def silent(self: Desk, reply: Callable[[], None]) -> None:
        if left[0] and self._line.session_peer == "asker":
            left[0] -= 1
            self._line.drop("cut by the test")
        else:
            say(self, reply)

    with shop.open("hub") as station, shop.connect("asker") as client:
        station.reply("prices", double)
        monkeypatch.setattr(Desk, "_say", silent)
        assert client.request("prices", 21, timeout=30).data == 42
        assert left == [0]
    assert len(lines(shop.path("hub"), "prices")) == 1


def test_a_reply_that_is_too_large_for_the_client_is_said_to_be(shop: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.client.keeper.FRAME_BYTES", LINK_FRAME_BYTES_MIN)
    with shop.open("hub") as station, shop.connect("asker") as client:
        station.reply("prices", lambda request: "x" * request.data)
        with pytest.raises(hg.MessageTooLarge, match="3000"):
            client.request("prices", 3_000_000, timeout=10)
        assert client.connected
        assert client.request("prices", 3, timeout=10).data == "xxx"


def test_a_hub_that_is_restarted_says_that_it_does_not_know(shop: Hub) -> None:
    client_s: list[BaseException] = []
    with shop.open("hub") as station:
        client = shop.connect("asker")

        def ask() -> None:
            try:
                client.request("prices", 1, timeout=60)
            except hg.HeliographError as error:
                client_s.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: "prices" in [info.name for info in station.channels()] and list(station.read("prices")))
    with shop.open("hub"):
        asking.join(30)
        assert [type(error) for error in client_s] == [hg.OutcomeUnknown]
        client.close()
    assert len(lines(shop.path("hub"), "prices")) == 1


def test_the_same_for_asyncio_and_many_at_once(shop: Hub) -> None:
    async def main() -> None:
        async with (
            hg.connect_async(shop.url, tls=shop.tls("asker")) as asker,
            hg.connect_async(shop.url, tls=shop.tls("clerk")) as clerk,
        ):

            async def answer(request: hg.Message) -> Any:
                await asyncio.sleep(0.01)
                return request.data + 1

            await clerk.reply("prices", answer, name="clerks", group=True, concurrency=16)
            replies = await asyncio.gather(*(asker.request("prices", n, timeout=60) for n in range(100)))
            assert [reply.data for reply in replies] == list(range(1, 101))
            with pytest.raises(hg.InvalidMessage, match="are set by the hub"):
                await asker.request("prices", 1, headers={"replyto": "_reply.x"})
            with pytest.raises(hg.ConfigError):
                await asker.request("prices", 1, timeout=0)
            with pytest.raises(hg.InvalidName):
                await asker.request("prices.dead-letter", 1)

    with shop.open("hub"):
        asyncio.run(main())


def test_subscriptions_that_wait_do_not_hold_up_publishing(shop: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASKED_MAX", "WAITING_MAX"):
        monkeypatch.setattr(f"heliograph.client.asker.{name}", 4)
    shop.station("hub", peers=[{**ASKER, "subscribe": ["prices"]}])
    with shop.open("hub"), shop.connect("asker") as client:
        client.publish("prices", "first")
        for _ in range(4):
            client.subscribe("prices", print)
        client.queue("prices", "jobs")
        publishing = threading.Thread(target=lambda: client.publish("prices", "second"))
        publishing.start()
        publishing.join(10)
        assert not publishing.is_alive()


def test_requests_that_wait_do_not_hold_up_publishing(shop: Hub) -> None:
    shop.station("hub", peers=[ASKER])
    with shop.open("hub"), shop.connect("asker") as client:
        asking = [client._loop.start(client._inner.request("prices", n, timeout=3)) for n in range(150)]
        client.publish("prices", "at once")
        assert not any(one.done() for one in asking), "not only when the requests are over"
        for one in asking:
            with pytest.raises(hg.ReplyTimeout):
                one.result(30)
