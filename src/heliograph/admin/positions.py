"""Checking where subscriptions stand: can their positions be read, and does the log reach that far?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Position
from heliograph.errors import Damaged, InvalidName, NotFound, SubscriptionBusy
from heliograph.names import check_name


def check_positions(engine: FilesEngine, channel: str, *, repair: bool) -> Iterator[tuple[str, str, bool]]:
    """Path, what is wrong, and whether it was repaired, for every position of a channel that is not right."""
    for name in engine.positions.names(channel):
        directory = engine.root / "subscriptions" / channel / name
        try:
            check_name(name, "subscription")
            entries = sorted(engine.disk.listdir(directory))
        except InvalidName:
            yield _shown(engine, directory), "is not the name of a subscription", False
            continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            number = entry.removesuffix(".json")
            if entry.endswith(".json") and number.isdigit():
                what = _wrong(engine, channel, name, int(number))
                if what:
                    repaired = repair and _repair(engine, channel, name, int(number))
                    yield _shown(engine, directory / entry), what, repaired


def _shown(engine: FilesEngine, path: Path) -> str:
    return str(path.relative_to(engine.root))


def _wrong(engine: FilesEngine, channel: str, name: str, number: int) -> str | None:
    try:
        position = engine.positions.load(channel, name, number)
    except Damaged:
        return "cannot be read; repair delivers again from the first message"
    if position is None:
        return None
    try:
        limit = engine.limit(channel, number, synced=False)
    except NotFound:
        return f"the channel has no partition {number}"
    awaited = position.awaits and position.incarnation == engine.incarnation(channel)
    if position.offset > limit.next and not awaited:
        return f"stands at offset {position.offset}, the log ends at {limit.next}"
    return None


def _repair(engine: FilesEngine, channel: str, name: str, number: int) -> bool:
    """Set a position right. Never forwards: delivering again is allowed, skipping is not."""
    path = engine.root / "subscriptions" / channel / name / f"{number}.json"
    try:
        lease = engine.subscription_lease(channel, name)
    except SubscriptionBusy:
        return False  # whoever is subscribed saves a right one soon
    try:
        bounds = engine.bounds(channel, number)
        try:
            position = engine.positions.load(channel, name, number)
        except Damaged:
            aside = engine.root / "quarantine" / channel
            aside.mkdir(parents=True, exist_ok=True)
            engine.disk.replace_file(aside / f"{name}-{number}.json.bad", engine.disk.read_file(path))
            position = None
        target = engine.fit_position(channel, number, position)[0] if position is not None else bounds.first
        now_us = engine.clock.time_ns() // 1000
        engine.save_position(channel, name, number, Position(engine.incarnation(channel), target, "", now_us))
        engine.audit.write("position-repaired", channel=channel, subscription=name, partition=number, after=target)
    finally:
        lease.release()
    return True
