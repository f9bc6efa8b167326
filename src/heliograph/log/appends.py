"""When lines were appended, as far as a log tells: the last line of each entry of its index, and the last of all."""

from __future__ import annotations

from pathlib import Path

from heliograph.disk import Disk
from heliograph.log import segments
from heliograph.log.pieces import entries_of


def append_times(
    folder: Path, last: tuple[int, int] | None, first: int, following: int, disk: Disk
) -> list[tuple[int, int]]:
    """Offsets from ``first`` to ``following - 1`` whose time is known, and the times in µs; in order.

    ``last`` is the log's last line and its time (Head.last_append), if those are known.
    """
    bases = segments.bases(folder, disk)
    known: dict[int, int] = {}
    for base, end in zip(bases, [*bases[1:], following], strict=True):
        if base < following and end > first:
            entries = entries_of(folder, base, disk)
            known |= zip([behind - 1 for behind in entries.nexts], entries.append_us, strict=True)
    if last is not None:
        known.setdefault(*last)
    return sorted((offset, time_us) for offset, time_us in known.items() if first <= offset < following and time_us)
