"""Carrying out a repair: in what order, under which locks, and with a word in the audit log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from heliograph.clock import from_us
from heliograph.engine.files import FilesEngine
from heliograph.log import channel as channels
from heliograph.log import inspection, redact, repair, segments, swap
from heliograph.log.channel import ChannelFile
from heliograph.log.held import Evicted
from heliograph.log.partition import Partition


class Mender:
    """Repairs one channel. Upkeep is kept away meanwhile by whoever made it."""

    def __init__(self, engine: FilesEngine, name: str) -> None:
        self._engine = engine
        self._disk = engine.disk
        self._name = name

    def _now_us(self) -> int:
        return self._engine.clock.time_ns() // 1000

    def _renew(self, why: str) -> None:
        self._engine.new_incarnation(self._name, why)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._engine.root))

    # -- channel.json -------------------------------------------------------------------------------------------

    def describe_again(self, partitions: Sequence[int]) -> None:
        """Write channel.json anew. What it said is set aside; the settings are the station's from now on."""
        root, name = self._engine.root, self._name
        directory = channels.channel_path(root, name)
        path = directory / "channel.json"
        with contextlib.suppress(FileNotFoundError):
            aside = root / "quarantine" / name
            aside.mkdir(parents=True, exist_ok=True)
            self._disk.replace_file(aside / f"channel.json-{self._now_us()}.bad", self._disk.read_file(path))
        begun_us = min(self._disk.stat(directory / str(number)).st_ctime_ns for number in partitions) // 1000
        fresh = ChannelFile(
            name=name,
            incarnation=channels.new_incarnation(),
            partitions=max(partitions) + 1,
            created=from_us(begun_us),
        )
        channels.save(root, fresh, self._disk)
        for number in partitions:
            self._engine.writer(name, number).change(Partition.next_generation)
        self._engine.audit.write("repaired", channel=name, file="channel.json", incarnation=fresh.incarnation)

    # -- one partition ------------------------------------------------------------------------------------------

    def mend(self, number: int, unsound: Sequence[int]) -> dict[int, list[str]]:
        """Repair what a look at a partition found; returns what was set aside, by segment."""
        while True:
            try:
                return self._mend(self._engine.writer(self._name, number), unsound)
            except Evicted:  # closed to make room for others: everything done so far stays done
                continue

    def _mend(self, partition: Partition, unsound: Sequence[int]) -> dict[int, list[str]]:
        aside: dict[int, list[str]] = {}
        number = partition.place.number
        swap.settle(partition.place.directory, self._disk)
        self._mend_end(partition)
        with partition.mutex, partition.locked():
            lists = [self._shown(path) for path in repair.set_lists_aside(partition.place, self._disk)]
        for base in unsound:
            with partition.mutex, partition.locked():
                aside[base] = [self._shown(path) for path in self._mend_segment(partition, base)]
        with partition.mutex, partition.locked():
            redact.finish(partition.place, self._disk)
            known = segments.bases(partition.place.directory, self._disk)
            partition.first = max(partition.first, known[0])
            self._remove_leftovers(partition.place.directory)
        self._engine.forget_batches(self._name, number)
        if unsound or lists:
            self._engine.audit.write(
                "repaired", channel=self._name, partition=number, segments=list(unsound),
                quarantined=lists + [path for paths in aside.values() for path in paths],
            )  # fmt: skip
        return aside

    def _mend_end(self, partition: Partition) -> None:
        """The fence first, then the head: everything else needs both to be right."""
        lifted = repair.unfence(partition, self._now_us(), self._renew, self._disk)
        if lifted is not None:
            self._engine.audit.write(
                "unfenced", channel=self._name, partition=partition.place.number, next=lifted.next,
                messages=lifted.lost, quarantined=lifted.set_aside,
            )  # fmt: skip
        with partition.mutex, repair.locked_blindly(partition):
            place = partition.place
            active = partition.base
            strays = repair.remove_strays(place, active, self._disk)
            if strays or not segments.path_of(place.directory, active).exists():
                repair.rebuild_head(partition, self._now_us(), self._renew, self._disk)

    def _mend_segment(self, partition: Partition, base: int) -> list[Path]:
        """Repair one segment; the active one is sealed first. The caller holds mutex and lock."""
        place, disk = partition.place, self._disk
        known = segments.bases(place.directory, disk)
        if base not in known:
            return []
        fields = repair.current(partition)
        if base == fields.base:
            state = inspection.inspect(place, base, fields.next, disk, fields)
            if state.head:
                repair.rebuild_head(partition, self._now_us(), self._renew, disk)
            if state.sound or not partition.written:
                return []
            partition.seal()
        known = segments.bases(place.directory, disk)
        state = inspection.inspect(place, base, known[known.index(base) + 1], disk)
        return repair.repair_segment(place, state, disk)

    def _remove_leftovers(self, directory: Path) -> None:
        for name in self._disk.listdir(directory):
            if ".tmp-" in name:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(directory / name)
