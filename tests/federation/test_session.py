from __future__ import annotations

from typing import Any

import pytest

from heliograph.errors import Busy, MessageTooLarge, ProtocolError
from heliograph.federation import events, frames
from heliograph.federation.frames import Wanted
from heliograph.federation.packing import pack
from heliograph.federation.rules import Rules
from heliograph.federation.session import Session
from heliograph.limits import LINK_CALLS_MAX, LINK_HANDSHAKE_S, LINK_REFUSED_MAX, READ_LINK_BYTES
from heliograph.seen import SeenSet
from tests.federation.pair import LINE, WANT_ALL, Clock, Pair, ours, receive, said, tell

# -- hello --------------------------------------------------------------------------------------------------


def test_both_sides_greet_and_welcome_each_other() -> None:
    pair = Pair().flow()
    for session in (pair.client, pair.hub):
        assert session.established
        assert session.protocol == 1
        assert len(pair.take(session, events.Established)) == 1
    assert pair.client.welcome is not None
    assert pair.client.welcome.publish == ["alerts", "sensors.>"]
    assert pair.hub.theirs is not None
    assert pair.hub.theirs.station == "client-id"


@pytest.mark.parametrize(
    ("theirs", "behind"),
    [((2, 3), "hub"), ((0, 0), "client")],
)
def test_an_unknown_version_is_refused_with_what_to_upgrade(theirs: tuple[int, int], behind: str) -> None:
    pair = Pair(client={"protocol": theirs}).flow()
    (closed,) = pair.take(pair.client, events.Closed)
    assert (closed.code, closed.refusal) == ("refused", "version")
    assert f"upgrade {behind} (heliograph 0.1.0) to a Heliograph that speaks version" in closed.upgrade
    assert f"versions {theirs[0]} to {theirs[1]}" in closed.reason
    assert pair.hub.closed
    assert pair.client.closed


def test_the_newest_version_that_both_speak_is_spoken() -> None:
    pair = Pair(client={"protocol": (1, 4)}, hub={"protocol": (0, 2)}).flow()
    assert pair.client.protocol == pair.hub.protocol == 2
    assert pair.client.established


def test_a_station_that_calls_itself_otherwise_than_its_certificate_is_refused() -> None:
    session = Session(ours("hub"), Rules("host1"), clock=Clock())
    happened = tell(session, frames.Hello(protocol=(1, 1), name="host2", station="s", instance="i"))
    assert [type(event) for event in happened] == [events.Closed]
    refused = said(session)[-1]
    assert isinstance(refused, frames.Refused)
    assert refused.code == "name"


def test_whoever_runs_the_session_may_refuse() -> None:
    pair = Pair()
    pair.hub.receive(b"".join(bytes(part) for part in pair.client.outgoing()[0]))
    pair.note(pair.hub, pair.hub.refuse("duplicate", "another client of this name is connected"))
    pair.flow()
    (closed,) = pair.take(pair.client, events.Closed)
    assert (closed.refusal, closed.reason) == ("duplicate", "another client of this name is connected")


def test_a_first_frame_is_small_and_later_ones_as_large_as_was_said() -> None:
    session = Session(ours("hub", frame_bytes=1 << 22), Rules("client"), clock=Clock())
    (closed,) = session.receive(b"\x01" + bytes(70_000))
    assert isinstance(closed, events.Closed)
    assert "larger than 65536" in closed.reason
    pair = Pair(hub={"frame_bytes": 1 << 22}).flow()
    stream = pair.stream()
    most = pair.client.body_bytes_max
    assert 3_000_000 < most < 1 << 22
    with pytest.raises(MessageTooLarge):
        pair.client.calls.call("publish", bytes(most + 1))
    pair.client.sending.send(stream, 0, 0, 1, b"x" * (most - 1) + b"\n")
    pair.flow()
    (arrived,) = pair.take(pair.hub, events.Arrived)
    assert arrived.size == most


