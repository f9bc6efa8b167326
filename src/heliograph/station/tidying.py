"""Retention, compaction and compression of sealed segments, rotation by age: what upkeep does, channel by channel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from heliograph.disk import explaining
from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, NotFound
from heliograph.log import indexing, retention, segments, swap
from heliograph.log.channel import ChannelFile
from heliograph.log.compact import Compacted
from heliograph.log.compress import compress_segment, same_lines
from heliograph.log.head import FENCED
from heliograph.log.partition import Partition
from heliograph.log.retention import Rules
from heliograph.station import compaction
from heliograph.station.holding import positions_of, rules_of
from heliograph.station.info import Trimmed
from heliograph.station.mailbox import sweep

logger = logging.getLogger("heliograph.upkeep")


class Tidying:
    """One round, and its numbers. ``asked``: somebody waits for it, so everything is worth it.

    ``spared`` are channels that are left as they are, and why: an atomic step is not finished there.
    """

    def __init__(
        self,
        engine: FilesEngine,
        spared: Mapping[str, HeliographError],
        *,
        asked: bool,
        going: Callable[[], bool],
    ) -> None:
        self.trimmed_messages = 0
        self.trimmed_unread = 0
        self.compacted = Compacted()
        self._engine = engine
        self._spared = spared
        self._asked = asked
        self._going = going

    def all(self) -> list[Trimmed]:
        """Every channel, and what processes that died have left behind."""
        sweep(self._engine)
        return self.these(self._engine.channel_names())

    def these(self, names: list[str]) -> list[Trimmed]:
        """Each of the channels, though one may fail."""
        done: list[Trimmed] = []
        errors: list[HeliographError] = []
        for name in names:
            try:
                with explaining(f"cannot tidy channel '{name}'"):
                    done += self._channel(name)
            except HeliographError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return done

    def _channel(self, name: str) -> list[Trimmed]:
        try:
            file = self._engine.describe(name)
        except NotFound:
            return []
        settings = self._engine.settings(file)
        rules = rules_of(self._engine, file)
        ages = [age for age in (settings.segment_age_s, settings.retention_age_s) if age]
        compacts = compaction.wanted(self._engine, file)
        if not (rules.bytes_max or rules.age_us or rules.once_read or settings.compress or compacts or ages):
            return []
        if name in self._spared:
            raise self._spared[name]
        done: list[Trimmed] = []

        def tidy(partition: Partition) -> None:
            self._rotate_old(partition, int(min(ages) * 1e6) if ages else 0)
            trimmed = self._trim(file, partition, rules)
            if trimmed is not None:
                done.append(trimmed)
            if compacts:
                self._compact(file, partition)
            if settings.compress:
                self._compress(partition)

        for number in range(file.partitions):
            self._engine.write(name, number, tidy)
        return done

    def _rotate_old(self, partition: Partition, age_us: int) -> None:
        fields = partition.fields()
        if fields.flags & FENCED:
            return
        if age_us and fields.written and fields.created_us < self._engine.clock.time_ns() // 1000 - age_us:
            partition.rotate()

    def _trim(self, file: ChannelFile, partition: Partition, rules: Rules) -> Trimmed | None:
        engine, name, number = self._engine, file.name, partition.place.number
        fields = partition.fields()
        sealed = retention.survey(partition.place.directory, fields.base, engine.disk)
        positions = positions_of(engine, file, number, fields.first)
        plan = retention.plan(sealed, fields.written, rules, positions, engine.clock.time_ns() // 1000)
        if not plan.delete:
            return None
        engine.producers.cover(name)
        engine.relayed.cover(name, {number: plan.delete[-1].next})
        freed = retention.delete(partition, plan.delete, engine.disk)
        messages = plan.delete[-1].next - plan.delete[0].base
        self.trimmed_messages += messages
        self.trimmed_unread += sum(plan.unread.values())
        if plan.unread:
            logger.warning("retention deleted messages of '%s' that were not read: %s", name, plan.unread)
        trimmed = Trimmed(
            channel=name, partition=number, segments=len(plan.delete), messages=messages, bytes=freed,
            first=plan.delete[-1].next, unread=plan.unread,
        )  # fmt: skip
        engine.audit.write(
            "trimmed",
            channel=name,
            partition=number,
            first=trimmed.first,
            messages=messages,
            bytes=freed,
            unread=plan.unread,
        )
        return trimmed

    def _compact(self, file: ChannelFile, partition: Partition) -> None:
        """By itself when it is worth it; at once when somebody asks."""
        self._engine.producers.cover(file.name)
        self._engine.relayed.cover(file.name, {partition.place.number: partition.fields().base})
        done = compaction.compact_partition(self._engine, file, partition, forced=self._asked, going=self._going)
        if done is not None:
            self.compacted = self.compacted.plus(done)

    def _compress(self, partition: Partition) -> None:
        disk, directory = self._engine.disk, partition.place.directory
        swap.settle(directory, disk)
        active = partition.fields().base
        for base in segments.bases(directory, disk):
            plain = segments.path_of(directory, base)
            if base >= active or not plain.exists():
                continue
            if segments.path_of(directory, base, segments.COMPRESSED).exists():
                if same_lines(directory, base, disk):
                    disk.unlink(plain)  # a crash came between the two
                else:
                    logger.warning("%s and its compressed form differ; run 'helio verify'", plain)
                continue
            entries = indexing.verified_entries(directory, base, disk)
            if entries and entries[-1].end == disk.stat(plain).st_size:  # damaged segments stay as they are
                compress_segment(directory, base, entries, disk)
