"""A sync with a peer that says what it should not; and which channels a sync is about."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heliograph as hg
from heliograph.config import Config, Link
from heliograph.config import Hub as HubSection
from heliograph.config import Peer as PeerRules
from heliograph.errors import NotFound, ProtocolError
from heliograph.federation import asking
from heliograph.federation.comparing import COMPARE, FETCH, STORE, Compare, Fetched, Holding, Stored
from heliograph.federation.exchange import Exchange
from heliograph.federation.rules import Rules
from heliograph.federation.syncing import Synced, Syncing, Way
from heliograph.federation.targets import Target, meant, of_link, rules_for
from tests.arrivals import HOST2
from tests.arrivals import lines as made

SEEN = {HOST2: {"0": [[0, 3]]}}


@pytest.fixture
def station(tmp_path: Path) -> Iterator[hg.Station]:
    with hg.open(tmp_path / "south", name="south") as opened:
        yield opened


def play(
    station: hg.Station, fetched: Fetched, found: bytes = b"", *, seen: Any = None, asked: int = 20, **options: Any
) -> Synced:
    """A sync with a peer that always answers the same."""
    left = [asked]

    async def ask(name: str, head: msgspec.Struct, kind: type, lines: bytes) -> tuple[Any, bytes]:
        left[0] -= 1
        assert left[0] > 0, "it is asked for ever"
        if name == COMPARE:
            return seen(head) if callable(seen) else Holding(seen=SEEN), b""
        return (fetched, found) if name == FETCH else (Stored(), b"")

    async def run(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    way = Way("north", ask, run, lambda: 1 << 20)
    rules = Rules("north", ["alerts"], ["alerts"], [">"])
    return asyncio.run(Syncing(station, way, "alerts", rules, **options).run())


def test_a_peer_that_looks_at_the_same_place_for_ever(station: hg.Station) -> None:
    with pytest.raises(ProtocolError, match="again and again"):
        play(station, Fetched(incarnation="k", next=[(0, 5)]))


@pytest.mark.parametrize("found", [made(0, 1, "host3.bbbbbb"), made(3, 4), [b"{}"], [b""], [*made(0, 2), b"{}"]])
def test_a_peer_that_sends_what_nobody_asked_for(station: hg.Station, found: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="not asked for"):
        play(station, Fetched(incarnation="k"), b"".join([one + b"\n" for one in found]))
    assert station.channels() == [], "nothing of it is stored"


def test_a_peer_that_damages_a_line(station: hg.Station) -> None:
    lines = b"\n".join([*made(0, 3), b""]).replace(b'"data":1', b'"data":2', 1)
    done = play(station, Fetched(incarnation="k"), lines)
    assert done.fetched == 2 and [(one.why, one.messages) for one in done.left] == [("refused", 1)]
    assert [message.raw for message in station.read("alerts")] == made(1, 3)


def test_a_peer_that_sends_lines_when_it_is_only_to_look(station: hg.Station) -> None:
    lines = b"\n".join([*made(0, 3), b""])
    assert play(station, Fetched(incarnation="k"), lines, dry_run=True).fetched == 0
    assert station.channels() == []


def test_a_peer_that_has_nothing_of_what_it_says_it_has(station: hg.Station) -> None:
    done = play(station, Fetched(incarnation="k"))
    assert [(one.why, one.side, one.messages) for one in done.left] == [("gone", "here", 3)]


def test_what_came_another_way_meanwhile_is_not_left(station: hg.Station) -> None:
    compared: list[Compare] = []

    def seen(head: Compare) -> Holding:
        compared.append(head)
        if len(compared) == 2:
            station.engine.relayed.arrive("alerts", made(0, 3))
        return Holding(seen=SEEN)

    assert play(station, Fetched(incarnation="k"), seen=seen).equal


def test_a_peer_whose_set_goes_round_in_circles(station: hg.Station) -> None:
    def seen(head: Compare) -> Holding:
        return Holding(seen=SEEN, after=(HOST2, 0, 1))

    with pytest.raises(ProtocolError, match="not in order"):
        play(station, Fetched(incarnation="k"), seen=seen)


@pytest.mark.parametrize("said", [Holding(seen={"a.k": {"0": [[3, 1]]}}), Holding(ends={"a.k": {"x": (1, "id")}})])
def test_a_peer_that_says_no_set(station: hg.Station, said: Holding) -> None:
    with pytest.raises(ProtocolError):
        play(station, Fetched(incarnation="k"), seen=lambda _: said)


def test_a_peer_that_does_not_know_how_to_compare(station: hg.Station) -> None:
    def seen(head: Compare) -> Holding:
        raise NotFound("there is no request 'compare' here")

    with pytest.raises(ProtocolError, match="upgrade its Heliograph"):
        play(station, Fetched(incarnation="k"), seen=seen)


# -- any three stations -------------------------------------------------------------------------------------


def sync(here: hg.Station, there: hg.Station) -> Synced:
    """A sync whose requests are answered at once."""
    exchange, rules = Exchange(there), Rules(here.name, ["alerts"], ["alerts"], [">"])

    async def ask(name: str, head: msgspec.Struct, kind: type, lines: bytes) -> tuple[Any, bytes]:
        body = asking.encode(head, lines)
        if name == STORE:
            return exchange.store(body, rules)[0], b""
        answer = exchange.compare(body, rules) if name == COMPARE else exchange.fetch(body, rules, 1 << 20)
        return asking.decode(answer, kind)

    async def run(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    way = Way(there.name, ask, run, lambda: 1 << 20)
    return asyncio.run(Syncing(here, way, "alerts", Rules(there.name, ["alerts"], ["alerts"], [">"])).run())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(0, 20), st.integers(1, 6)),
        st.tuples(st.just("sync"), st.integers(0, 2), st.integers(1, 2)),
        st.tuples(st.just("reopen"), st.integers(0, 2)),
    ),
    max_size=15,
)


@settings(max_examples=12, deadline=None)
@given(steps=STEPS, partitions=st.tuples(*[st.integers(1, 2)] * 3))
def test_any_three_stations_are_equal_after_they_met(steps: list[tuple[Any, ...]], partitions: tuple[int, ...]) -> None:
    host2 = made(0, 30)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:

        def opened(at: int) -> hg.Station:
            config = {"storage": {"partitions": partitions[at], "durability": "os"}}
            return stack.enter_context(hg.open(Path(directory) / "abc"[at], name="abc"[at], config=config))

        stations = [opened(at) for at in range(3)]
        for number, (what, at, *rest) in enumerate(steps):
            if what == "publish":
                stations[at].publish_many("alerts", [f"{number}-{one}" for one in range(rest[0])])
            elif what == "arrive":
                stations[at].engine.relayed.arrive("alerts", host2[rest[0] : rest[0] + rest[1]])
            elif what == "sync":
                assert sync(stations[at], stations[(at + rest[0]) % 3]).equal
            else:
                stations[at].close()
                stations[at] = opened(at)
        for here, there in ((0, 1), (1, 2), (0, 1)):
            assert sync(stations[here], stations[there]).equal
        if any(what in ("publish", "arrive") for what, *_ in steps):
            assert len({repr(one.engine.relayed.seen("alerts")) for one in stations}) == 1
            held = [sorted(message.raw for message in one.read("alerts")) for one in stations]
            assert held[0] == held[1] == held[2] and len(set(held[0])) == len(held[0])
            assert len(held[0]) == _published(steps)


def _published(steps: list[tuple[Any, ...]]) -> int:
    own = sum(step[2] for step in steps if step[0] == "publish")
    return own + len({seq for step in steps if step[0] == "arrive" for seq in range(step[2], step[2] + step[3])})


# -- what is synced -----------------------------------------------------------------------------------------


def test_a_link_says_which_way_each_channel_goes() -> None:
    link = Link(hub="north:7740", publish=("alerts", "logs.>"), subscribe=("alerts", "commands"), sync=("chat.*",))
    known = ["alerts", "logs.a", "chat.x", "chat.x.dead-letter", "other"]
    both = ("here", "there")
    assert meant(of_link(link), known) == {
        "alerts": both, "chat.x": both, "commands": ("here",), "logs.a": ("there",),
    }  # fmt: skip
    assert meant([Target((">",), ("here",))], known) == dict.fromkeys(
        ["alerts", "chat.x", "logs.a", "other"], ("here",)
    )
    assert meant([Target((">",), ())], known) == {}


def test_what_a_hub_may_do_here() -> None:
    peer = PeerRules(name="north", publish=("alerts",), subscribe=("logs",), relay=("host2",))
    config = Config(hub=HubSection(listen=":1", peers=(peer,)), links=(Link(hub="north:7740", sync=("chat",)),))

    def may(config: Config, address: str, name: str, channel: str) -> tuple[bool, bool, bool]:
        rules = rules_for(config, address, name, channel)
        return not rules.publishing(channel), not rules.subscribing(channel), not rules.sending("host3.k")

    assert may(config, "north:7740", "north", "alerts") == (True, False, False)
    assert may(config, "north:7740", "north", "logs") == (False, True, False)
    assert may(config, "north:7740", "north", "chat") == (True, True, True), "the link asks for it"
    assert may(config, "other:7740", "north", "chat") == (False, False, False)
    assert may(config, "west:7740", "west", "chat") == (True, True, True), "whoever owns the directory asks for it"