def test_a_handshake_that_stalls_is_ended() -> None:
    pair = Pair()
    assert pair.hub.deadline() == pair.clock.now + LINK_HANDSHAKE_S
    pair.clock.now += LINK_HANDSHAKE_S - 0.1
    assert not pair.hub.tick()
    pair.clock.now += 0.1
    (closed,) = pair.hub.tick()
    assert isinstance(closed, events.Closed)
    assert closed.code == "lost"


# -- what is not expected -----------------------------------------------------------------------------------

BEFORE = [
    frames.Ping(nonce=1),
    frames.Open(stream=1, channel="alerts", partitions=1),
    frames.Want(),
    frames.Welcome(protocol=1),
]
WRONG: list[Any] = [
    frames.Hello(protocol=(1, 1), name="client", station="s", instance="i"),
    frames.Welcome(protocol=2),
    frames.Welcome(protocol=1, relay=["a.>.b"]),
    frames.Pong(nonce=1),
    frames.Open(stream=0, channel="alerts", partitions=1),
    frames.Open(stream=2, channel="alerts", partitions=1),
    frames.Batch(stream=1, partition=0, first=0, count=1, size=1),
    frames.Ack(stream=1, partition=0, next=1),
    frames.Resume(stream=1, window=1),
    frames.Window(stream=1, bytes=1),
    frames.Gap(stream=1, gaps={}),
    frames.Shut(stream=1),
    frames.Park(stream=1, channel="alerts", reason=""),
    frames.Reply(call=1),
    frames.Call(call=2, name="publish"),
    frames.Want(subscribe=[Wanted("commands.a", "tomorrow")]),
    frames.Want(subscribe=[Wanted("commands.a", "")]),
    frames.Want(subscribe=[Wanted("commands.a", "2026-11-15T20:30")]),
]


@pytest.mark.parametrize("header", BEFORE, ids=lambda header: type(header).__name__)
def test_nothing_but_a_hello_comes_first(header: frames.Header) -> None:
    session = Session(ours("hub"), Rules("client"), clock=Clock())
    (closed,) = tell(session, header)
    assert isinstance(closed, events.Closed)
    assert closed.code == "protocol"


@pytest.mark.parametrize("header", WRONG, ids=repr)
def test_what_is_not_expected_ends_the_session_with_the_reason(header: frames.Header) -> None:
    pair = Pair().flow()
    (closed,) = tell(pair.hub, header, b"\n" if isinstance(header, frames.Batch) else b"")
    assert isinstance(closed, events.Closed)
    assert closed.code == "protocol"
    (refused,) = said(pair.hub)
    assert isinstance(refused, frames.Refused)
    assert refused.code == "protocol"
    assert refused.message == closed.reason
    assert not tell(pair.hub, frames.Ping(nonce=1))
    assert not pair.hub.tick()
    assert not said(pair.hub)


def test_streams_are_checked_once_they_are_there() -> None:
    for wrong in (
        frames.Batch(stream=1, partition=0, first=5, count=1, size=1),  # goes back
        frames.Open(stream=2, channel="alerts", partitions=1),  # twice
        frames.Gap(stream=1, gaps={"x": {"y": [[1, 2]]}}),
        frames.Open(stream=2, channel="sensors.a", partitions=1, ends={"x": {"y": (1, "id")}}),
        frames.Gap(stream=1, gaps={"x": {"0": [[2, 1]]}}),
    ):
        pair = Pair().flow()
        pair.stream()
        pair.flow()
        assert not isinstance(
            tell(pair.hub, frames.Batch(stream=1, partition=0, first=9, count=1, size=1), b"\n")[0], events.Closed
        )
        (closed,) = tell(pair.hub, wrong, b"\n" if isinstance(wrong, frames.Batch) else b"")
        assert isinstance(closed, events.Closed), wrong


@pytest.mark.parametrize(
    "wrong",
    [
        frames.Ack(stream=1, partition=0, next=0),
        frames.Ack(stream=1, partition=0, next=11),
        frames.Ack(stream=1, partition=1, next=5),
        frames.Ack(stream=1, partition=0, next=10, refused=[(10, "x")]),
        frames.Ack(stream=1, partition=0, next=10, refused=[(9, "x"), (9, "y")]),
        frames.Resume(stream=1, window=5),
        frames.Resume(stream=2, window=5),
    ],
    ids=repr,
)
def test_an_answer_to_what_was_not_sent_ends_the_session(wrong: frames.Header) -> None:
    pair = Pair().flow()
    stream = pair.stream()
    pair.client.sending.send(stream, 0, 0, 10, LINE * 10)
    (closed,) = tell(pair.client, wrong)
    assert isinstance(closed, events.Closed)


