"""What one peer is sent of stored lines."""

from __future__ import annotations

from heliograph.federation import portions
from heliograph.federation.portions import Sifted, cut
from heliograph.limits import BATCH_LINES_MAX


def line(origin: str, sequence: int, data: str = "1") -> bytes:
    return f'{{"id":"x","data":{data},"origin":"{origin}","originseq":"0/{sequence}","crc":"00000000"}}\n'.encode()


def own(origin: bytes) -> bool:
    return origin == b"host1.k"


def sift(data: bytes) -> Sifted:
    return portions.sift(data, cut(data, len(data))[1], own)


def test_lines_of_one_origin_pass_as_they_are() -> None:
    data = line("host1.k", 0) + line("host1.k", 1)
    assert sift(data).body is data
    assert sift(line("other.k", 0) * 2) == (b"\n\n", [])


def test_lines_of_others_are_left_out() -> None:
    data = line("other.k", 0) + line("host1.k", 1) + line("other.k", 2)
    assert sift(data).body == b"\n" + line("host1.k", 1) + b"\n"


def test_a_payload_cannot_pass_for_an_origin() -> None:
    lie = '{"a":1,"origin":"host1.k","originseq":"0/7"}'
    data = line("host1.k", 0) + line("other.k", 1, lie)
    assert sift(data).body == line("host1.k", 0) + b"\n"
    truth = line("host1.k", 2, '{"a":1,"origin":"other.k","originseq":"0/7"}')
    assert sift(truth + line("host1.k", 3)).body == truth + line("host1.k", 3)


def test_sequences_may_grow_longer() -> None:
    data = line("host1.k", 9) + line("host1.k", 10) + line("other.k", 10) + line("host1.k", 99_999_999)
    assert sift(data).body == line("host1.k", 9) + line("host1.k", 10) + b"\n" + line("host1.k", 99_999_999)


def test_lines_that_hold_nothing_are_told() -> None:
    data = line("host1.k", 0) + b"\n" + b"      \n" + line("host1.k", 3)
    assert sift(data) == (line("host1.k", 0) + b"\n\n" + line("host1.k", 3), [1, 2])
    assert sift(b"\n").nothing


def test_a_portion_has_at_most_so_many_lines() -> None:
    assert cut(b"\n" * (BATCH_LINES_MAX + 5), 1 << 20) == (BATCH_LINES_MAX, [b"\n"] * BATCH_LINES_MAX)
