"""Lines that are checked together come to the same as each looked at, whatever is wrong with one of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.engine import alike, foreign, likeness
from heliograph.engine.foreign import Batch
from tests.arrivals import HOST2, identity, line, lines, sealed

BYTES_MAX = 10_000
FIRST = 1_000
DATA = [
    b'{"load":17.25,"host":"web-1","up":true}', b'{"load":18.93,"host":"web+~","up":true}',
    b'{"load":-7.25,"host":"web 1","up":true}', b'{"load":17.25,"host":"w\xc3\xa4b1","up":null}',
    b'["\\"","\\u00e4",1e5,-0,0.0,[]]', b'"%b"' % (b"a" * 37), b'{"channel":"other","time":"","a":0}',
]  # fmt: skip
TYPICAL = line(FIRST, extra=b',"partitionkey":"cpu","correlationid":"7-b","n":10', data=DATA[0])


@pytest.fixture(autouse=True, params=["whole", "around"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few lines are checked together, too: those of one length as a whole, or what is around all their payloads."""
    with monkeypatch.context() as patched:
        patched.setattr(foreign, "TOGETHER_BYTES_MIN", 1)
        patched.setattr(alike, "TOGETHER_MIN", 3)
        patched.setattr(alike, "APART_MIN", 3 if request.param == "whole" else 1 << 30)
        patched.setattr(likeness, "_AS_ONE", 4)
        alike._kinds.clear()
        alike._wrappings.clear()
        yield


def together(batch: list[bytes]) -> Batch | None:
    return foreign.read("alerts", foreign.piece_of(batch), BYTES_MAX)


def said(batch: Batch | None) -> Batch | None:
    return None if batch is None else batch._replace(envelopes=None)


def look(batch: list[bytes]) -> alike.Like | None:
    return alike.look("alerts", alike.Cut(b"".join([one + b"\n" for one in batch])), BYTES_MAX)


VALUES = st.builds(
    line, st.integers(0, 4000), st.sampled_from([HOST2, "host3.bbbbbb"]), st.integers(0, 1),
    data=st.sampled_from(DATA), extra=st.sampled_from([b"", b',"subject":"x"', b',"subject":"y"', b',"x":12']),
)  # fmt: skip


def spoilt(good: bytes, at: int, byte: int, how: int) -> bytes:
    """A line with another byte, perhaps with the checksum of that."""
    at %= len(good)
    changed = good[:at] + bytes([byte]) + good[at + 1 :]
    return sealed(changed[:-18]) if how else changed


BAD = st.builds(
    spoilt, VALUES, st.integers(0, 400), st.integers(0, 255) | st.sampled_from(b'"\\0 9/:}{'), st.booleans()
)


@given(st.lists(st.one_of(VALUES, VALUES, VALUES, BAD), min_size=1, max_size=40))
def test_what_is_checked_together_comes_to_the_same_as_each_looked_at(batch: list[bytes]) -> None:
    reasons = [foreign.why_not("alerts", one, BYTES_MAX) for one in batch]
    found = together(batch)
    assert (found is None) == any(reasons)
    left = [one for one, why in zip(batch, reasons, strict=True) if why is None]
    if left:
        found = together(left)
        assert found is not None
        assert said(found) == said(foreign._read("alerts", foreign.piece_of(left), BYTES_MAX))
        assert [(run.origin, run.partition, seq) for run in found.runs for seq in range(run.first, run.next)] == [
            identity(one) for one in left
        ]


BYTES = b'"\\}{[],:. /0159Zagnuz~\x00\x1f\x7f\x80\xc3\xff'


def with_byte(typical: bytes, at: int, byte: int) -> bytes:
    return sealed(typical[:at] + bytes([byte]) + typical[at + 1 : -18])


def another(typical: bytes, at: int) -> bytes:
    """A message that has another byte at that place, if there may be one: so lines differ there already."""
    others = (with_byte(typical, at, byte) for byte in b"27bc")
    return next((one for one in others if foreign.why_not("alerts", one, BYTES_MAX) is None), typical)


def altered(typical: bytes, places: range) -> int:
    """How many of the lines are taken in which a byte is another; those that are messages, and no others."""
    taken = 0
    for at in places:
        others = [*lines(FIRST, FIRST + 4), typical, another(typical, at), *[typical] * 3]
        for byte in BYTES:
            batch = [*others, with_byte(typical, at, byte)]
            found = together(batch)
            assert (found is None) == (foreign.why_not("alerts", batch[-1], BYTES_MAX) is not None), (at, bytes([byte]))
            if found is not None:
                taken += 1
                assert said(found) == said(foreign._read("alerts", foreign.piece_of(batch), BYTES_MAX))
    return taken


