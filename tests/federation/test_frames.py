from __future__ import annotations

import contextlib
import random
import re
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import ProtocolError
from heliograph.federation import frames
from heliograph.limits import LINK_HEADER_BYTES_MAX

LIMIT = 1 << 20
PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"

EXAMPLES: list[tuple[frames.Header, bytes]] = [
    (frames.Hello(protocol=(1, 1), name="host1", station="s1", instance="i1", software="heliograph 0.1.0"), b""),
    (frames.Welcome(protocol=1, publish=["alerts", "sensors.>"], relay=["host2"]), b""),
    (frames.Refused(code="version", message="too old", upgrade="host1"), b""),
    (frames.Bye(reason="closing"), b""),
    (frames.Want(subscribe=[frames.Wanted("commands.>", "new")]), b""),
    (frames.Open(stream=1, channel="alerts", partitions=2, ends={"host1.k3f9q2": {"0": (41, "id")}}), b""),
    (frames.Resume(stream=1, window=65536, origin="hub.p0p0p0", seen={"host1.k3f9q2": {"0": [[0, 40]]}}), b""),
    (frames.Batch(stream=1, partition=0, first=40, count=2, size=5), b"a\nbc\n"),
    (frames.Batch(stream=1, partition=0, first=42, count=9, size=900, packed=True), b"\x28\xb5\x2f\xfd"),
    (frames.Ack(stream=1, partition=0, next=42, refused=[(41, "too large")]), b""),
    (frames.Gap(stream=1, gaps={"host1.k3f9q2": {"0": [[3, 5]]}}, reason="trimmed"), b""),
    (frames.Park(stream=1, channel="alerts", reason="not allowed"), b""),
    (frames.Unpark(channel="alerts"), b""),
    (frames.Window(stream=1, bytes=131072), b""),
    (frames.Shut(stream=1), b""),
    (frames.Ping(nonce=7), b""),
    (frames.Pong(nonce=7), b""),
    (frames.Call(call=1, name="publish"), b"{}"),
    (frames.Reply(call=1, error="NotFound", message="no such channel"), b""),
]


def joined(header: frames.Header, body: bytes = b"") -> bytes:
    head, rest = frames.encode(header, body)
    return head + bytes(rest)


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(header) for header, _ in EXAMPLES} == set(frames.KINDS.values())


@pytest.mark.parametrize(("header", "body"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_what_is_encoded_is_decoded_as_the_same(header: frames.Header, body: bytes) -> None:
    assert frames.decode(joined(header, body), LIMIT) == (header, body)


def test_a_body_is_neither_copied_when_sent_nor_when_received() -> None:
    body = bytearray(b"x" * 300_000 + b"\n")
    header = frames.Batch(stream=1, partition=0, first=0, count=1, size=len(body))
    assert frames.encode(header, body)[1] is body
    frame = bytearray(joined(header, bytes(body)))
    view = frames.decode(frame, LIMIT)[1]
    frame[-2] = ord("y")
    assert view[-2] == ord("y")


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "too short"),
        (b"\x20\x00\x00\x00", "too short"),
        (b"\x7f\x00\x00\x00\x00", "no kind of frame 0x7f"),
        (b"\x20\xff\xff\xff\xff{}", "does not fit"),
        (b"\x20\x05\x00\x00\x00{}", "does not fit"),
        (b"\x20\x02\x00\x00\x00{}", "PING is not valid"),
        (b"\x20\x0b\x00\x00\x00" + b'{"nonce":7}' + b"x", "has no body"),
        (b"\x20\x0c\x00\x00\x00" + b'{"nonce":-7}', "not valid"),
        (b"\x20\x1d\x00\x00\x00" + b'{"nonce":99999999999999999999}', "not valid"),
        (joined(frames.Batch(stream=1, partition=0, first=0, count=1, size=4), b"abc\n")[:-1], "has a body of 3"),
        (joined(frames.Batch(stream=1, partition=0, first=0, count=1, size=3), b"abc"), "end of a line"),
        (joined(frames.Batch(stream=1, partition=0, first=0, count=9, size=3), b"ab\n"), "9 lines"),
        (joined(frames.Batch(stream=1, partition=0, first=0, count=1, size=900, packed=True), b""), "end of a line"),
        (joined(frames.Ping(nonce=1)) + b"x" * LIMIT, "larger than"),
    ],
)
def test_what_is_no_frame_is_refused_with_the_reason(frame: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(says)):
        frames.decode(frame, LIMIT)


def test_what_a_later_version_says_beside_is_ignored() -> None:
    said = b'{"nonce":7,"colour":{"deep":[1,2]}}'
    assert frames.decode(b"\x20" + len(said).to_bytes(4, "little") + said, LIMIT)[0] == frames.Ping(nonce=7)


def test_a_header_that_nests_for_ever_is_refused() -> None:
    said = b'{"nonce":7,"x":' + b"[" * 200_000
    with pytest.raises(ProtocolError):
        frames.decode(b"\x20" + len(said).to_bytes(4, "little") + said, LIMIT)


def test_a_header_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="larger than"):
        frames.encode(frames.Bye(reason="x" * (LINK_HEADER_BYTES_MAX + 1)))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        frames.decode(data, LIMIT)


@given(st.sampled_from(EXAMPLES), st.integers(0, 2**32), st.integers(1, 6))
def test_frames_with_other_bytes_in_them_are_a_frame_or_a_protocol_error(
    example: tuple[frames.Header, bytes], seed: int, changes: int
) -> None:
    chance = random.Random(seed)
    frame = bytearray(joined(*example))
    for _ in range(changes):
        match chance.randrange(4):
            case 0:
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            case 1:
                frame.insert(chance.randrange(len(frame)), chance.choice(b'{}[]",:0123456789\n\xff'))
            case 2 if len(frame) > 1:
                del frame[chance.randrange(len(frame))]
            case 3:
                at = chance.randrange(len(frame))
                frame[at:at] = frame[chance.randrange(len(frame)) :][:20]
    with contextlib.suppress(ProtocolError):
        frames.decode(bytes(frame), LIMIT)


def test_a_frame_that_claims_much_allocates_little() -> None:
    claims = [
        b"\x20\xff\xff\x0f\x00",
        joined(frames.Batch(stream=1, partition=0, first=0, count=1, size=2**40, packed=True), b"x"),
    ]
    tracemalloc.start()
    for frame in claims:
        with contextlib.suppress(ProtocolError):
            frames.decode(frame, LIMIT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


# -- the document -------------------------------------------------------------------------------------------


def documented() -> list[tuple[str, bytes]]:
    """Examples as ``KIND: what it is`` and lines of hexadecimal bytes."""
    found = re.findall(r"^```hex ([A-Z]+)\n(.*?)^```", PROTOCOL.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(kind, bytes.fromhex(re.sub(r"#.*", "", text))) for kind, text in found]


def test_the_documented_bytes_are_frames_and_encode_as_documented() -> None:
    examples = documented()
    assert len(examples) >= 6
    for kind, frame in examples:
        header, body = frames.decode(frame, LIMIT)
        assert type(header).__name__.upper() == kind
        assert joined(header, bytes(body)) == frame


def test_every_kind_and_member_is_documented() -> None:
    page = PROTOCOL.read_text("utf-8")
    for number, cls in frames.KINDS.items():
        assert f"| `{number:02x}` | {cls.__name__.upper()} |" in page
        for field in msgspec.structs.fields(cls):
            assert f"`{field.name}`" in page, f"{cls.__name__}.{field.name}"
