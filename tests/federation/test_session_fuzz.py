"""Whatever the other side sends: no exception, a bounded memory, and no acknowledgement that nobody gave."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heliograph.federation import events, frames
from heliograph.federation.rules import Rules
from heliograph.federation.session import Session
from heliograph.limits import LINK_STREAMS_MAX
from heliograph.seen import SeenSet
from tests.federation.pair import LINE, Clock, Pair, ours, tell

NUMBERS = st.sampled_from([0, 1, 2, 3, 10, 65536, 2**63 - 1])
NAMES = st.sampled_from(["alerts", "sensors.a", "sensors.>", "secrets", "../../x", "a" * 255, ">"])
ORIGINS = st.sampled_from(["client.k1", "hub.k1", "x", ""])
SETS = st.dictionaries(
    ORIGINS,
    st.dictionaries(
        st.sampled_from(["0", "7", "x", "-1"]),
        st.lists(st.lists(st.integers(-1, 20), max_size=3), max_size=3),
        max_size=2,
    ),
    max_size=2,
)
ENDS = st.dictionaries(ORIGINS, st.dictionaries(st.sampled_from(["0", "x"]), st.tuples(NUMBERS, NAMES)), max_size=2)
TEXT = st.text(max_size=20)
BODIES = st.sampled_from([b"", b"\n", LINE, LINE * 700, b"x"])


def built(cls: type[frames.Header], **members: Any) -> Any:
    return st.builds(cls, **members)


HEADERS = st.one_of(
    built(frames.Hello, protocol=st.tuples(NUMBERS, NUMBERS), name=NAMES, station=NAMES, instance=NAMES, frame=NUMBERS),
    built(frames.Welcome, protocol=NUMBERS, publish=st.lists(NAMES, max_size=3), relay=st.lists(NAMES, max_size=2)),
    built(frames.Refused, code=NAMES, message=TEXT),
    built(frames.Bye, reason=TEXT),
    built(frames.Want, subscribe=st.lists(st.builds(frames.Wanted, NAMES, TEXT), max_size=3)),
    built(frames.Open, stream=NUMBERS, channel=NAMES, partitions=st.just(1), ends=ENDS),
    built(frames.Resume, stream=NUMBERS, window=NUMBERS, origin=TEXT, seen=SETS, ends=ENDS),
    built(
        frames.Batch, stream=NUMBERS, partition=st.integers(0, 3), first=NUMBERS, count=st.sampled_from([1, 700]),
        size=st.sampled_from([1, 100, 70_000, 2**40]), packed=st.booleans(),
    ),
    built(
        frames.Ack, stream=NUMBERS, partition=st.integers(0, 3), next=NUMBERS,
        refused=st.lists(st.tuples(NUMBERS, TEXT), max_size=2),
    ),
    built(frames.Gap, stream=NUMBERS, gaps=SETS),
    built(frames.Park, stream=NUMBERS, channel=NAMES, reason=TEXT),
    built(frames.Unpark, channel=NAMES),
    built(frames.Window, stream=NUMBERS, bytes=NUMBERS),
    built(frames.Shut, stream=NUMBERS),
    built(frames.Ping, nonce=NUMBERS),
    built(frames.Pong, nonce=NUMBERS),
    built(frames.Call, call=NUMBERS, name=NAMES),
    built(frames.Reply, call=NUMBERS, error=TEXT),
)  # fmt: skip


def flowing() -> Pair:
    """A hub that also sends: a stream in each direction, the hub's with something on its way."""
    pair = Pair(client={"wants": (frames.Wanted("commands.>"),)}, hub={"window_bytes": 1 << 16}).flow()
    pair.client, pair.hub = pair.hub, pair.client
    pair.stream("commands.a")
    pair.client.sending.send(1, 0, 0, 10, LINE * 10)
    pair.client, pair.hub = pair.hub, pair.client
    pair.flow()
    pair.stream("alerts")
    return pair


def run(session: Session, happened: list[events.Event]) -> int:
    """What a shell would do, at once; the bytes it was handed to store."""
    stored = 0
    for event in happened:
        match event:
            case events.Greeted():
                stored += run(session, session.accept())
            case events.Opened():
                session.receiving.resume(event.stream, "hub.k1", SeenSet(), {})
            case events.Resumed():
                session.sending.begin(event.stream, {0: 0})
                session.sending.news(event.stream, 0, 1000)
            case events.Called():
                session.calls.reply(event.call)
            case events.Arrived():
                stored += len(event.body)
    read = session.sending.next_read()
    if read is not None:
        session.sending.send(read.stream, read.partition, read.offset, 1, LINE)
    session.tick()
    return stored


@given(st.booleans(), st.lists(st.tuples(HEADERS, BODIES), max_size=25))
def test_frames_in_any_order_never_raise(established: bool, sent: list[tuple[frames.Header, bytes]]) -> None:
    hub = flowing().hub if established else Session(ours("hub"), Rules("client", publish=[">"]), clock=Clock())
    for header, body in sent:
        run(hub, tell(hub, header, body))
        for head, _ in hub.outgoing():
            assert head[0] == 0x13 or frames.decode(head, 1 << 30)
        if hub.closed:
            return


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_arbitrary_bytes_never_raise(sent: list[bytes], established: bool) -> None:
    hub = flowing().hub if established else Session(ours("hub"), Rules("client"), clock=Clock())
    for frame in sent:
        hub.receive(frame)


@given(st.integers(0, 2**32))
def test_a_conversation_with_a_few_wrong_bytes_never_raises(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair(client={"wants": (frames.Wanted("commands.>"),)})
    for _ in range(30):
        for sender, receiver in ((pair.client, pair.hub), (pair.hub, pair.client)):
            for head, body in sender.outgoing():
                frame = bytearray(bytes(head) + bytes(body))
                if chance.random() < 0.05:
                    frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
                run(receiver, receiver.receive(frame))
        if pair.client.established and chance.random() < 0.5:
            pair.client.sending.open(chance.choice(["alerts", "sensors.a", "secrets"]), 1, {})


def test_memory_is_bounded_whatever_is_opened_and_parked() -> None:
    pair = Pair(publish=["alerts"]).flow()
    tracemalloc.start()
    for stream in range(1, 10_000):
        tell(pair.hub, frames.Open(stream=stream, channel=f"secrets.s{stream}" + "x" * 200, partitions=1))
        pair.hub.outgoing()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(pair.hub.receiving.parked) == LINK_STREAMS_MAX
    assert used < 8_000_000


def test_a_peer_that_opens_and_shuts_for_ever_leaves_nothing_behind() -> None:
    pair = Pair(publish=[">"]).flow()

    def more(first: int, count: int) -> None:
        for stream in range(first, first + count):
            tell(pair.hub, frames.Open(stream=stream, channel=f"c{stream}", partitions=1))
            pair.hub.receiving.resume(stream, "hub.k1", SeenSet(), {})
            tell(pair.hub, frames.Batch(stream=stream, partition=0, first=0, count=1, size=100), LINE)
            tell(pair.hub, frames.Shut(stream=stream))
            pair.hub.outgoing()

    more(1, 1_000)
    tracemalloc.start()
    more(1_001, 2_000)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 1_000_000
    assert not pair.hub.receiving.waiting
