"""Whom a message is for, in its envelope and read from it."""

from __future__ import annotations

import pytest

from heliograph.addressee import EVERYBODY, Addressee, is_meant
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
    assert is_meant(line, None, "host1")
    assert is_meant(line, "pager", "host1")


def test_a_line_means_a_subscription_of_the_station_that_published_it() -> None:
    line = b'{"redrivefor":"pager","origin":"host1.k3f9q2"}'
    assert is_meant(line, "pager", "host1")
    assert not is_meant(line, "pager", "hub")
    assert not is_meant(line, "mailer", "host1")
    assert not is_meant(line, None, "host1")
    assert is_meant(b'{"redrivefor":"pager"}', "pager", "host1"), "who does not say where it is from is not elsewhere"


def test_nobody_sets_or_filters_it_as_a_header() -> None:
    with pytest.raises(InvalidMessage):
        attributes(None, None, None, None, {"redrivefor": "pager"})
    with pytest.raises(ConfigError):
        Filter(headers={"redrivefor": "pager"})


def test_compaction_does_not_see_the_key_of_what_is_for_one() -> None:
    lines = b'{"partitionkey":"a","data":1}\n{"partitionkey":"a","data":0,"redrivefor":"pager"}\n'
    assert [found.offset for found in keyed(lines, 0)] == [0]
    assert [found.offset for found in keyed(lines.replace(b'"pager"', b"7"), 0)] == [0, 1]
