"""Which sealed segments may go, and letting them go.

Rules, in this order. The active segment always stays.

    once read     every durable subscription has read it (and there is at least one)
    by age        its newest line is older than retention_age_s
    by bytes      the partition is larger than retention_bytes, counted from the newest segment back

A segment that a durable subscription has not read is held back, up to holdback_bytes of unread data; beyond
that it goes, and whoever had not read it is named in the plan: deleting unread data is never silent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from heliograph.disk import Disk
from heliograph.log import index, segments
from heliograph.log.partition import Partition
from heliograph.seen import SEQUENCE_MAX


class Rules(NamedTuple):
    """When segments go; zero means never for that reason."""

    bytes_max: int = 0
    age_us: int = 0
    once_read: bool = False
    holdback_bytes: int = 0


class Sealed(NamedTuple):
    """One sealed segment."""

    base: int
    next: int
    bytes: int
    append_us: int


class Plan(NamedTuple):
    """What to delete, and what each subscription loses unread."""

    delete: list[Sealed]
    unread: dict[str, int]  # subscription -> messages


def plan(sealed: Sequence[Sealed], active_bytes: int, rules: Rules, positions: Mapping[str, int], now_us: int) -> Plan:
    """Decide. ``sealed`` is in ascending order; only a prefix of it can go.

    >>> old = [Sealed(0, 10, 100, 5), Sealed(10, 20, 100, 6)]
    >>> plan(old, 50, Rules(bytes_max=160), {}, now_us=10).delete
    [Sealed(base=0, next=10, bytes=100, append_us=5)]
    >>> plan(old, 50, Rules(bytes_max=160), {"worker-1": 3}, now_us=10).delete
    []
    """
    total = active_bytes + sum([segment.bytes for segment in sealed])
    unread_bytes = total
    slowest = min(positions.values(), default=None)
    delete: list[Sealed] = []
    for segment in sealed:
        read = slowest is not None and segment.next <= slowest
        wanted = (
            (rules.once_read and read)
            or (rules.age_us and segment.append_us < now_us - rules.age_us)
            or (rules.bytes_max and total > rules.bytes_max)
        )
        held = slowest is not None and not read
        if not wanted and not (
            held and rules.holdback_bytes and rules.once_read and unread_bytes > rules.holdback_bytes
        ):
            break
        if held and (not rules.holdback_bytes or unread_bytes <= rules.holdback_bytes):
            break
        delete.append(segment)
        total -= segment.bytes
        unread_bytes -= segment.bytes
    end = delete[-1].next if delete else 0
    first = delete[0].base if delete else 0
    unread = {name: end - max(offset, first) for name, offset in positions.items() if offset < end}
    return Plan(delete, unread)


def held(
    sealed: Sequence[Sealed], active_bytes: int, rules: Rules, positions: Mapping[str, int], waiting: Iterable[str],
    now_us: int,
) -> dict[str, int]:  # fmt: skip
    """Bytes that would go if nobody had to wait for those of ``waiting``: by name, what that one has not read.

    >>> old = [Sealed(0, 10, 100, 5), Sealed(10, 20, 100, 6)]
    >>> held(old, 50, Rules(bytes_max=160), {"link to hub": 3, "worker-1": 20}, ["link to hub"], now_us=10)
    {'link to hub': 100}
    """
    waiting = list(waiting)
    now = plan(sealed, active_bytes, rules, positions, now_us).delete
    freed = {**positions, **dict.fromkeys(waiting, SEQUENCE_MAX)}
    kept = plan(sealed, active_bytes, rules, freed, now_us).delete[len(now) :]
    found = {name: sum([segment.bytes for segment in kept if segment.next > positions[name]]) for name in waiting}
    return {name: size for name, size in found.items() if size}


def survey(directory: Path, active_base: int, disk: Disk) -> list[Sealed]:
    """The sealed segments of a partition."""
    known = segments.bases(directory, disk)
    found: list[Sealed] = []
    for base, following in zip(known, [*known[1:], active_base], strict=True):
        if base >= active_base:
            break
        found.append(
            Sealed(
                base,
                following,
                segments.stored_bytes(directory, base, disk),
                _append_us(directory, base, disk),
            )
        )
    return found


def _append_us(directory: Path, base: int, disk: Disk) -> int:
    """When the segment's last line was appended; its file's time, which is later, where the index does not say."""
    with contextlib.suppress(FileNotFoundError):
        file = index.IndexFile(segments.path_of(directory, base, segments.INDEX), base, disk)
        with contextlib.closing(file):
            last = file.entry(file.count - 1) if file.count else None
        if last is not None:
            return last.append_us
    for suffix in (segments.COMPRESSED, segments.PLAIN):
        with contextlib.suppress(FileNotFoundError):
            return disk.stat(segments.path_of(directory, base, suffix)).st_mtime_ns // 1000
    return 0


def delete(partition: Partition, doomed: Sequence[Sealed], disk: Disk) -> int:
    """Delete segments; readers learn the new beginning before the first file goes. Returns the bytes freed."""
    if not doomed:
        return 0
    end = doomed[-1].next

    def move_first(head: Partition) -> None:
        head.first = max(head.first, end)

    partition.change(move_first)
    return sum([segments.remove(partition.place.directory, segment.base, disk) for segment in doomed])