def test_a_batch_before_the_resume_ends_the_session() -> None:
    pair = Pair().flow()
    tell(pair.hub, frames.Open(stream=1, channel="alerts", partitions=1))
    (closed,) = tell(pair.hub, frames.Batch(stream=1, partition=0, first=0, count=1, size=1), b"\n")
    assert isinstance(closed, events.Closed)


# -- acknowledgements ---------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_before_it_is_said_to_be_stored() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    pair.client.sending.send(stream, 0, 0, 3, LINE * 3)
    pair.flow()
    (arrived,) = pair.take(pair.hub, events.Arrived)
    assert (arrived.channel, arrived.first, arrived.next) == ("alerts", 0, 3)
    assert arrived.stored() == (LINE * 3, range(3))
    assert not pair.take(pair.client, events.Acked)
    assert not pair.client.sending.idle
    pair.hub.receiving.acknowledge(arrived.stream, arrived.partition, arrived.next, [(1, "malformed")])
    pair.flow()
    (acked,) = pair.take(pair.client, events.Acked)
    assert (acked.position, list(acked.refused)) == (3, [(1, "malformed")])
    assert pair.client.sending.idle


def test_what_never_arrived_cannot_be_acknowledged() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    pair.client.sending.send(stream, 0, 0, 3, LINE * 3)
    pair.flow()
    for partition, following in ((0, 4), (0, 0), (1, 1)):
        with pytest.raises(ValueError, match="did not arrive"):
            pair.hub.receiving.acknowledge(stream, partition, following)


def test_many_refused_messages_take_several_acknowledgements() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    many = LINK_REFUSED_MAX * 2 + 7
    pair.client.sending.send(stream, 0, 0, many, b"\n" * many)
    pair.flow()
    pair.hub.receiving.acknowledge(stream, 0, many, [(offset, "x" * 5000) for offset in range(many)])
    pair.flow()
    acked = pair.take(pair.client, events.Acked)
    assert [offset for one in acked for offset, _ in one.refused] == list(range(many))
    assert [one.position for one in acked] == [500, 1000, many]
    assert not pair.client.sending.flying(stream)


def test_what_is_skipped_moves_the_position_in_its_turn() -> None:
    pair = Pair().flow()
    stream = pair.stream(end=50)
    sending = pair.client.sending
    sending.next_read()
    moved = sending.skip(stream, 0, 10)
    assert moved is not None
    assert moved.position == 10
    sending.next_read()
    sending.send(stream, 0, 12, 3, LINE * 3)  # 10 and 11 are gone
    sending.next_read()
    assert sending.skip(stream, 0, 40) is None, "15 to 40 count once 12 to 15 are stored"
    pair.flow()
    pair.hub.receiving.acknowledge(stream, 0, 15)
    pair.flow()
    assert [acked.position for acked in pair.take(pair.client, events.Acked)] == [40]


def test_what_was_sent_in_several_batches_is_not_read_again_and_later_news_are() -> None:
    pair = Pair().flow()
    stream = pair.stream(end=10)
    sending = pair.client.sending
    assert sending.next_read()
    sending.send(stream, 0, 0, 6, LINE * 6)
    sending.skip(stream, 0, 8)
    sending.send(stream, 0, 8, 2, LINE * 2)
    assert sending.next_read() is None, "there is nothing behind the tenth"
    sending.news(stream, 0, 11)
    read = sending.next_read()
    assert read is not None
    assert (read.offset, read.end) == (10, 11)


# -- windows ------------------------------------------------------------------------------------------------