def test_a_line_of_which_any_byte_is_another_is_taken_if_and_only_if_it_is_a_message() -> None:
    assert altered(TYPICAL, range(len(TYPICAL) - 18)) > 1_000


@pytest.mark.parametrize(
    "extra",
    [
        b',"subject":"a\\n\\u00e4\\"b"', b',"data_base64":"QUJDRA=="', b',"chann\\u0065l":"alerts"',
        b',"time":"2026-11-15T22:00:07.000000Z"', b',"channel":"alerts"', b',"x":"\xc3\xa4b"',
        b',"x":[-10,0,0.5,10.05,1e10,1.5E-7,true,{"time":"20:30","channel":"a"}]',
    ],
)  # fmt: skip
def test_so_is_one_in_which_something_is_seldom(extra: bytes) -> None:
    typical = line(FIRST, extra=extra)
    at = typical.index(extra)
    assert altered(typical, range(at, at + len(extra))) > 5


def test_most_lines_of_an_origin_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "TOGETHER_MIN", 64)
    batch = [line(seq, data=b'{"value":%d}' % (seq % 1000)) for seq in range(9_000, 12_000)]
    found = look(batch)
    assert found is not None
    assert len(found.rest) < 60  # where their numbers get another digit, there are too few of some kinds
    more = look([line(seq, data=b'{"value":%d}' % (seq % 1000)) for seq in range(10_000, 20_000)])
    assert more is not None
    assert not more.rest  # ten of each thousand are short: too few for a table, and alike around their payloads
    floats = look([line(seq, data=b'{"value":%.*g}' % (3 + seq * 7 % 11, seq / 7)) for seq in range(2_000, 7_000)])
    assert floats is not None
    assert not floats.rest  # of lines of which each has its own length, too


def mixed(count: int, kinds: int, origins: list[str]) -> list[bytes]:
    """Lines whose envelopes differ in length, and in where they are from."""
    return [
        line(
            FIRST + at, origins[at * 5 % 7 % len(origins)], data=b'"%b"' % (b"\xc3\xa4" * (at * 7 % 50)),
            extra=b',"partitionkey":"%b","x":%d' % (b"k" * (at * 3 % 13 % kinds), at % 4),
        )
        for at in range(count)
    ]  # fmt: skip


def test_so_are_those_of_two_kinds_that_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "TOGETHER_MIN", 64)
    for batch in (mixed(600, 2, [HOST2]), mixed(600, 1, [HOST2, "host30.bbbbbb"])):
        found = look(batch)
        assert found is not None
        assert len(found.rest) < 64
        assert said(together(batch)) == said(foreign._read("alerts", foreign.piece_of(batch), BYTES_MAX))


@pytest.mark.parametrize(
    ("kinds", "origins"),
    [(12, [HOST2]), (1, [f"host{number}.bbbbbb" for number in range(1, 8)]), (4, [HOST2, "host3.bbbbbb"])],
)
def test_where_kinds_are_many_no_time_is_lost_on_any(
    monkeypatch: pytest.MonkeyPatch, kinds: int, origins: list[str]
) -> None:
    monkeypatch.setattr(alike, "TOGETHER_MIN", 64)
    tried = []
    monkeypatch.setattr(alike._Looking, "_around", lambda _, wrapping, numbers: tried.append(wrapping) or numbers[:0])
    batch = mixed(600, kinds, origins)
    assert said(together(batch)) == said(foreign._read("alerts", foreign.piece_of(batch), BYTES_MAX))
    assert not tried


def test_nor_on_more_if_the_first_is_a_rare_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "TOGETHER_MIN", 64)
    tried = []
    around = alike._Looking._around

    def count(*arguments: Any) -> Any:
        tried.append(arguments[1])
        return around(*arguments)

    monkeypatch.setattr(alike._Looking, "_around", count)
    batch = [line(FIRST + at, extra=b',"h%02d":1' % (at % 20), data=b'"%b"' % (b"x" * (at % 7))) for at in range(2_000)]
    assert said(together(batch)) == said(foreign._read("alerts", foreign.piece_of(batch), BYTES_MAX))
    assert len(tried) == 1


