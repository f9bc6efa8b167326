"""Damage inside sealed segments: readers get everything else, and are told exactly what is missing."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"
COUNT = 300


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


@pytest.fixture
def pristine(opened: Opener, root: Path) -> Path:
    """A log of several sealed segments; station closed."""
    with opened(segment_bytes=20_000) as station:
        for number in range(COUNT):
            station.publish(CHANNEL, {"n": number, "pad": "x" * (number % 200)})
    return root


def first_sealed(root: Path) -> Path:
    return sorted(partition(root).glob("*.jsonl"))[1]


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def everything(station: Station, **settings: Any) -> tuple[dict[int, int], set[int]]:
    """What a reader gets by offset, and the offsets it is told are missing. Never both, never neither."""
    gaps: list[hg.Gap] = []
    got: dict[int, int] = {}
    for message in station.read(CHANNEL, on_gap=gaps.append, **settings):
        assert message.offset not in got
        got[message.offset] = message.data["n"]
    missing = {offset for gap in gaps for offset in range(gap.first, gap.next)}
    assert not missing & set(got), "told missing, and delivered all the same"
    return got, missing


def check(station: Station, lost: set[int]) -> None:
    got, missing = everything(station)
    assert missing == lost
    assert got == {offset: offset for offset in range(COUNT) if offset not in lost}


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def cut_out(path: Path, position: int, length: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:position] + data[position + length :])


def position_of(path: Path, line: int) -> int:
    return sum(map(len, lines_of(path)[:line]))


@pytest.fixture(params=["index kept", "index lost", "index damaged", "index stale"])
def index(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """What happened to the index of the damaged segment, too."""

    def spoil(segment: Path) -> None:
        path = segment.with_suffix(".index")
        if request.param == "index lost":
            path.unlink()
        elif request.param == "index damaged":
            path.write_bytes(random.Random(0).randbytes(path.stat().st_size))
        elif request.param == "index stale":
            os.truncate(path, path.stat().st_size // 128 * 64)

    return spoil


Spoil = Callable[[Path], None]


def test_a_flipped_bit_costs_one_message_and_readers_are_told_which(
    pristine: Path, opened: Opener, index: Spoil
) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    overwrite(path, position_of(path, 5) + 100, b"\x00")
    index(path)
    with opened() as station:
        check(station, {base + 5})
        check(station, {base + 5})  # and again: telling it once does not heal it


def test_a_flipped_bit_inside_the_payload_is_not_delivered_as_if_it_had_been_published(
    pristine: Path, opened: Opener, index: Spoil
) -> None:
    """Still valid JSON, still an envelope: only the checksum knows."""
    path = first_sealed(pristine)
    base, line = int(path.stem), lines_of(path)[7]
    at = position_of(path, 7) + line.index(b'"n":') + 4
    overwrite(path, at, b"9" if line[line.index(b'"n":') + 4 :][:1] != b"9" else b"8")
    assert json.loads(lines_of(path)[7])["data"]["n"] != base + 7
    index(path)
    with opened() as station:
        check(station, {base + 7})


def test_an_eaten_newline_does_not_shift_the_offsets_behind_it(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    end = position_of(path, 9) - 1
    overwrite(path, end, b"#")
    index(path)
    with opened() as station:
        check(station, {base + 8, base + 9})


def test_a_newline_made_by_damage_does_not_shift_the_offsets_behind_it(
    pristine: Path, opened: Opener, index: Spoil
) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    overwrite(path, position_of(path, 3) + 50, b"\n")
    overwrite(path, position_of(path, 3) + 60, b"\n\n")
    index(path)
    with opened() as station:
        check(station, {base + 3})


def test_a_lost_byte_does_not_shift_the_offsets_behind_it(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    cut_out(path, position_of(path, 4) + 10, 1)
    index(path)
    with opened() as station:
        check(station, {base + 4})


def test_the_last_line_of_a_segment_can_be_damaged_like_any_other(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    last = int(path.stem) + len(lines_of(path)) - 1
    overwrite(path, path.stat().st_size - 30, b"damage")
    index(path)
    with opened() as station:
        check(station, {last})


def test_the_newline_at_the_end_of_a_segment_can_be_lost(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    last = int(path.stem) + len(lines_of(path)) - 1
    os.truncate(path, path.stat().st_size - 1)
    index(path)
    with opened() as station:
        got, missing = everything(station)
        assert missing <= {last}
        assert got == {offset: offset for offset in range(COUNT) if offset not in missing}


def test_zeros_over_a_block_cost_the_lines_in_it(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    start, stop = position_of(path, 10) + 5, position_of(path, 14) + 5
    overwrite(path, start, bytes(stop - start))
    index(path)
    with opened() as station:
        check(station, {base + line for line in range(10, 15)})


def test_a_truncated_sealed_segment_costs_what_was_behind_the_cut(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    base, count = int(path.stem), len(lines_of(path))
    os.truncate(path, position_of(path, 12) + 40)
    index(path)
    with opened() as station:
        check(station, {base + line for line in range(12, count)})


def test_an_emptied_sealed_segment_costs_its_lines(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    base, count = int(path.stem), len(lines_of(path))
    os.truncate(path, 0)
    index(path)
    with opened() as station:
        check(station, {base + line for line in range(count)})


def test_a_deleted_sealed_segment_costs_its_lines(pristine: Path, opened: Opener) -> None:
    path = first_sealed(pristine)
    base, count = int(path.stem), len(lines_of(path))
    path.unlink()
    with opened() as station:
        check(station, {base + line for line in range(count)})


def test_reading_can_begin_behind_inside_and_in_front_of_damage(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    overwrite(path, position_of(path, 6) - 1, b"#")  # lines 5 and 6 become one
    index(path)
    with opened() as station:
        for start in range(base, base + 12):
            got, missing = everything(station, start=start)
            expected = {base + 5, base + 6} & set(range(start, COUNT))
            assert missing == expected
            assert got == {offset: offset for offset in range(start, COUNT) if offset not in expected}


def test_random_damage_anywhere_costs_nothing_but_what_it_hit(pristine: Path, opened: Opener, tmp_path: Path) -> None:
    """Bits flipped at random in sealed segments, with and without their indexes."""
    shutil.copytree(pristine, tmp_path / "saved")
    for seed in range(40):
        luck = random.Random(seed)
        shutil.rmtree(pristine)
        shutil.copytree(tmp_path / "saved", pristine)
        hit = damage_at_random(pristine, luck)
        with opened() as station:
            got, missing = everything(station)
            assert missing <= hit, f"seed {seed}: told missing without reason"
            assert set(range(COUNT)) - missing == set(got), f"seed {seed}: neither read nor told"
            assert all(offset == number for offset, number in got.items()), f"seed {seed}: offsets moved"


def damage_at_random(root: Path, luck: random.Random) -> set[int]:
    """Flip bits; the offsets of the lines that a flip touched."""
    hit: set[int] = set()
    for path in sorted(partition(root).glob("*.jsonl"))[:-1]:
        before, base = path.read_bytes(), int(path.stem)
        data = bytearray(before)
        for _ in range(luck.randint(0, 6)):
            at = luck.randrange(len(data))
            line = before[:at].count(b"\n")
            hit.add(base + line)
            if before[at] == 0x0A:
                hit.add(base + line + 1)
            data[at] ^= 1 << luck.randrange(8)
        path.write_bytes(data)
        if luck.random() < 0.5:
            path.with_suffix(".index").unlink()
    return hit


def test_a_subscription_is_told_of_the_missing_range_and_goes_on(pristine: Path, opened: Opener) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    overwrite(path, position_of(path, 5) + 100, b"\x00")
    got: list[int] = []
    gaps: list[hg.Gap] = []
    with opened() as station:
        subscription = station.subscribe(
            CHANNEL, lambda message: got.append(message.offset), name="worker", start="first", on_gap=gaps.append
        )
        eventually(lambda: subscription.position == COUNT)
        assert got == [offset for offset in range(COUNT) if offset != base + 5]
        assert [(gap.first, gap.next) for gap in gaps] == [(base + 5, base + 6)]
        assert subscription.stats().missing == 1
        assert "damaged" in gaps[0].reason


def test_damage_in_the_active_segment_behind_a_trusted_head_is_told_as_well(opened: Opener, root: Path) -> None:
    with opened() as station:
        for number in range(COUNT):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
        path = next(partition(root).glob("*.jsonl"))
        overwrite(path, position_of(path, 5) + 100, b"\x00")
        overwrite(path, position_of(path, 9) - 1, b"#")
        check(station, {5, 8, 9})
        assert station.publish(CHANNEL, {"n": COUNT}).offset == COUNT


def test_damage_in_the_active_segment_is_told_after_a_recovery_that_trusted_nothing(opened: Opener, root: Path) -> None:
    """Recovery keeps what stands behind the damage; what was damaged must not look as if it were never there."""
    with opened() as station:
        for number in range(COUNT):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
    path = next(partition(root).glob("*.jsonl"))
    line = lines_of(path)[5]
    overwrite(path, position_of(path, 5) + line.index(b'"n":') + 4, b"7")
    (partition(root) / "head").unlink()
    with opened() as station:
        check(station, {5})
        station.publish(CHANNEL, {"n": COUNT})
    with opened() as station:
        got, missing = everything(station)
        assert missing == {5}
        assert got[COUNT] == COUNT


def test_an_eaten_newline_in_the_active_segment_is_told_after_a_recovery_that_trusted_nothing(
    opened: Opener, root: Path
) -> None:
    with opened() as station:
        for number in range(COUNT):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
    path = next(partition(root).glob("*.jsonl"))
    overwrite(path, position_of(path, 9) - 1, b"#")
    (partition(root) / "head").unlink()
    path.with_suffix(".index").unlink()
    for _ in range(2):
        with opened() as station:
            check(station, {8, 9})


def test_redacting_beside_damage_neither_heals_it_nor_hits_the_wrong_line(pristine: Path, opened: Opener) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    victim = json.loads(lines_of(path)[15])["id"]
    overwrite(path, position_of(path, 6) - 1, b"#")  # lines 5 and 6 become one: every newline behind it counts one less
    overwrite(path, position_of(path, 20) + 100, b"\x00")
    with opened() as station:
        lost = everything(station)[1]
        assert {base + 5, base + 6} <= lost
        assert len(lost) == 3
        station.redact(victim, channel=CHANNEL)
        got, missing = everything(station)
        assert missing == lost
        assert got == {offset: offset for offset in range(COUNT) if offset not in lost | {base + 15}}


def test_ids_and_times_are_found_on_both_sides_of_damage(pristine: Path, opened: Opener, index: Spoil) -> None:
    path = first_sealed(pristine)
    kept = [json.loads(lines_of(path)[at]) for at in (2, 12)]
    overwrite(path, position_of(path, 6) - 1, b"#")
    index(path)
    with opened() as station:
        for envelope in kept:
            found = station.get(envelope["id"], CHANNEL)
            assert found is not None
            assert found.data == envelope["data"]
            by_time = next(iter(station.read(CHANNEL, start=envelope["time"])))
            assert by_time.time.isoformat() >= found.time.isoformat()
            assert by_time.offset <= found.offset


def test_damage_is_left_where_it_is_by_compression(pristine: Path, opened: Opener) -> None:
    path = first_sealed(pristine)
    base = int(path.stem)
    overwrite(path, position_of(path, 5) + 100, b"\x00")
    with opened(compress=True) as station:
        station.trim()
        assert list(partition(pristine).glob("*.zst"))
        check(station, {base + 5})