def test_a_window_is_filled_and_never_exceeded() -> None:
    pair = Pair(hub={"window_bytes": 1 << 20}).flow()
    stream = pair.stream()
    pair.send()
    flying = pair.client.sending.flying(stream)
    assert (1 << 20) * 3 // 4 <= flying <= 1 << 20
    pair.flow()
    assert pair.hub.receiving.waiting == flying
    arrived = pair.take(pair.hub, events.Arrived)
    assert pair.client.sending.next_read() is None
    pair.hub.receiving.acknowledge(stream, 0, arrived[0].next)
    pair.flow()
    assert pair.client.sending.flying(stream) == flying - arrived[0].size
    assert pair.send() > 0


def test_a_sender_that_exceeds_its_window_is_cut_off() -> None:
    pair = Pair(hub={"window_bytes": 1 << 16}).flow()
    pair.stream()
    for at in range(3):
        happened = tell(
            pair.hub, frames.Batch(stream=1, partition=0, first=at, count=1, size=30_000), b"x" * 29_999 + b"\n"
        )
    (closed,) = happened
    assert isinstance(closed, events.Closed)
    assert "window of 65536" in closed.reason


def test_tiny_batches_count_as_much_as_the_memory_around_them() -> None:
    pair = Pair(hub={"window_bytes": 1 << 16}).flow()
    pair.stream()
    happened: list[events.Event] = []
    for at in range(65):
        happened = tell(pair.hub, frames.Batch(stream=1, partition=0, first=at, count=1, size=1), b"\n")
    assert isinstance(happened[0], events.Closed)


def test_a_message_larger_than_the_window_travels_alone() -> None:
    pair = Pair(hub={"window_bytes": 1 << 16}).flow()
    stream = pair.stream()
    sending = pair.client.sending
    assert sending.next_read()
    sending.send(stream, 0, 0, 1, LINE)
    assert sending.next_read()
    sending.send(stream, 0, 1, 1, b"y" * 200_000 + b"\n")  # waits
    assert sending.next_read() is None
    pair.flow()
    assert [arrived.first for arrived in pair.take(pair.hub, events.Arrived)] == [0]
    pair.hub.receiving.acknowledge(stream, 0, 1)
    pair.flow()
    assert [arrived.first for arrived in pair.take(pair.hub, events.Arrived)] == [1]
    assert sending.next_read() is None
    pair.hub.receiving.acknowledge(stream, 0, 2)
    pair.flow()
    assert sending.next_read() is not None


def test_batches_that_do_not_fit_wait_in_order_and_what_is_skipped_behind_them_too() -> None:
    pair = Pair(hub={"window_bytes": 1 << 16}).flow()
    stream = pair.stream(end=50)
    sending = pair.client.sending
    sending.news(stream, 1, 50)
    assert sending.next_read()
    sending.send(stream, 0, 0, 1, b"x" * 40_000 + b"\n")
    assert sending.next_read()
    sending.send(stream, 1, 0, 1, b"y" * 30_000 + b"\n")  # waits, though its partition has nothing on its way
    sending.send(stream, 1, 1, 1, b"z" * 30_000 + b"\n")
    assert sending.skip(stream, 1, 10) is None
    assert sending.next_read() is None
    pair.flow()
    assert [(one.partition, one.first) for one in pair.take(pair.hub, events.Arrived)] == [(0, 0)]
    pair.hub.receiving.acknowledge(stream, 0, 1)
    pair.flow()
    assert [(one.partition, one.first) for one in pair.take(pair.hub, events.Arrived)] == [(1, 0), (1, 1)]
    pair.hub.receiving.acknowledge(stream, 1, 2)
    pair.flow()
    positions = [(one.partition, one.position) for one in pair.take(pair.client, events.Acked)]
    assert positions == [(0, 1), (1, 10)]


def test_what_is_held_cannot_be_acknowledged() -> None:
    pair = Pair(hub={"window_bytes": 1 << 16}).flow()
    stream = pair.stream(end=50)
    sending = pair.client.sending
    assert sending.next_read()
    sending.send(stream, 0, 0, 1, b"x" * 60_000 + b"\n")
    sending.send(stream, 0, 1, 1, b"y" * 60_000 + b"\n")
    (closed,) = tell(pair.client, frames.Ack(stream=stream, partition=0, next=2))
    assert isinstance(closed, events.Closed)
    assert "not awaited" in closed.reason