def test_one_that_is_too_long_is_refused_among_others_that_are_alike() -> None:
    sizes = [20] * 10 + [BYTES_MAX - len(line(FIRST, data=b'""')) + more for more in (0, 1)] + [20] * 10
    batch = [line(FIRST + at, data=b'"%b"' % (b"x" * size)) for at, size in enumerate(sizes)]
    stored, refused = foreign.read_all("alerts", [foreign.piece_of(batch)], BYTES_MAX)
    assert [at for at, _ in refused] == [11]
    assert stored is not None
    assert stored.total == 21


def test_times_behind_the_payload_are_read_where_they_stand() -> None:
    batch = []
    for at, one in enumerate(lines(FIRST, FIRST + 50)):
        begin = one.index(b',"time":')
        end = one.index(b',"channel":')
        data = b',"data":"%b"' % (b"x" * (at % 7))
        batch.append(sealed(one[:begin] + one[end:-18].replace(b',"data":1', data + one[begin:end])))
    assert foreign.why_not("alerts", batch[0], BYTES_MAX) is None
    found = together(batch)
    assert found is not None
    assert said(found) == said(foreign._read("alerts", foreign.piece_of(batch), BYTES_MAX))


def test_what_is_known_of_long_lines_does_no_harm_to_short_ones() -> None:
    long = [sealed(one[:-18].replace(b',"origin":', b',"x":"%b","origin":' % (b"x" * 5_000))) for one in lines(1, 9)]
    assert together(long) is not None
    assert together(lines(1, 9)) is not None


FRAGMENTS = [
    b"[", b"]", b"{", b"}", b'"', b",", b":", b" ", b"  ", b"\t", b"\\", b"1", b"-", b".5", b"e", b"a", b"null", b'"a"',
    b'"a":', b"\xc3", b"\xa4", b"\x1f", b'["', b'"]', b"[1", b"2]", b'{"a":1', b"[[", b"]]", b'",', b',"', b'"data":1',
]  # fmt: skip
PAYLOADS = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map(b"".join) | st.sampled_from(DATA)


@given(st.lists(PAYLOADS, min_size=3, max_size=12))
def test_payloads_that_would_be_values_only_together_are_none(payloads: list[bytes]) -> None:
    batch = [line(FIRST + at, data=payload) for at, payload in enumerate(payloads)]
    reasons = [foreign.why_not("alerts", one, BYTES_MAX) for one in batch]
    typical = [line(FIRST + 100 + at) for at in range(3)]
    assert (together([*typical, *batch]) is None) == any(reasons)


@pytest.mark.parametrize(
    "payloads",
    [
        (b"[1", b"2]", b"3,4"), (b'"a', b'b"', b"1,2"), (b'  "a', b'",1'), (b'  "ab', b'",", "'), (b"1 ", b" 2"),
        (b"", b"1,2"), (b"1", b""), (b"1]", b"[2"), (b"1],[2", b"3"), (b'{"a":1', b'"b":2}', b"1,1"),
        (b'"\xc3', b'\xa4"'), (b'1,"data":2', b"3"), (b"[" * 2_000 + b"]" * 2_000, b"1"),
    ],
)  # fmt: skip
def test_nor_are_these(payloads: tuple[bytes, ...]) -> None:
    typical = [line(FIRST + at) for at in range(20)]
    batch = [line(FIRST + 20 + at, data=payload) for at, payload in enumerate(payloads)]
    refused = [at for at, one in enumerate(batch) if foreign.why_not("alerts", one, BYTES_MAX) is not None]
    found = together([*typical, *batch])
    assert (found is None) == bool(refused)
    stored, reasons = foreign.read_all("alerts", [foreign.piece_of([*typical, *batch])], BYTES_MAX)
    assert [at - 20 for at, _ in reasons] == refused
    assert stored is not None
    assert stored.total == 20 + len(batch) - len(refused)


@pytest.mark.parametrize("at", range(-18, 0))
def test_a_wrong_checksum_among_many_is_noticed(at: int) -> None:
    batch = lines(FIRST, FIRST + 50)
    spoiled = bytearray(batch[30])
    spoiled[at] ^= 1
    batch[30] = bytes(spoiled)
    assert together(batch) is None
    like = look(batch)
    assert like is None or batch[30] + b"\n" in like.rest


