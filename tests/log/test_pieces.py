"""A stretch in pieces: all of it once, whatever the index says, and nothing that cannot be wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.clock import to_us
from heliograph.disk import SYSTEM_DISK
from heliograph.log import pieces
from heliograph.log.pieces import Piece, Wish

BASE = datetime(2026, 11, 15, tzinfo=UTC)
COUNT = 700


def moment(n: int) -> datetime:
    """When a message was: a minute after the one before it, but every other fifty are of another year."""
    return BASE + timedelta(minutes=n, days=1_000 * (n // 50 % 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "data"
    with hg.open(path, name="host1", durability="os", segment_bytes=50_000) as station:
        for first in range(0, COUNT, 50):
            station.publish_many("alerts", [hg.Draft(data="x" * 400, time=moment(n)) for n in range(first, first + 50)])
    return path / "channels/alerts/0"


def cut(folder: Path, wish: Wish) -> tuple[list[Piece], int]:
    with hg.open(folder.parents[2], read_only=True) as station:
        return pieces.cut(folder, station.engine.limit("alerts", 0), wish, SYSTEM_DISK)


def covered(found: list[Piece]) -> list[int]:
    return [at for piece in found for at in range(piece.first, piece.next)]


@given(st.integers(0, COUNT + 50), st.integers(0, COUNT + 50), st.integers(1, 300_000))
def test_a_stretch_is_covered_once(folder: Path, first: int, following: int, size: int) -> None:
    found, at = cut(folder, Wish(first, max(first, following), size))
    assert covered(found) == list(range(first, following))
    assert at == max(first, following)


@given(
    st.integers(0, COUNT), st.integers(0, COUNT), st.integers(1, 100_000), st.integers(1, 5), st.integers(1, 9),
    st.booleans(),
)  # fmt: skip
@example(0, COUNT, 100_000, 1, 9, False)  # a hole ends a piece, and the one behind it is begun already
def test_in_parts_it_is_the_same(
    folder: Path, low: int, high: int, size: int, count: int, looks: int, all: bool
) -> None:
    """However few pieces, or entries of the index, one part may have."""
    begin, end = BASE + timedelta(minutes=min(low, high)), BASE + timedelta(minutes=max(low, high))
    times = None if all else (to_us(begin), to_us(end))
    whole, _ = cut(folder, Wish(0, COUNT, size, times))
    parts: list[Piece] = []
    at = 0
    while at < COUNT:
        some, following = cut(folder, Wish(at, COUNT, size, times, count, looks))
        assert len(some) <= count + 1 and following > at
        parts += some
        at = following
    assert covered(parts) == covered(whole)
    assert {n for n in range(COUNT) if begin <= moment(n) <= end} <= set(covered(whole))


def test_pieces_are_about_as_large_as_they_should_be(folder: Path) -> None:
    stored = sum(file.stat().st_size for file in folder.glob("*.jsonl"))
    for size in (20_000, 64_000, 100_000):
        found, _ = cut(folder, Wish(0, COUNT, size))
        assert sum(piece.bytes for piece in found) == stored
        assert all(size <= piece.bytes < size + 40_000 for piece in found[:-1])
    (everything,), _ = cut(folder, Wish(0, COUNT, 1 << 62))
    assert everything == Piece(0, COUNT, stored)


def test_times_leave_out_most(folder: Path) -> None:
    at = to_us(moment(310))
    found, _ = cut(folder, Wish(0, COUNT, 1, (at, at)))
    assert 310 in covered(found)
    assert len(covered(found)) < COUNT / 3