def test_one_slow_channel_never_blocks_another() -> None:
    pair = Pair(hub={"window_bytes": 1 << 18}).flow()
    slow, fast = pair.stream("alerts"), pair.stream("sensors.kitchen")
    stored = 0
    for _ in range(200):
        pair.send()
        pair.flow()
        for arrived in pair.take(pair.hub, events.Arrived):
            if arrived.stream == fast:
                pair.hub.receiving.acknowledge(fast, 0, arrived.next)
                stored = arrived.next
        pair.flow()
    assert pair.client.sending.flying(slow) <= 1 << 18
    assert stored * len(LINE) > 200 * (1 << 17)


def test_channels_and_partitions_take_turns() -> None:
    pair = Pair(hub={"window_bytes": 1 << 24, "budget_bytes": 1 << 30}).flow()
    streams = [pair.stream("alerts"), pair.stream("sensors.a"), pair.stream("sensors.b")]
    pair.client.sending.news(streams[0], 1, 1_000_000)
    turns = []
    for _ in range(12):
        read = pair.client.sending.next_read()
        assert read is not None
        turns.append((read.stream, read.partition))
        assert read.bytes == READ_LINK_BYTES
        pair.client.sending.send(read.stream, read.partition, read.offset, 1, LINE)
    assert [stream for stream, _ in turns] == streams * 4
    assert [partition for stream, partition in turns if stream == streams[0]] == [0, 1, 0, 1]


def test_a_channel_that_is_being_read_is_not_asked_for_again() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    assert pair.client.sending.next_read() is not None
    assert pair.client.sending.next_read() is None
    pair.client.sending.news(stream, 0, 2_000_000)
    assert pair.client.sending.next_read() is None
    pair.client.sending.skip(stream, 0, 5)
    assert pair.client.sending.next_read() is not None


def test_many_channels_share_a_budget() -> None:
    pair = Pair(hub={"window_bytes": 1 << 20, "budget_bytes": 1 << 21}).flow()
    streams = [pair.stream(f"sensors.s{n}") for n in range(8)]
    pair.flow()
    pair.send()
    pair.flow()
    assert all(pair.client.sending.flying(stream) for stream in streams)
    assert pair.hub.receiving.waiting <= 1 << 21
    assert not pair.take(pair.hub, events.Closed)


# -- rules --------------------------------------------------------------------------------------------------


def test_a_channel_that_is_not_allowed_is_parked_and_the_others_flow() -> None:
    pair = Pair(client={"push": ("alerts", "secrets")}).flow()
    pair.client.sending.open("secrets", 1, {})
    pair.stream("alerts")
    (parked,) = pair.take(pair.client, events.Parked)
    assert (parked.channel, parked.reason) == ("secrets", "client is not allowed to publish 'secrets'")
    assert [event.channel for event in pair.take(pair.hub, events.Denied)] == ["secrets"]
    assert pair.client.sending.open("secrets", 1, {}) == 0
    assert pair.send() > 0
    pair.flow()
    assert pair.client.established
    assert pair.hub.established


def test_a_parked_channel_is_let_go_when_the_rules_change() -> None:
    pair = Pair(client={"push": ("secrets",)}).flow()
    pair.client.sending.open("secrets", 1, {})
    pair.flow()
    pair.note(pair.hub, pair.hub.allow(Rules("client", publish=["secrets"])))
    pair.flow()
    assert [event.channel for event in pair.take(pair.client, events.Unparked)] == ["secrets"]
    (allowed,) = pair.take(pair.client, events.Allowed)
    assert allowed.welcome.publish == ["secrets"]
    pair.stream("secrets")
    assert pair.send() > 0


