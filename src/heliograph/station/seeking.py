"""Moving a durable subscription: all of its partitions, or one."""

from __future__ import annotations

import contextlib

from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Position
from heliograph.errors import Damaged, NotFound
from heliograph.names import check_name
from heliograph.station.info import SeekResult
from heliograph.station.reader import message_at
from heliograph.station.starts import Start, partitions_for, resolve


def seek(
    engine: FilesEngine, channel: str, name: str, to: Start, *, partition: int | None = None, dry_run: bool = False
) -> SeekResult:
    """Move it, or only say what that would do. Holds its lease meanwhile."""
    check_name(channel)
    check_name(name, "subscription")
    engine.check_writable()
    numbers = partitions_for(engine, channel, partition, to)
    for number in numbers:
        engine.settle(channel, number)
    targets = {number: _target(engine, channel, number, to) for number in numbers}
    if name not in engine.positions.names(channel):  # before the lease, which would make it
        raise NotFound(f"channel '{channel}' has no subscription '{name}'")
    lease = engine.subscription_lease(channel, name)
    try:
        parts = [_move(engine, channel, name, number, target, dry_run) for number, target in targets.items()]
    finally:
        lease.release()
    if not dry_run:
        engine.audit.write(
            "seek", channel=channel, subscription=name, after={str(part.partition): part.after for part in parts}
        )
    return SeekResult(
        channel=channel, name=name, partition=numbers[0] if len(numbers) == 1 else None,
        before=sum([part.before for part in parts]), after=sum([part.after for part in parts]),
        lag=sum([part.lag for part in parts]), applied=not dry_run, parts=parts,
    )  # fmt: skip


def _target(engine: FilesEngine, channel: str, number: int, to: Start) -> int:
    bounds = engine.bounds(channel, number)
    return min(max(resolve(engine, channel, to, number), bounds.first), bounds.next)


def _move(engine: FilesEngine, channel: str, name: str, number: int, target: int, dry_run: bool) -> SeekResult:
    before = None
    with contextlib.suppress(Damaged):  # seeking is how a damaged position is mended
        before = engine.load_position(channel, name, number)
    if not dry_run:
        last = message_at(engine, channel, number, target - 1) if target else None
        now_us = engine.clock.time_ns() // 1000
        position = Position(engine.incarnation(channel), target, last.id if last else "", now_us)
        engine.steps.forget(channel, name, number)
        engine.save_position(channel, name, number, position)
    return SeekResult(
        channel=channel, name=name, partition=number, before=before.offset if before else 0, after=target,
        lag=engine.bounds(channel, number).next - target, applied=not dry_run,
    )  # fmt: skip
