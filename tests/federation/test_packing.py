from __future__ import annotations

import contextlib
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import ProtocolError
from heliograph.federation.events import Arrived
from heliograph.federation.packing import PAUSE_MAX, Squeeze, pack, unpack

LINES = b'{"specversion":"1.0","source":"host1/monitor"}\n' * 1000


def test_lines_that_are_alike_shrink_and_come_back() -> None:
    packed = pack(LINES)
    assert len(packed) < len(LINES) / 20
    assert unpack(memoryview(packed), len(LINES)) == LINES


@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        b"",
        pack(LINES)[:-1],
        pack(LINES) + b"x",
        pack(LINES) + pack(LINES),
        pack(LINES[:-1]),
        pack(b"\0" * 100_000_000),  # a bomb that says so
    ],
    ids=["garbage", "empty", "cut", "more", "two", "shorter", "bomb"],
)
def test_what_does_not_unpack_to_the_size_that_was_said_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(body, len(LINES))


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_arbitrary_bytes_unpack_or_are_a_protocol_error(body: bytes, size: int) -> None:
    for one in (body, b"\x28\xb5\x2f\xfd" + body):
        with contextlib.suppress(ProtocolError):
            assert len(unpack(one, size)) == size


def arrived(body: bytes, count: int, *, size: int = 0, packed: bool = False) -> Arrived:
    return Arrived(stream=1, channel="c", partition=0, first=10, count=count, size=size, packed=packed, body=body)


def test_a_batch_has_a_line_for_every_offset() -> None:
    assert arrived(b"a\nbc\n", 2).stored() == (b"a\nbc\n", range(10, 12))
    assert arrived(b"a\n\nbc\n", 3).stored() == (b"a\nbc\n", [10, 12])
    assert arrived(b"\na\n\n", 3).stored() == (b"a\n", [11])
    assert arrived(b"\n\n", 2).stored() == (b"", [])
    assert arrived(pack(LINES), 1000, size=len(LINES), packed=True).stored() == (LINES, range(10, 1010))
    for body, count in ((b"a\nb\n", 3), (b"a\nb\n", 1), (b"a\nb", 2)):
        with pytest.raises(ProtocolError):
            arrived(body, count).stored()


def test_packing_is_tried_only_where_the_line_is_slow_and_it_may_help() -> None:
    assert not Squeeze("auto").wanted(100_000, congested=False)
    assert Squeeze("auto").wanted(100_000, congested=True)
    assert Squeeze("always").wanted(100_000, congested=False)
    assert not Squeeze("never").wanted(100_000, congested=True)
    assert not Squeeze("always").wanted(100, congested=True)


def test_what_does_not_shrink_is_tried_ever_less_often_and_what_does_again_at_once() -> None:
    squeeze, tried = Squeeze("always"), []
    for at in range(1000):
        if squeeze.wanted(100_000, congested=False):
            tried.append(at)
            squeeze.packed(100_000, 99_999)
    pauses = [later - sooner for sooner, later in itertools.pairwise(tried)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX + 1
    while not squeeze.wanted(100_000, congested=False):
        pass
    squeeze.packed(100_000, 20_000)
    assert all(squeeze.wanted(100_000, congested=False) for _ in range(10))
    assert squeeze.ratio < 1


def test_noise_is_not_worth_it() -> None:
    noise = os.urandom(10_000)
    squeeze = Squeeze("always")
    squeeze.packed(len(noise), len(pack(noise)))
    assert not squeeze.wanted(len(noise), congested=True)