def test_a_channel_that_is_not_allowed_any_more_is_parked_and_what_is_on_its_way_is_not_acknowledged() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    pair.flow()
    pair.send(1)
    pair.note(pair.hub, pair.hub.allow(Rules("client")))
    pair.flow()
    pair.client.sending.send(stream, 0, 9, 1, LINE)  # its reader was at work meanwhile
    pair.flow()
    assert [event.channel for event in pair.take(pair.client, events.Parked)] == ["alerts"]
    assert [event.channel for event in pair.take(pair.hub, events.Ended)] == ["alerts"]
    assert not pair.take(pair.hub, events.Arrived)
    pair.hub.receiving.acknowledge(stream, 0, 1)
    pair.flow()
    assert not pair.take(pair.client, events.Acked)
    assert pair.client.established
    assert pair.hub.established


def test_what_is_wanted_is_offered_if_it_is_allowed() -> None:
    pair = Pair(client={"push": (), "wants": (*WANT_ALL, Wanted("secrets"), Wanted("private.>"))}).flow()
    assert [pair.hub.offers(name) for name in ("commands.a", "secrets", "private.x", "alerts")] == [
        "new",
        None,
        None,
        None,
    ]
    assert {event.channel for event in pair.take(pair.client, events.Parked)} == {"secrets", "private.>"}
    assert {event.channel for event in pair.take(pair.hub, events.Denied)} == {"secrets", "private.>"}
    pair.note(pair.hub, pair.hub.allow(Rules("client", subscribe=["secrets"])))
    pair.flow()
    assert [pair.hub.offers(name) for name in ("commands.a", "secrets", "private.x")] == [None, "first", None]
    assert {event.channel for event in pair.take(pair.client, events.Unparked)} == {"secrets"}
    assert {event.channel for event in pair.take(pair.client, events.Parked)} == {"commands.>", "private.>"}
    assert set(pair.client.parked()) == set(pair.hub.parked()) == {"commands.>", "private.>"}


def test_what_is_not_wanted_any_more_is_not_parked_any_more() -> None:
    pair = Pair(client={"push": ("secrets",), "wants": (Wanted("secrets"), Wanted("private.>"))}).flow()
    pair.client.sending.open("secrets", 1, {})
    pair.flow()
    assert set(pair.client.parked()) == set(pair.hub.parked()) == {"secrets", "private.>"}
    pair.client.want([Wanted("secrets")])
    pair.flow()
    assert set(pair.client.parked()) == set(pair.hub.parked()) == {"secrets"}
    pair.client.allow(Rules("hub"), ())
    pair.client.want([])
    pair.flow()
    assert pair.client.parked() == pair.hub.parked() == {}


@pytest.mark.parametrize("allowed", ["publish", "subscribe"])
def test_one_way_of_a_channel_is_let_go_and_the_other_stays_parked(allowed: str) -> None:
    pair = Pair(client={"push": ("secrets",), "wants": (Wanted("secrets"),)}).flow()
    pair.client.sending.open("secrets", 1, {})
    pair.flow()
    pair.note(pair.hub, pair.hub.allow(Rules("client", **{allowed: ["secrets"]})))
    pair.flow()
    if pair.take(pair.client, events.Unparked):
        pair.client.sending.open("secrets", 1, {})
        pair.flow()
    left = "subscribe" if allowed == "publish" else "publish"
    assert pair.client.parked() == pair.hub.parked() == {"secrets": f"client is not allowed to {left} 'secrets'"}
    pair.note(pair.hub, pair.hub.allow(Rules("client", publish=["secrets"], subscribe=["secrets"])))
    pair.flow()
    assert pair.client.parked() == pair.hub.parked() == {}


def test_a_stream_that_is_not_wanted_any_more_is_shut() -> None:
    pair = Pair(client={"push": (), "wants": WANT_ALL}).flow()
    pair.hub.sending.open("commands.a", 1, {})
    pair.client.want([Wanted("commands.b")])
    pair.flow()
    assert not pair.hub.sending.channels
    assert pair.hub.offers("commands.b") == "first"
    assert len(pair.take(pair.hub, events.Wanting)) == 2


@pytest.mark.parametrize("wanted", ["../../x", "a.>.b", "a b", "**"])
def test_a_want_that_is_no_name_is_denied(wanted: str) -> None:
    pair = Pair(subscribe=[">"]).flow()
    (denied, _) = tell(pair.hub, frames.Want(subscribe=[Wanted(wanted)]))
    assert isinstance(denied, events.Denied)
    assert pair.hub.offers(wanted) is None


