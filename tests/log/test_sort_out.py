"""Damage may eat newlines and make new ones; every intact line keeps its offset all the same."""

from __future__ import annotations

import google_crc32c
import pytest

from heliograph.log import lines

FIRST, COUNT = 100, 8


def stretch() -> bytes:
    bodies = [b'{"id":"%d"' % number for number in range(COUNT)]
    place = lines.origin_place(b"host1.k3f9q2", 0)
    return lines.stamp(bodies, [google_crc32c.value(body) for body in bodies], place, FIRST)


@pytest.mark.parametrize("expected_next", [None, FIRST + COUNT])
@pytest.mark.parametrize("damage", [b"x", b"\0", b"\n", b" ", b"\n\n\n", b" \n \n"], ids=repr)
def test_damage_anywhere_costs_only_the_lines_it_touches(damage: bytes, expected_next: int | None) -> None:
    whole = stretch()
    known = whole.split(b"\n")
    for at in range(len(whole) - len(damage) + 1):
        data = whole[:at] + damage + whole[at + len(damage) :]
        touched = {whole[:place].count(b"\n") for place in range(at, at + len(damage))}
        touched |= {number + 1 for number in touched}  # a newline that is eaten costs the line behind it, too
        found = lines.sort_out(data, FIRST, lines.Home("host1", 0), expected_next)
        assert all(known[offset - FIRST] == line for offset, line in found.lines)
        kept = {offset - FIRST for offset, _ in found.lines}
        assert kept >= set(range(COUNT)) - touched
        if expected_next is not None:
            lost = {offset - FIRST for low, high, _ in found.missing for offset in range(low, high)}
            assert lost == set(range(COUNT)) - kept


def test_blank_lines_between_damaged_ones_are_not_reported_as_lost() -> None:
    known = stretch().split(b"\n")
    known[2], known[3], known[4] = b"damaged", b"    ", b"damaged, too"
    found = lines.sort_out(b"\n".join(known), FIRST, lines.Home("host1", 0))
    assert [(low - FIRST, high - FIRST) for low, high, _ in found.missing] == [(2, 3), (4, 5)]
    assert found.whole
