from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.federation import frames
from heliograph.federation.resume import SET_BYTES_MAX, compare, ends_from, fitting, fitting_ends, plan, portions
from heliograph.limits import LINK_HEADER_BYTES_MAX
from heliograph.seen import SeenSet

OWN = "host1.k3f9q2"


def seen(**origins: list[tuple[int, int]]) -> SeenSet:
    result = SeenSet()
    for origin, intervals in origins.items():
        for first, following in intervals:
            result.add(origin.replace("_", "."), 0, first, following)
    return result


def starts(have: SeenSet, covered: SeenSet, position: int, *, first: int = 0) -> tuple[int, SeenSet]:
    made = plan(own=OWN, have=have, covered=covered, positions={0: position}, firsts={0: first}, locate=None)
    return made.starts[0], made.gone


def test_a_stream_begins_at_the_earlier_of_position_and_first_lack() -> None:
    have = seen(host1_k3f9q2=[(0, 100)])
    assert starts(have, seen(host1_k3f9q2=[(0, 70)]), 70)[0] == 70
    assert starts(have, seen(host1_k3f9q2=[(0, 40)]), 70)[0] == 40, "the receiver lost something"
    assert starts(have, seen(host1_k3f9q2=[(0, 70)]), 10)[0] == 10, "the sender lost its position"
    assert starts(have, seen(host1_k3f9q2=[(0, 50), (51, 100)]), 100)[0] == 50
    assert starts(have, SeenSet(), 100)[0] == 0, "the receiver was wiped"


def test_sequences_that_nobody_has_are_no_lack() -> None:
    """Offsets that hold messages of others are holes in our own sequences."""
    have = seen(host1_k3f9q2=[(0, 10), (20, 30)])
    assert starts(have, have, 30)[0] == 30


def test_what_is_trimmed_is_told_and_not_waited_for() -> None:
    start, gone = starts(seen(host1_k3f9q2=[(0, 100)]), seen(host1_k3f9q2=[(0, 40)]), 70, first=60)
    assert start == 60
    assert gone == seen(host1_k3f9q2=[(40, 60)])


def test_messages_of_other_origins_are_looked_for() -> None:
    asked: list[SeenSet] = []

    def locate(lacking: SeenSet) -> tuple[dict[int, int], SeenSet]:
        asked.append(lacking)
        return {1: 5}, seen(host2_x=[(3, 4)])

    made = plan(
        own=OWN,
        have=seen(host1_k3f9q2=[(0, 9)], host2_x=[(0, 4)], host1_older=[(0, 2)]),
        covered=seen(host1_k3f9q2=[(0, 9)]),
        positions={0: 12, 1: 12},
        firsts={0: 0, 1: 0},
        locate=locate,
    )
    assert asked == [seen(host2_x=[(0, 4)], host1_older=[(0, 2)])]
    assert made.starts == {0: 12, 1: 5}
    assert made.gone == seen(host2_x=[(3, 4)])
    assert made.lacking == seen(host2_x=[(0, 3)], host1_older=[(0, 2)])


def test_origins_that_may_not_be_relayed_are_no_reason_to_begin_earlier() -> None:
    made = plan(
        own=OWN, have=seen(host1_k3f9q2=[(0, 9)], host2_x=[(0, 4)]), covered=seen(host1_k3f9q2=[(0, 9)]),
        positions={0: 13}, firsts={0: 0}, locate=None, passes=lambda origin: origin == OWN,
    )  # fmt: skip
    assert made.starts == {0: 13}
    assert not len(made.lacking)


def test_ends_tell_a_restored_directory_from_one_that_only_lags() -> None:
    ours = {(OWN, 0): (41, "id41"), ("host2.x", 0): (7, "id7")}
    assert compare("host1", ours, ours) == ([], [], [])
    assert [doubt.sequence for doubt in compare("host1", ours, {(OWN, 0): (50, "z")}).beyond] == [50]
    assert [doubt.id for doubt in compare("host1", ours, {(OWN, 0): (41, "z")}).different] == ["z"]
    assert [doubt.sequence for doubt in compare("host1", ours, {(OWN, 0): (30, "id30")}).unsure] == [30]
    assert compare("host1", ours, {("host2.x", 0): (90, "y")}) == ([], [], []), "others may have more of others"
    assert compare("host1", ours, {("host9.x", 0): (1, "y"), (OWN, 7): (1, "y")}) == ([], [], [])


def test_ends_travel() -> None:
    ends = {(OWN, 0): (41, "id41"), (OWN, 12): (3, "id3"), ("host2.x", 0): (7, "id7")}
    assert ends_from(fitting_ends(ends)) == ends
    with pytest.raises(ValueError, match="partition"):
        ends_from({OWN: {"zero": (1, "id")}})


def test_ends_that_no_frame_may_name_are_left_out() -> None:
    ends = {(OWN, 0): (41, "i" * 256), (OWN, 1): (3, ""), (OWN, 2): (7, "i" * 255)}
    assert ends_from(fitting_ends(ends)) == {(OWN, 2): (7, "i" * 255)}


SETS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 500), st.integers(1, 5)), max_size=60)


@given(SETS, st.integers(200, 3_000))
def test_a_set_that_does_not_fit_is_told_in_part_and_gaps_in_parts(
    what: list[tuple[int, int, int, int]], budget: int
) -> None:
    whole = SeenSet()
    for origin, partition, first, length in what:
        whole.add(f"host{origin}.k3f9q2", partition, first, first + length)
    told = fitting(whole, budget)
    assert not len(told.difference(whole))
    if len(told) < len(whole) or told != whole:
        assert len(frames.encode(frames.Gap(stream=1, gaps=told.to_json()))[0]) <= budget + 100
    again = SeenSet()
    for portion in portions(whole, budget):
        assert len(frames.encode(frames.Gap(stream=1, gaps=portion.to_json()))[0]) <= budget + 100
        again.update(portion)
    assert again == whole


@pytest.mark.parametrize("letter", ["i", "\x01", "\U0001f600"])
def test_the_largest_sets_fit_a_header_together(letter: str) -> None:
    large = SeenSet()
    for origin in range(400):
        for interval in range(50):
            large.add("h" * 180 + f"{origin}.k3f9q2", 1023, 10**17 + interval * 10, 10**17 + interval * 10 + 1)
    ends = {("h" * 190 + f"{n}", 1023): (10**18, letter * 200) for n in range(5_000)}
    told = fitting(large)
    assert 0 < len(told) < large.count
    said = frames.Resume(stream=1, window=1, seen=told.to_json(), ends=fitting_ends(ends))
    assert 3 * SET_BYTES_MAX <= LINK_HEADER_BYTES_MAX
    assert len(frames.encode(said)[0]) <= LINK_HEADER_BYTES_MAX