def test_what_may_be_relayed_is_known_to_the_sender() -> None:
    pair = Pair(relay=["host2"]).flow()
    assert pair.client.relays("client.k3f9q2")
    assert pair.client.relays("host2.k3f9q2")
    assert not pair.client.relays("host3.k3f9q2")
    assert pair.hub.relays("host3.k3f9q2"), "a link takes from its hub whatever it subscribed"


def test_rules_that_change_while_both_greet_each_other_are_told() -> None:
    pair = Pair()
    for head, body in pair.client.outgoing():
        pair.note(pair.hub, receive(pair.hub, bytes(head) + bytes(body)))
    assert not pair.hub.established, "it has welcomed the client, and waits for its welcome"
    pair.hub.allow(Rules("client", publish=["alerts"], relay=["host2"]))
    pair.flow()
    assert pair.client.welcome is not None
    assert pair.client.welcome.relay == ["host2"]
    assert pair.client.relays("host2.k3f9q2")


def test_whoever_stores_may_park_and_unpark() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    pair.hub.receiving.park(stream, "client is not allowed to relay messages of 'host3'")
    pair.flow()
    assert [event.reason for event in pair.take(pair.client, events.Parked)] == [
        "client is not allowed to relay messages of 'host3'"
    ]
    tell(pair.hub, frames.Open(stream=2, channel="alerts", partitions=1))
    assert any(isinstance(header, frames.Park) for header in said(pair.hub)), "it is not opened behind our back"
    pair.hub.receiving.unpark("alerts")
    pair.flow()
    assert [event.channel for event in pair.take(pair.client, events.Unparked)] == ["alerts"]


# -- gaps, calls, the end -----------------------------------------------------------------------------------


def test_gaps_are_told() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    gaps = SeenSet()
    gaps.add("client.k3f9q2", 0, 3, 9)
    pair.client.sending.gap(stream, gaps, "trimmed")
    pair.flow()
    (gapped,) = pair.take(pair.hub, events.Gapped)
    assert (gapped.channel, gapped.gaps, gapped.reason) == ("alerts", gaps, "trimmed")


def test_gaps_of_a_partition_that_no_channel_has_break_the_protocol() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    gaps = SeenSet()
    gaps.add("client.k3f9q2", 1024, 3, 9)
    pair.client.sending.gap(stream, gaps, "trimmed")
    pair.flow()
    (closed,) = pair.take(pair.hub, events.Closed)
    assert "no partition 1024" in closed.reason
    assert not pair.take(pair.hub, events.Gapped)


def test_requests_are_answered_in_any_order() -> None:
    pair = Pair().flow()
    first, second = pair.client.calls.call("read", b"{}"), pair.client.calls.call("publish", b"[1]")
    pair.flow()
    called = pair.take(pair.hub, events.Called)
    assert [(one.name, bytes(one.body)) for one in called] == [("read", b"{}"), ("publish", b"[1]")]
    pair.hub.calls.fail(second, "NotFound", "no such channel")
    pair.hub.calls.reply(first, b"result")
    pair.flow()
    replied = pair.take(pair.client, events.Replied)
    assert [(one.call, one.error, bytes(one.body)) for one in replied] == [
        (second, "NotFound", b""),
        (first, "", b"result"),
    ]
    assert pair.client.calls.idle
    assert pair.hub.calls.idle
    with pytest.raises(ValueError, match="answered before"):
        pair.hub.calls.reply(first)


def test_too_many_requests_are_busy_here_and_the_end_there() -> None:
    pair = Pair().flow()
    for _ in range(LINK_CALLS_MAX):
        pair.client.calls.call("read")
    with pytest.raises(Busy):
        pair.client.calls.call("read")
    pair.flow()
    (closed,) = tell(pair.hub, frames.Call(call=LINK_CALLS_MAX + 1, name="read"))
    assert isinstance(closed, events.Closed)


