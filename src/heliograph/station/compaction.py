"""Compaction as upkeep does it: of which partitions, when it is worth it, and with a word in the audit log."""

from __future__ import annotations

from collections.abc import Callable

from heliograph.engine.files import FilesEngine
from heliograph.log import compact, compactstate, retention
from heliograph.log.channel import ChannelFile
from heliograph.log.compact import Compacted, Terms
from heliograph.log.head import FENCED
from heliograph.log.partition import Partition
from heliograph.names import DEAD_LETTER


def wanted(engine: FilesEngine, file: ChannelFile) -> bool:
    """Whether a channel keeps the latest per key. Dead letters are no versions of each other, whatever their key."""
    return bool(engine.settings(file).retention_compact) and not file.name.endswith(DEAD_LETTER)


def compact_partition(
    engine: FilesEngine, file: ChannelFile, partition: Partition, *, forced: bool, going: Callable[[], bool]
) -> Compacted | None:
    """Compact the sealed segments if that is worth it; None if it was not, or the station is being closed."""
    fields, place, disk = partition.fields(), partition.place, engine.disk
    sealed = [one for one in retention.survey(place.directory, fields.base, disk) if one.next > fields.first]
    if not sealed or fields.flags & FENCED:
        return None
    terms, now_us = _terms(engine, file), engine.clock.time_ns() // 1000
    state = compactstate.load_state(place.directory, file.incarnation, sealed[-1].next, disk)
    if not compact.due(state, sealed, terms, now_us, forced=forced):
        return None
    try:
        done = compact.compact(place, sealed, state, terms, now_us, disk, going)
    except compact.Stopped:
        return None
    first = compact.drop_blank_beginning(partition, sealed, disk)
    if done.messages or first is not None:
        engine.audit.write(
            "compacted", channel=file.name, partition=place.number, messages=done.messages,
            tombstones=done.tombstones, bytes=done.bytes, segments=done.segments, first=first or fields.first,
        )  # fmt: skip
    return done


def _terms(engine: FilesEngine, file: ChannelFile) -> Terms:
    storage = engine.config.storage
    grace_s = engine.settings(file).tombstone_grace_s or 0.0
    return Terms(int(grace_s * 1e6), storage.compact_memory_bytes, storage.compact_dirty_ratio)
