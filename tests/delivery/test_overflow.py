"""What is skipped when a subscriber cannot keep up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.delivery.overflow import newest_to_keep, oldest_to_keep

NUMBERS = st.integers(0, 1000)


@given(end=NUMBERS, buffer=st.integers(1, 100))
def test_drop_oldest_never_keeps_more_than_the_buffer(end: int, buffer: int) -> None:
    assert end - oldest_to_keep(end, buffer) == min(end, buffer)


@given(done=NUMBERS, out=NUMBERS, more=NUMBERS, buffer=st.integers(1, 100))
def test_drop_newest_keeps_the_oldest_and_whatever_was_handed_out(done: int, out: int, more: int, buffer: int) -> None:
    handed_out = done + out
    end = handed_out + more
    keep = newest_to_keep(done, handed_out, end, buffer)
    if keep is None:
        assert end - done <= max(buffer, out)
    else:
        assert handed_out <= keep.until < keep.resume == end
        assert keep.until - done == max(buffer, out)