def test_a_half_open_connection_is_noticed_and_an_idle_one_stays() -> None:
    pair = Pair(client={"heartbeat_s": 10.0}, hub={"heartbeat_s": 10.0}).flow()
    for _ in range(50):
        pair.clock.now = min(pair.client.deadline(), pair.hub.deadline())
        assert not pair.client.tick()
        assert not pair.hub.tick()
        pair.flow()
    pair.clock.now += 10.0
    pair.client.tick()
    pair.client.outgoing()  # lost
    while not pair.client.closed:
        pair.clock.now = pair.client.deadline()
        pair.note(pair.client, pair.client.tick())
    (closed,) = pair.take(pair.client, events.Closed)
    assert closed.code == "lost"
    assert "nothing was heard for 30.0 s" in closed.reason


def test_a_large_frame_on_a_slow_line_is_a_sign_of_life() -> None:
    pair = Pair(hub={"heartbeat_s": 10.0}).flow()
    for _ in range(20):
        pair.clock.now += 8.0
        pair.hub.heard()
        assert not pair.hub.tick()
    assert pair.hub.established


def test_bye_is_the_last_word() -> None:
    pair = Pair().flow()
    pair.note(pair.client, pair.client.bye("closing"))
    assert pair.client.closed
    pair.flow()
    (closed,) = pair.take(pair.hub, events.Closed)
    assert (closed.code, closed.reason) == ("bye", "closing")
    assert not said(pair.hub)


def test_what_unpacks_to_nonsense_ends_the_session() -> None:
    pair = Pair().flow()
    pair.stream()
    (arrived,) = tell(pair.hub, frames.Batch(stream=1, partition=0, first=0, count=1, size=9, packed=True), b"garbage")
    assert isinstance(arrived, events.Arrived)
    with pytest.raises(ProtocolError) as caught:
        arrived.stored()
    (closed,) = pair.hub.fail(caught.value)
    assert isinstance(closed, events.Closed)
    assert closed.code == "protocol"


def test_what_unpacks_to_more_than_a_frame_holds_is_not_unpacked() -> None:
    pair = Pair().flow()
    pair.stream()
    bomb = b"\n" * (pair.hub._frame_bytes + 1)
    batch = frames.Batch(stream=1, partition=0, first=0, count=1, size=len(bomb), packed=True)
    (closed,) = tell(pair.hub, batch, pack(bomb))
    assert isinstance(closed, events.Closed)
    assert (closed.code, "larger than" in closed.reason) == ("protocol", True)


def test_calls_for_a_stream_that_is_gone_do_nothing() -> None:
    pair = Pair().flow()
    stream = pair.stream()
    pair.client.sending.shut(stream, "deleted")
    pair.flow()
    said(pair.client)
    pair.client.sending.send(stream, 0, 0, 1, LINE)
    pair.client.sending.news(stream, 0, 7)
    pair.client.sending.begin(stream, {0: 0})
    pair.client.sending.gap(stream, SeenSet(), "")
    pair.client.sending.shut(stream, "again")
    assert pair.client.sending.skip(stream, 0, 9) is None
    pair.hub.receiving.acknowledge(stream, 0, 1)
    pair.hub.receiving.park(stream, "why")
    pair.hub.receiving.resume(stream, "", SeenSet(), {})
    assert not said(pair.client)
    assert not said(pair.hub)
    assert pair.client.sending.next_read() is None


# -- sides without a log --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame", [frames.Want(subscribe=[Wanted("alerts", "new")]), frames.Open(stream=1, channel="alerts", partitions=1)]
)
def test_a_side_without_a_log_has_requests_and_no_streams(frame: frames.Header) -> None:
    pair = Pair(client={"ephemeral": True}).flow()
    assert pair.hub.established
    pair.client.calls.call("channels")
    assert [event.name for event in pair.flow().take(pair.hub, events.Called)] == ["channels"]
    happened = tell(pair.hub, frame)
    assert [type(event) for event in happened] == [events.Closed]
    refused = said(pair.hub)[-1]
    assert isinstance(refused, frames.Refused)
    assert (refused.code, "without a log" in refused.message) == ("protocol", True)
