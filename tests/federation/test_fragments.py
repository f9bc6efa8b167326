"""Frames in fragments: put together, bounded, and as cheap as their bytes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from heliograph.errors import ProtocolError
from heliograph.federation.fragments import FRAGMENTS_MAX, Fragments


class Frame:
    def __init__(self, data: bytes, *, fin: bool) -> None:
        self.data, self.fin = data, fin

    def get_payload_as_bytes(self) -> bytes:
        return self.data

    def get_payload_as_memoryview(self) -> memoryview:
        return memoryview(self.data)


def put(fragments: Fragments, *parts: bytes) -> Any:
    for part in parts[:-1]:
        frame: Any = Frame(part, fin=False)
        assert fragments.whole(frame) is None
    last: Any = Frame(parts[-1], fin=True)
    return fragments.whole(last)


def test_fragments_become_a_frame_one_after_the_other() -> None:
    fragments = Fragments(10)
    for _ in range(3):
        assert put(fragments, b"abc", b"", b"defghij") == b"abcdefghij"
        assert put(fragments, b"whole") == b"whole"


def test_too_much_and_too_many_are_refused() -> None:
    with pytest.raises(ProtocolError):
        put(Fragments(10), b"abcdef", b"ghijkl")
    with pytest.raises(ProtocolError):
        put(Fragments(10), *[b""] * (FRAGMENTS_MAX + 1))


def test_thousands_of_next_to_nothing_cost_next_to_nothing() -> None:
    """The event loop is everybody's: with all counted anew for each, these took half a second of it."""
    began = time.process_time()
    assert put(Fragments(1 << 20), *[b"x"] * (FRAGMENTS_MAX - 1)) == b"x" * (FRAGMENTS_MAX - 1)
    assert time.process_time() - began < 0.2
