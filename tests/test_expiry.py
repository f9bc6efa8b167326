"""When a message expires, in its envelope and read from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from heliograph.errors import InvalidMessage
from heliograph.expiry import NEVER, Expiry
from heliograph.message import attributes, decode_line, decode_lines

LINE = b'{"specversion":"1.0","id":"1","source":"s","type":"t","time":"2026-11-15T20:30:01Z","channel":"c"%b,"data":1}'


def line(expires: bytes) -> bytes:
    return LINE % (b',"expires":' + expires if expires else b"")


def test_what_is_written_is_read_again() -> None:
    expiry = Expiry.after(1_794_774_601_123_456, timedelta(seconds=5))
    written = attributes(None, None, None, None, {"region": "eu", "expires": expiry})  # type: ignore[dict-item]
    assert written == b',"region":"eu","expires":"2026-11-15T20:30:06.123456Z"'
    assert Expiry.read("2026-11-15T20:30:06.123456Z") == expiry


def test_nobody_but_the_station_sets_it() -> None:
    with pytest.raises(InvalidMessage, match="expires"):
        attributes(None, None, None, None, {"expires": "2026-11-15T20:30:06Z"})


@pytest.mark.parametrize("value", [b'"tomorrow"', b"5", b"{}", b"true", b'"99999-01-01T00:00:00Z"', b'""'])
def test_what_others_mean_by_that_name_never_expires_and_is_delivered(value: bytes) -> None:
    message = decode_line(line(value), 0, 0, None)
    assert message.expires == NEVER
    assert decode_lines(line(value) + b"\n", 0, 1, 0, None) is not None


def test_a_time_without_a_zone_is_utc() -> None:
    assert Expiry.read("2026-11-15T20:30:06") == datetime(2026, 11, 15, 20, 30, 6, tzinfo=UTC)


def test_decoding_tells_whether_any_of_a_batch_may_expire() -> None:
    plain, expiring = line(b""), line(b'"2026-11-15T20:30:06Z"')
    none = decode_lines(plain + b"\n" + plain + b"\n", 0, 2, 0, None)
    assert none is not None
    assert not none[0].lines.expiring
    for decoder in (None, lambda _: None):
        some = decode_lines(plain + b"\n" + expiring + b"\n", 0, 2, 0, decoder)
        assert some is not None
        assert [message.lines.expiring for message in some] == [True, True]
        assert [message.expires is None for message in some] == [True, False]
        assert "expires" not in some[1].headers
