"""Stations of many shapes, through cuts, half-open lines, kills and old backups: nothing lost, nothing doubled."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heliograph.federation.frames import Wanted
from heliograph.federation.rules import Rules
from tests.federation.model import BAD, Line, Shell, Station, identity

CHANNELS = ("alerts", "sensors.kitchen")
WINDOW = 64 << 10


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """Stations, who relays to whom, and chance."""

    def __init__(self, names: str, links: list[tuple[str, str]], seed: int, *, both_ways: bool) -> None:
        self.relay: tuple[str, ...] = (">",)  # what clients may relay to their hubs
        self.losing = True
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.both_ways = both_ways
        self.stations = {name: Station(name, CHANNELS, self.chance.choice((1, 2, 3)), self.clock) for name in names}
        self.pairs = links
        self.lines: dict[tuple[str, str], Line] = {}

    def connect(self, pair: tuple[str, str]) -> None:
        client, hub = (self.stations[name] for name in pair)
        everything = ("alerts", "sensors.>")
        wants = tuple(Wanted(text) for text in everything) if self.both_ways else ()
        down = everything if self.both_ways else ()
        self.lines[pair] = Line(
            client.connect(hub.name, Rules(hub.name, down, (), [">"]), everything, wants, WINDOW),
            hub.connect(
                client.name, Rules(client.name, publish=everything, subscribe=down, relay=self.relay), (), (), WINDOW
            ),
        )

    def shells(self) -> Iterator[Shell]:
        for station in self.stations.values():
            yield from list(station.links.values())

    def live(self) -> list[Shell]:
        return [shell for shell in self.shells() if self._live(shell)]

    def alive(self, pair: tuple[str, str]) -> bool:
        """Whether the client thinks that its link is there."""
        line = self.lines.get(pair)
        return line is not None and self._live(line.ends[0])

    def _live(self, shell: Shell) -> bool:
        return shell.closed is None and shell.station.links.get(shell.peer) is shell

    def step(self, *, harm: bool) -> None:
        chance = self.chance
        roll = chance.random()
        if roll < 0.12:
            station = chance.choice(list(self.stations.values()))
            for _ in range(chance.randrange(1, 12)):
                station.publish(chance.choice(CHANNELS), chance.choice(("-", "-", "a", "b", BAD)))
        elif roll < 0.45:
            self.deliver(chance.randrange(1, 6))
        elif roll < 0.70:
            for shell in self.live():
                shell.pump(chance.randrange(1, 4))
        elif roll < 0.93:
            for shell in self.live():
                shell.store(chance.choice(CHANNELS))
        elif roll < 0.96:
            self.reconnect()
        elif roll < 0.97:
            self.pass_time(chance.choice((1.0, 5.0, 12.0)))
        elif harm:
            self.harm()

    def deliver(self, most: int) -> bool:
        done = False
        for line in list(self.lines.values()):
            for side in (0, 1):
                for _ in range(most):
                    done |= line.deliver(side)
        return done

    def reconnect(self) -> None:
        for pair in self.pairs:
            if not self.alive(pair):
                self.connect(pair)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        for shell in self.shells():
            if shell.closed is None:
                shell.tick()

    def harm(self) -> None:
        chance = self.chance
        roll = chance.random()
        pair = chance.choice(self.pairs)
        if roll < 0.45 and pair in self.lines:
            line = self.lines[pair]
            line.cut = True
            if chance.random() < 0.5:  # else neither side knows yet
                line.ends[0].station.links.pop(line.ends[0].peer, None)
        elif roll < 0.6:
            self.kill(chance.choice(list(self.stations.values())))
        elif roll < 0.65:
            self.pass_time(31.0)
        elif roll < 0.95 and self.losing:
            self.lose(chance.choice(list(self.stations.values())), chance.choice(CHANNELS))
        else:
            station = chance.choice(list(self.stations.values()))
            station.positions = {  # saved now and then only
                key: chance.choice((position, position // 2, 0)) for key, position in station.positions.items()
            }
            self.kill(station)

    def lose(self, station: Station, channel: str) -> None:
        """Retention, compaction, or a backup instead of the disk."""
        log = station.logs[channel]
        partition = self.chance.randrange(len(log.parts))
        lines = log.parts[partition]
        match self.chance.randrange(3):
            case 0:
                station.trim(channel, partition, self.chance.randrange(len(lines) + 1) // 2)
            case 1 if lines:
                station.blank(channel, partition, self.chance.randrange(len(lines)))
            case 2:
                station.restore(channel, self.chance.random())
                self.kill(station)

    def kill(self, station: Station) -> None:
        station.restart()
        for pair, line in self.lines.items():
            if station.name in pair:
                line.cut = True

    def settle(self) -> None:
        """No more harm: until nothing moves any more."""
        quiet = 0
        for _ in range(20_000):
            moved = self.deliver(1_000)
            for shell in self.live():
                moved |= shell.pump(1_000)
                for channel in CHANNELS:
                    moved |= shell.store(channel)
            if not moved:
                quiet += 1
                self.pass_time(7.0)
                self.reconnect()
                if quiet > 5:  # longer than it takes to notice a line that is half open
                    return
        raise AssertionError("it never comes to rest")

    def check_protocol(self) -> None:
        for shell in self.shells():
            assert shell.closed is None or shell.closed.code in ("lost", "bye"), shell.closed
            assert not shell.alarms

    def check(self) -> None:
        self.check_protocol()
        for client, hub in self.pairs:
            pairs = [(client, hub), (hub, client)] if self.both_ways else [(client, hub)]
            for sender, receiver in pairs:
                for channel in CHANNELS:
                    here, there = (self.stations[name].logs[channel] for name in (sender, receiver))
                    missing = [line for line in here.lines() if not bad(line) and not there.seen.has(*identity(line))]
                    assert not missing, f"{receiver} lacks {len(missing)} of {sender}: {missing[:3]}"
                    refused = {line for line in here.lines() if bad(line)}
                    letters = {line for peer, line in self.stations[sender].letters if peer == receiver}
                    assert refused <= letters, f"{receiver} refused something of {sender} that is no dead letter"
        for station in self.stations.values():
            for log in station.logs.values():
                lines = log.lines()
                assert len(lines) == len(set(map(identity, lines))), f"{station.name} has something twice"
            assert len(station.letters) == len(set(station.letters)), f"{station.name} has a dead letter twice"

    def check_steady(self) -> None:
        """Whoever comes back and lacks nothing is sent nothing."""
        for station in self.stations.values():
            self.kill(station)
        self.lines.clear()
        self.settle()
        busy = [pair for pair, line in self.lines.items() if any(account.batches for account in line.accounts)]
        assert not busy, f"{busy} lack nothing, and are sent something"


def bad(line: bytes) -> bool:
    return line.split(b" ")[3].startswith(BAD.encode())


def in_order(world: World) -> bool:
    """By origin, its partition and key: a station between that has more partitions keeps keys in order, not all.

    What a station on the way had removed, and got once more when it was restored from a backup, comes late.
    """
    late = {who for station in world.stations.values() for who in station.brought_back}
    for station in world.stations.values():
        for part in [part for log in station.logs.values() for part in log.parts]:
            last: dict[tuple[str, int, bytes], int] = {}
            for line in filter(None, part):
                origin, at, sequence = identity(line)
                key = line.split(b" ")[3].partition(b":")[0]
                if last.get((origin, at, key), -1) >= sequence and identity(line) not in late:
                    return False
                last[origin, at, key] = max(sequence, last.get((origin, at, key), -1))
    return True


SHAPES = {
    "two": ("ab", [("a", "b")]),
    "star": ("abcd", [("a", "d"), ("b", "d"), ("c", "d")]),
    "chain": ("abcd", [("a", "b"), ("b", "c"), ("c", "d")]),
    "diamond": ("abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]),
    "ring": ("abc", [("a", "b"), ("b", "c"), ("c", "a")]),
}
ONE_PATH = {"two", "star", "chain"}  # one way: else what a station lost comes back to it from both sides


def run(shape: str, seed: int, steps: int, *, both_ways: bool) -> World:
    names, pairs = SHAPES[shape]
    world = World(names, pairs, seed, both_ways=both_ways)
    world.reconnect()
    for _ in range(steps):
        world.step(harm=True)
        world.check_protocol()
    world.settle()
    world.check()
    world.check_steady()
    world.check()
    return world


@pytest.mark.parametrize("both_ways", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_lost_and_nothing_doubled(shape: str, both_ways: bool) -> None:
    world = run(shape, 4711, 1_500, both_ways=both_ways)
    assert sum(len(log.lines()) for station in world.stations.values() for log in station.logs.values()) > 500
    if shape in ONE_PATH and not both_ways:
        assert in_order(world)


@pytest.mark.prove
@pytest.mark.parametrize("both_ways", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_lost_and_nothing_doubled_in_a_long_life(shape: str, both_ways: bool) -> None:
    for seed in range(5):
        world = run(shape, seed, 5_000, both_ways=both_ways)
        if shape in ONE_PATH and not both_ways:
            assert in_order(world)


def test_clients_that_may_not_relay_share_a_channel_through_their_hub() -> None:
    """What came from the hub is not sent back to it: nothing is parked, and everybody has everything."""
    names, pairs = SHAPES["star"]
    world = World(names, pairs, 5, both_ways=True)
    world.relay, world.losing = (), False
    world.reconnect()
    for _ in range(1_000):
        world.step(harm=True)
        world.check_protocol()
    world.settle()
    world.check()
    world.check_steady()
    assert in_order(world)


def test_a_peer_that_relays_what_it_may_not_is_parked_with_an_alarm_and_nothing_of_it_is_stored() -> None:
    names, pairs = SHAPES["chain"]
    world = World(names, pairs, 6, both_ways=False)
    world.relay = ("b", "c")
    world.reconnect()
    world.settle()
    liar = world.stations["b"].links["c"]
    liar.session.relays = lambda _: True  # type: ignore[method-assign]
    world.stations["b"].publish("sensors.kitchen")
    world.stations["b"].logs["alerts"].arrive(b"a.k1 0 77 -:1")  # of a station that c does not take from b
    liar.news("alerts")
    world.settle()
    assert liar.alarms == ["b is not allowed to relay messages of 'a'"]
    assert world.stations["c"].links["b"].alarms == ["b is not allowed to relay messages of 'a'"]
    assert not world.stations["c"].logs["alerts"].lines()
    assert len(world.stations["c"].logs["sensors.kitchen"].lines()) == 1, "the other channel goes on"
    assert not any(key[:2] == ("c", "alerts") for key in world.stations["b"].positions), "nothing was acknowledged"


def test_what_one_station_cannot_send_any_more_another_one_still_does() -> None:
    world = World(*SHAPES["two"], 8, both_ways=False)
    world.reconnect()
    a, b = world.stations.values()
    for _ in range(5):
        a.publish("alerts")
    world.settle()
    b.restore("alerts", 0.0)
    world.kill(b)
    for partition in range(3):
        b.logs["alerts"].gaps.add(a.origin, partition, 0, 5)  # by somebody else, who has trimmed them
    world.settle()
    world.check()
    assert len(b.logs["alerts"].lines()) == 5


def test_a_channel_whose_disk_stands_still_does_not_hold_up_another() -> None:
    names, pairs = SHAPES["chain"]
    world = World(names, pairs, 7, both_ways=False)
    world.reconnect()
    for station in world.stations.values():
        station.paused.add("alerts")
    for _ in range(4):
        for _ in range(100):
            world.stations["a"].publish("alerts")
            world.stations["a"].publish("sensors.kitchen")
        world.settle()
    last = world.stations["d"].logs
    assert len(last["sensors.kitchen"].lines()) == 400
    assert not last["alerts"].lines()
    for station in world.stations.values():
        station.paused.clear()
    world.settle()
    world.check()
    assert len(last["alerts"].lines()) == 400


@given(st.sampled_from(sorted(SHAPES)), st.integers(0, 2**32), st.booleans())
@example("ring", 2728, False)  # a station's own messages come back to it, after it lost them, round the ring
def test_whatever_happens_when(shape: str, seed: int, both_ways: bool) -> None:
    world = run(shape, seed, 80, both_ways=both_ways)
    if shape in ONE_PATH and not both_ways:
        assert in_order(world)
