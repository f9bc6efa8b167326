"""What a station does by itself: retention, compaction and compression of sealed segments, rotation by age.

However many processes open the directory, one at a time does it: whoever holds ``upkeep.lock``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from typing import Final

from heliograph.disk import explaining
from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, NotFound
from heliograph.log import indexing, retention, segments, swap
from heliograph.log.channel import ChannelFile
from heliograph.log.compress import compress_segment, same_lines
from heliograph.log.head import FENCED
from heliograph.log.locks import FileLock
from heliograph.log.partition import Partition
from heliograph.log.retention import Rules
from heliograph.station import compaction, links
from heliograph.station.info import Trimmed
from heliograph.station.mailbox import sweep

logger = logging.getLogger("heliograph.upkeep")
INTERVAL_S: Final = 10.0
LOOKS: Final = 10
"""How often between two rounds something cheap is looked at."""


class Upkeep:
    """The housekeeping of one station in this process."""

    def __init__(self, engine: FilesEngine, look: Callable[[], object]) -> None:
        self._engine = engine
        self._look = look
        self._stop = threading.Event()
        self.trimmed_messages = 0
        self.trimmed_unread = 0
        self.compacted_messages = 0
        self.compacted_bytes = 0
        self._thread = threading.Thread(target=self._run, name="heliograph-upkeep", daemon=True)
        if not engine.read_only:
            self._thread.start()

    def _run(self) -> None:
        for turn in count(1):
            if self._stop.wait(INTERVAL_S / LOOKS):
                return
            try:
                self._look()
                if turn % LOOKS == 0:
                    self.tidy()
            except HeliographError as error:
                logger.warning("upkeep: %s", error)
            except OSError as error:
                logger.warning("upkeep: %s; trying again in %g s", error, INTERVAL_S)

    def close(self) -> None:
        """Stop after what is being done."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def tidy(self, only: str | None = None) -> list[Trimmed]:
        """Apply retention, rotation by age, compaction and compression now; what retention deleted."""
        lease = FileLock(self._engine.root / "upkeep.lock", self._engine.disk)
        try:
            if not lease.try_exclusive():
                if only is None and threading.current_thread() is self._thread:
                    return []
                lease.exclusive(self._engine.clock, self._engine.config.publishing.busy_timeout_s)
            self._engine.steps.recover()
            if only is None:
                sweep(self._engine)
            return self._tidy(self._engine.channel_names() if only is None else [only])
        finally:
            lease.release()

    def _tidy(self, names: list[str]) -> list[Trimmed]:
        """Each of the channels, though one may fail."""
        done: list[Trimmed] = []
        errors: list[HeliographError] = []
        for name in names:
            try:
                with explaining(f"cannot tidy channel '{name}'"):
                    done += self._tidy_channel(name)
            except HeliographError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return done

    def _tidy_channel(self, name: str) -> list[Trimmed]:
        try:
            file = self._engine.describe(name)
        except NotFound:
            return []
        settings = self._engine.settings(file)
        rules = Rules(
            settings.retention_bytes or 0, int((settings.retention_age_s or 0) * 1e6),
            bool(settings.retention_once_read), settings.holdback_bytes or 0,
        )  # fmt: skip
        ages = [age for age in (settings.segment_age_s, settings.retention_age_s) if age]
        compacts = compaction.wanted(self._engine, file)
        if not (rules.bytes_max or rules.age_us or rules.once_read or settings.compress or compacts or ages):
            return []
        done: list[Trimmed] = []

        def tidy(partition: Partition) -> None:
            self._rotate_old(partition, int(min(ages) * 1e6) if ages else 0)
            trimmed = self._trim(name, partition.place.number, partition, rules)
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

    def _trim(self, name: str, number: int, partition: Partition, rules: Rules) -> Trimmed | None:
        engine = self._engine
        fields = partition.fields()
        sealed = retention.survey(partition.place.directory, fields.base, engine.disk)
        positions = {
            subscription: 0 if position is None else position.offset
            for subscription in engine.positions.names(name)
            if (position := engine.positions.load(name, subscription, number)) is not None
            # Without a position there, but in partition 0: the partition was added and it has not seen it yet.
            or engine.positions.load(name, subscription, 0) is not None
        }
        for wildcard in engine.wildcards.hearing(name) - positions.keys():
            positions[wildcard] = fields.first  # it has not noticed this channel yet
        positions |= links.positions(engine, name, number, fields.first)
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
        asked = threading.current_thread() is not self._thread
        self._engine.producers.cover(file.name)
        self._engine.relayed.cover(file.name, {partition.place.number: partition.fields().base})
        done = compaction.compact_partition(
            self._engine, file, partition, forced=asked, going=lambda: not self._stop.is_set()
        )
        if done is not None:
            self.compacted_messages += done.messages
            self.compacted_bytes += done.bytes

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
