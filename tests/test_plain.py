"""Plain data as JSON. What JSON cannot hold is tried in test_payloads.py, through every type."""

from __future__ import annotations

import pytest

from heliograph.errors import InvalidMessage
from heliograph.plain import encode, encode_batch


def test_a_batch_is_encoded_together_or_has_to_be_looked_at_one_by_one() -> None:
    assert encode_batch([{"a": 1}, None]) == ([b'{"a":1}', b"null"], 11)
    assert encode_batch([1.0, float("inf")]) is None
    assert encode_batch([object()]) is None


def test_what_json_cannot_hold_is_said_with_its_place() -> None:
    with pytest.raises(InvalidMessage, match=r"holds inf at \$.a\[1\]"):
        encode({"a": [1, float("inf")]})
