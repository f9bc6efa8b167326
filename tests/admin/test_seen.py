"""verify compares what is written down about arrivals with the log; repair writes it down anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from heliograph.admin.verify import Trouble, verify
from heliograph.station import Station
from tests.admin.helpers import kinds
from tests.arrivals import HOST2, doubled, lines, sealed
from tests.opening import Opener

CHANNEL = "alerts"


def checkpoint(root: Path) -> Path:
    return root / "seen" / f"{CHANNEL}.json"


def changed(root: Path, pattern: bytes, by: bytes) -> None:
    """Change what is written down, with a checksum that fits."""
    before = checkpoint(root).read_bytes().rstrip(b"\n")[:-18]
    after = re.sub(pattern, by, before)
    assert after != before
    checkpoint(root).write_bytes(sealed(after) + b"\n")


def fill(opened: Opener, **settings: object) -> None:
    with opened(segment_bytes=4096) as station:
        station.create_channel(CHANNEL, **settings)
        for first in range(0, 100, 10):
            station.publish(CHANNEL, first)
            station.engine.relayed.arrive(CHANNEL, lines(first, first + 10))


def trouble(station: Station, *, repair: bool = False) -> Trouble:
    report = verify(station, repair=repair)
    assert kinds(report) == ["seen"] and report.ok is repair
    (found,) = report.troubles
    assert found.path == f"seen/{CHANNEL}.json" and found.repaired is repair
    return found


def test_what_is_right_is_no_trouble(opened: Opener, root: Path) -> None:
    fill(opened, retention_bytes=6000)
    with opened() as station:
        assert verify(station).ok
        assert station.trim()
        assert verify(station).ok
        station.engine.relayed.arrive(CHANNEL, lines(100, 110))
        station.publish(CHANNEL, "not covered")
        assert verify(station).ok
    with opened(read_only=True) as station:
        assert verify(station).ok


def test_sequences_that_are_no_messages_are_no_trouble_either(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.engine.relayed.arrive(CHANNEL, [*lines(0, 5), *lines(7, 9)])
        station.engine.relayed.gap(CHANNEL, HOST2, 0, 5, 7, never=True)
        assert verify(station).ok
    with opened() as station:
        assert b'"never":{"host2' in checkpoint(root).read_bytes()
        assert verify(station).ok


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn": (lambda root: checkpoint(root).write_bytes(checkpoint(root).read_bytes()[:100]), "damaged"),
    "empty": (lambda root: checkpoint(root).write_bytes(b""), "damaged"),
    "a digit": (
        lambda root: checkpoint(root).write_bytes(checkpoint(root).read_bytes().replace(b"[[0,100]]", b"[[0,900]]")),
        "damaged",
    ),
    "no set": (lambda root: changed(root, rb"\[\[0,100\]\]", b"[[100,0]]"), "damaged"),
    "no checkpoint": (lambda root: changed(root, rb'"covered":\[110\]', b'"covered":7'), "damaged"),
    "ahead": (lambda root: changed(root, rb'"covered":\[110\]', b'"covered":[111]'), "ahead of the log"),
    "another log": (lambda root: changed(root, rb'"anchors":\["........', b'"anchors":["00000000'), "does not fit"),
    "partitions": (lambda root: changed(root, rb'"covered":\[110\]', b'"covered":[110,0]'), "2 partitions"),
    "lacks": (lambda root: changed(root, rb"\[\[0,100\]\]", b"[[0,40],[43,100]]"), "does not know 3 of"),
    "claims": (lambda root: changed(root, rb"\[\[0,100\]\]", b"[[0,105]]"), "claims 5 messages"),
    "earlier": (lambda root: changed(root, rb'"created":"20..', b'"created":"1999'), "an earlier channel"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found_and_rebuilt(opened: Opener, root: Path, case: str) -> None:
    fill(opened)
    damage, what = WRONG[case]
    damage(root)
    with opened(read_only=True) as station:
        assert what in trouble(station).what
    with opened() as station:
        assert what in trouble(station, repair=True).what
        assert verify(station).ok
        assert station.engine.relayed.seen(CHANNEL).to_json()[HOST2] == {"0": [[0, 100]]}
        assert station.engine.relayed.arrive(CHANNEL, lines(0, 110)).appended == 10
    assert not doubled(root)
    assert list((root / "quarantine" / CHANNEL).glob("seen.json-*")) != [] or case == "lacks"
    assert b'"event":"seen-rebuilt"' in (root / "audit" / "audit.jsonl").read_bytes()


@pytest.mark.parametrize("case", ["torn", "empty", "a digit", "no set", "no checkpoint"])
def test_what_is_damaged_is_not_believed_even_without_verify(opened: Opener, root: Path, case: str) -> None:
    fill(opened)
    WRONG[case][0](root)
    with opened() as station:
        arrival = station.engine.relayed.arrive(CHANNEL, lines(0, 110))
        assert (arrival.appended, arrival.duplicates) == (10, 100)
    assert not doubled(root)


def test_what_was_trimmed_stays_known_where_the_checkpoint_only_lacks_something(opened: Opener, root: Path) -> None:
    fill(opened, retention_bytes=6000)
    with opened() as station:
        assert station.trim()
        first = station.channel(CHANNEL).first
        assert first > 20
    changed(root, rb"\[\[0,100\]\]", b"[[0,98]]")
    with opened() as station:
        trouble(station, repair=True)
        assert station.engine.relayed.seen(CHANNEL).to_json()[HOST2] == {"0": [[0, 100]]}


def test_whichever_bit_is_wrong_the_checkpoint_is_not_believed(opened: Opener, root: Path) -> None:
    fill(opened)
    good = checkpoint(root).read_bytes()
    for at in range(0, len(good) - 1, 7):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        checkpoint(root).write_bytes(bytes(bad))
        with opened() as station, pytest.raises(ValueError, match=r".") as error:
            station.engine.relayed.checkpoints.written(CHANNEL)
        assert not isinstance(error.value, UnicodeDecodeError | msgspec.MsgspecError)
