"""Reading many lines at once comes to the same as looking at each."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from heliograph.engine import foreign
from heliograph.engine.foreign import Run
from heliograph.engine.origins import station_of
from heliograph.limits import PARTITION_DIGITS, PARTITIONS_MAX
from tests.arrivals import HOST2, identity, line, lines, sealed

BYTES_MAX = 10_000
GOOD = st.builds(
    line, st.integers(0, 120), st.sampled_from([HOST2, "host3.b1", "a.b.c.d9"]), st.integers(0, 12),
    data=st.sampled_from([b"1", b'"\xc3\xa4"', b'"\\u00e4"', b"null", b'{"origin":"x.y","originseq":"0/1"}']),
)  # fmt: skip


def spoilt(good: bytes, at: int, how: int, byte: int) -> bytes:
    """A line with a byte changed, left out or added; perhaps with a checksum that fits all the same."""
    at %= len(good)
    changed = [
        good[:at] + bytes([byte]) + good[at + 1 :], good[:at] + good[at + 1 :], good[:at] + bytes([byte]) + good[at:]
    ][how % 3]  # fmt: skip
    return sealed(changed[:-18]) if how > 2 else changed


BAD = st.builds(spoilt, GOOD, st.integers(0, 1000), st.integers(0, 5), st.integers(0, 255))


@given(st.lists(st.one_of(GOOD, BAD, st.binary(max_size=40)), min_size=1, max_size=8))
def test_a_batch_is_read_if_and_only_if_each_line_could_be(batch: list[bytes]) -> None:
    reasons = [foreign.why_not("alerts", one, BYTES_MAX) for one in batch]
    found = foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX)
    assert (found is None) == any(reasons)
    left = [one for one, why in zip(batch, reasons, strict=True) if why is None]
    if left:
        found = foreign.read("alerts", foreign.piece_of(left), BYTES_MAX)
        assert found is not None
        assert [(run.origin, run.partition, seq) for run in found.runs for seq in range(run.first, run.next)] == [
            identity(one) for one in left
        ]
        assert [run.at for run in found.runs] == sorted({run.at for run in found.runs})
        assert station_of(found.runs[0].origin)


def test_lines_that_are_messages_only_together_are_none() -> None:
    env = line(0).partition(b',"data"')[0]

    def ended(body: bytes, seq: int) -> bytes:
        return sealed(body + b',"origin":"%b","originseq":"0/%d"' % (HOST2.encode(), seq))

    # one message on two lines, and two on one: as many messages as lines
    batch = [ended(env + b',"data":[{"a":1', 0), ended(b"]", 1), ended(ended(env, 2) + env, 2), *lines(3, 100)]
    assert foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX) is None
    assert [at for at, one in enumerate(batch) if foreign.why_not("alerts", one, BYTES_MAX)] == [0, 1, 2]


def test_an_id_or_a_key_that_nobody_could_have_published_is_refused() -> None:
    long_key = line(1, extra=b',"partitionkey":"%b"' % (b"k" * ((64 << 10) + 1)))
    long_id, no_id = (sealed(line(2).replace(b"host2.aaaaaa-0-2", odd)[:-18]) for odd in (b"i" * 1025, b""))
    for odd, why in ((long_key, "$.partitionkey"), (long_id, "$.id"), (no_id, "$.id")):
        assert why in str(foreign.why_not("alerts", odd, 1 << 20))
        assert foreign.read("alerts", foreign.piece_of([odd]), 1 << 20) is None
        batch, refused = foreign.read_all("alerts", [foreign.piece_of([*lines(3, 100), odd, line(0)])], 1 << 20)
        assert batch is not None and batch.total == 98
        assert [at for at, _ in refused] == [97]


def test_a_partition_that_no_channel_has_is_refused_where_it_arrives() -> None:
    for partition in (0, 9, 10, 99, 100, 999, 1000, 1009, 1010, 1019, 1020, 1023):
        assert foreign.why_not("alerts", line(0, partition=partition), BYTES_MAX) is None, partition
    for partition in (1024, 1029, 1030, 1100, 2000, 9999, 10_000):
        odd = line(0, partition=partition)
        assert foreign.why_not("alerts", odd, BYTES_MAX), partition
        for batch in ([odd], [*lines(1, 100), odd]):
            assert foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX) is None
    numbers = [number for number in range(12_000) if re.fullmatch(PARTITION_DIGITS, b"%d" % number)]
    assert numbers == list(range(PARTITIONS_MAX))


FIRSTS = st.integers(0, 2000) | st.sampled_from([9_990, 19_850, 99_999, 1_234_567, 10**9 - 150])


@given(FIRSTS, st.integers(1, 300), st.data())
def test_consecutive_lines_are_one_run(first: int, count: int, data: st.DataObject) -> None:
    batch = lines(first, first + count)
    found = foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX)
    assert found is not None
    assert found.runs == [Run(HOST2, 0, first, first + count, 0)]
    at = data.draw(st.integers(0, count - 1))
    batch[at] = line(first + at, "host3.b1")
    found = foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX)
    assert found is not None
    assert len(found.runs) == (1 if count == 1 else 2 if at in (0, count - 1) else 3)


@given(st.lists(FIRSTS, min_size=1, max_size=4), st.integers(1, 30))
def test_pieces_come_to_the_same_as_one(firsts: list[int], count: int) -> None:
    batches = [lines(first, first + count) for first in [*firsts, firsts[-1] + count]]
    found = [foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX) for batch in batches]
    whole = [line for batch in batches for line in batch]
    together = foreign.read("alerts", foreign.piece_of(whole), BYTES_MAX)
    assert together is not None
    merged = foreign.merged([batch for batch in found if batch])
    assert merged._replace(envelopes=None) == together._replace(envelopes=None)
    assert merged.decoded() == together.decoded()


def test_a_swap_in_the_middle_is_noticed() -> None:
    batch = lines(0, 10)
    batch[4], batch[5] = batch[5], batch[4]
    found = foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX)
    assert found is not None
    assert [(run.first, run.next, run.at) for run in found.runs] == [(0, 4, 0), (5, 6, 4), (4, 5, 5), (6, 10, 6)]


def test_times_of_a_part_are_its_own() -> None:
    batch = lines(0, 50)
    found = foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX)
    assert found is not None
    part = found.part([7, 20, 9])
    assert part.data == b"".join([batch[at] + b"\n" for at in (7, 20, 9)])
    assert found.min_us < part.min_us < part.max_us < found.max_us
    alone = foreign.read("alerts", foreign.split(part.data), BYTES_MAX)
    assert alone is not None
    assert (alone.min_us, alone.max_us) == (part.min_us, part.max_us)
