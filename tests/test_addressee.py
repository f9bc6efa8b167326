"""Whom a message is for, in its envelope and read from it."""

from __future__ import annotations

import pytest

from heliograph.addressee import EVERYBODY, Addressee, addressee_of
from heliograph.errors import ConfigError, InvalidMessage
from heliograph.filters import Filter
from heliograph.log.keys import keyed
from heliograph.message import attributes


def test_a_name_means_one_and_no_name_everybody() -> None:
    assert Addressee("pager").means("pager")
    assert not Addressee("pager").means("Pager")
    assert not Addressee("pager").means(None)
    assert EVERYBODY.means(None)
    assert EVERYBODY.means("pager")


@pytest.mark.parametrize("line", [b"", b"broken", b"[]", b'{"redrivefor":1}', b'{"redrivefor":null}', b'{"data":1}'])
def test_a_line_that_names_nobody_is_for_everybody(line: bytes) -> None:
    assert addressee_of(line) == EVERYBODY


def test_nobody_sets_or_filters_it_as_a_header() -> None:
    with pytest.raises(InvalidMessage):
        attributes(None, None, None, None, {"redrivefor": "pager"})
    with pytest.raises(ConfigError):
        Filter(headers={"redrivefor": "pager"})


def test_compaction_does_not_see_the_key_of_what_is_for_one() -> None:
    lines = b'{"partitionkey":"a","data":1}\n{"partitionkey":"a","data":0,"redrivefor":"pager"}\n'
    assert [found.offset for found in keyed(lines, 0)] == [0]
    assert [found.offset for found in keyed(lines.replace(b'"pager"', b"7"), 0)] == [0, 1]