def test_two_wrong_checksums_do_not_make_a_right_one() -> None:
    batch = lines(FIRST, FIRST + 50)
    for at in (10, 11):  # the same difference in both
        batch[at] = batch[at].replace(b'"data":1', b'"data":2')
    assert together(batch) is None


def test_lines_of_another_hour_or_origin_are_of_another_kind() -> None:
    first = lines(FIRST, FIRST + 50)
    assert together(first) is not None
    later = [sealed(one[:-18].replace(b"T23:", b"T22:")) for one in first]
    found = together(later)
    assert found is not None
    assert found.max_us < 1_794_783_600_000_000  # 2026-11-15T23:00Z
    assert found.envelopes is None, "what was known of the hour before is no obstacle"
    both = together([*first, *lines(0, 50, "host4.cccccc")])
    assert both is not None
    assert [run.origin for run in both.runs] == [HOST2, "host4.cccccc"]


def test_a_day_that_is_none_is_no_time_because_others_are() -> None:
    batch = lines(FIRST, FIRST + 50)
    for wrong in (b"2026-11-31T", b"2026-13-15T", b"2026-11-15T24"):
        one = sealed(batch[20][:-18].replace(b"2026-11-15T23"[: len(wrong)], wrong))
        assert together([*batch[:20], one, *batch[21:]]) is None


def test_blank_lines_are_counted_and_left_out() -> None:
    batch = [one + b"\n" for one in lines(FIRST, FIRST + 50)]
    piece = foreign.split(b"\n" + b"".join(batch[:20]) + b"\n\n" + b"".join(batch[20:]) + b"\n")
    assert piece.count == 54
    assert piece.without_blanks().data == b"".join(batch)


def test_what_was_checked_together_can_be_decoded() -> None:
    batch = [line(seq, extra=b',"partitionkey":"k%d"' % (seq % 3)) for seq in range(FIRST, FIRST + 50)]
    found = together(batch)
    assert found is not None
    assert found.envelopes is None
    assert found.ids([49]) == [f"{HOST2}-0-{FIRST + 49}"]
    assert found.ids([3, 49]) == [f"{HOST2}-0-{FIRST + 3}", f"{HOST2}-0-{FIRST + 49}"]
    assert [one.partitionkey for one in found.decoded()] == [f"k{seq % 3}" for seq in range(FIRST, FIRST + 50)]
    part = found.part([7, 20, 9])
    assert part.data == b"".join([batch[at] + b"\n" for at in (7, 20, 9)])
    assert found.min_us < part.min_us < part.max_us < found.max_us


def test_pieces_are_read_together_and_each_alone_if_something_is_wrong_with_one() -> None:
    batch = [line(seq, data=b'{"value":%d}' % (seq % 100)) for seq in range(FIRST, FIRST + 300)]
    cuts = [(0, 70), (70, 71), (71, 180), (180, 300)]
    pieces = [foreign.piece_of(batch[first:following]) for first, following in cuts]
    found, refused = foreign.read_all("alerts", pieces, BYTES_MAX)
    assert not refused
    assert found is not None
    assert found.envelopes is None
    assert said(found) == said(foreign._read("alerts", foreign.piece_of(batch), BYTES_MAX))
    batch[90] = batch[90].replace(b"host2", b"host3")
    pieces = [foreign.piece_of(batch[first:following]) for first, following in cuts]
    found, refused = foreign.read_all("alerts", pieces, BYTES_MAX)
    left = batch[:90] + batch[91:]
    assert [at for at, _ in refused] == [90]
    assert said(found) == said(foreign._read("alerts", foreign.piece_of(left), BYTES_MAX))


FEW_AND_MANY = """
import sys
from heliograph.engine import foreign
from tests.arrivals import lines
for count in (20, 2_000):
    assert foreign.read_all("alerts", [foreign.piece_of(lines(0, count))] * 2, 10_000)[0]
    print("numpy" in sys.modules)
"""


def test_for_a_few_lines_numpy_is_not_imported() -> None:
    done = subprocess.run([sys.executable, "-c", FEW_AND_MANY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_without_numpy_the_same_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = lines(FIRST, FIRST + 200)
    found = together(batch)
    monkeypatch.setattr(foreign, "together", lambda: None)
    alone = together(batch)
    assert found is not None
    assert alone is not None
    assert found.envelopes is None
    assert alone.envelopes is not None
    assert said(found) == said(alone)
