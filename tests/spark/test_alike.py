"""Lines that are alike are cut as all others are, and nothing is taken for alike that is not."""

from __future__ import annotations

from uuid import UUID

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.spark.alike import KINDS_MAX, alike
from heliograph.spark.cutting import PADDING, cut
from heliograph.spark.rows import Piece, Place, to_batch
from tests.spark.reading_back import wanted

ID = "0192a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
MOMENT = "2026-11-15T20:30:01.123456Z"
NAMES = ("id", "source", "type", "time")


def line(
    id: str = ID, source: str = "host1", type: str = "t", rest: str = ',"data":1', channel: str = "alerts",
    time: str = MOMENT,
) -> bytes:  # fmt: skip
    text = (
        f'{{"specversion":"1.0","id":"{id}","source":"{source}","type":"{type}","time":"{time}","channel":"{channel}"'
    )
    body = (text + rest + ',"origin":"host1.k3f9q2","originseq":"0/1"').encode()
    return b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body))


def values(text: bytes, found: object) -> list[tuple[bytes, ...]]:
    spans = [found.spans[name] for name in NAMES]  # type: ignore[attr-defined]
    return [tuple(text[span.start[at] : span.end[at]] for span in spans) for at in range(len(spans[0].start))]


RESTS = (
    ',"data":1', ',"data":{"a":"x\\\\"y"}', ',"partitionkey":"k","data":[]', ',"correlationid":"c","data":"d"',
    ',"traceparent":"00-1","data":2', ',"subject":"s","data":3', ',"producer":"p","producerseq":"1/1","data":4',
)  # fmt: skip
texts = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32), max_size=12)


@given(
    st.lists(
        st.builds(
            line, id=st.uuids().map(str), source=texts, type=st.sampled_from(["t", "u", "com.example.v1"]),
            rest=st.sampled_from(RESTS),
        ),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_they_are_cut_as_by_their_quotes(lines: list[bytes]) -> None:
    text = b"".join(lines) + PADDING
    found, known = alike(text), cut(text, behind=False)
    if found is None:
        assert len({one[64:110] for one in lines}) > 1, "one kind is always alike"
        return
    assert found.starts.tolist() == known.starts.tolist()
    assert found.ends.tolist() == known.ends.tolist()
    assert not found.odd.any()
    assert values(text, found) == values(text, known)


def test_several_kinds_have_their_own_places_up_to_a_limit() -> None:
    kinds = [line(str(UUID(int=n)), source="s" * n, type=f"type{n % 3}") for n in range(1, KINDS_MAX + 2)]
    few = b"".join(kinds[:KINDS_MAX] * 3) + PADDING
    found = alike(few)
    assert found is not None
    assert values(few, found) == values(few, cut(few, behind=False))
    assert alike(b"".join(kinds) + PADDING) is None


@pytest.mark.parametrize(
    "other",
    [
        b"\n",
        b"   \n",
        b"{}\n",
        line(id=ID[:20] + '","x":"' + ID[27:]),  # another attribute where the id goes on elsewhere
        line(id=ID[:20] + '\\"' + ID[22:]),
        line(id=ID[:20] + "\\u0061" + ID[26:]),
        line(source='h","x"'),
        line(rest=',"level":3,"data":1'),
        line(rest="garbage"),
        line(rest=""),
        line(time="2026-11-15T20:30:01Z"),
        line(time="2026-11-15T20:30:01.12345+Z"[:26] + "+"),
        line()[:120] + b"\n",
        line()[:-40] + b"\n",
        b"x" * 400 + b"\n",
        line().replace(b'"specversion":"1.0"', b'"specversion":"1.1"'),
        line().replace(b',"source"', b', "source"'),
    ],
)
def test_one_that_differs_is_not_taken_for_alike(other: bytes) -> None:
    """It is read as it would be without: by itself, or not at all."""
    text = line() + other + line(id=ID[::-1])
    found = alike(text + PADDING)
    known = cut(text + PADDING, behind=False)
    if found is not None:
        assert other == line()[:-40] + b"\n", "only what is behind the channel is not looked at"
        assert not known.odd.any()
    columns = wanted("id STRING, source STRING, type STRING, time TIMESTAMP")
    batch, _ = to_batch(Piece(0, text), Place("alerts", 0), columns)
    rows = batch.to_pylist()
    assert [row["id"] for row in (rows[0], rows[-1])] == [ID, ID[::-1]]


def test_ids_may_be_any_that_are_plain() -> None:
    for id in ("order-00017", "a" * 200, "abcdefgh.12-3:x", "0123-4567"):
        text = line(id=id) + line(id=id[::-1]) + PADDING
        found = alike(text)
        assert found is not None, id
        assert values(text, found) == values(text, cut(text, behind=False))
    for id in ("short", "ORDER-00017", "with space!", "a#b$c%d(e)", '"quoted"-id'):
        assert alike(line(id=id) + PADDING) is None, id
