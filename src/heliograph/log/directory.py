"""A station's data directory: whose it is, who has it open, and recovery before anybody uses it.

    DATA/station.json     {"format":1,"name":"host1","machine":…,"inode":…,"created":…}
    DATA/open.lock        held shared by every process that has the directory open
    DATA/birth            empty; made once and never touched, so that its inode and change time tell a copy
    DATA/recover.lock     held for a moment while opening; whoever then gets open.lock alone recovers
    DATA/unsynced         there while some process may show readers what a power cut would take back

A channel gets a new incarnation when its bytes may have been seen and lost: the directory was copied, restored
or moved (inode, machine), or the power failed (boot id) while ``unsynced`` was there.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from heliograph import disk as disks
from heliograph.clock import SYSTEM_CLOCK, Clock, from_us
from heliograph.disk import Disk, explain
from heliograph.errors import (
    ConfigError,
    Damaged,
    InvalidName,
    NotFound,
    ReadOnly,
    UnsupportedFormat,
    WrongStation,
)
from heliograph.limits import LISTING_SETTLED_S
from heliograph.log import channel, indexing, recovery, redact, segments
from heliograph.log.audit import Audit
from heliograph.log.head import DELETED, FENCED, LOOKED_THROUGH, Fields, Head, TornHead
from heliograph.log.locks import FileLock
from heliograph.names import check_name

FORMAT: Final = 1


class StationFile(msgspec.Struct, kw_only=True):
    """station.json."""

    format: int = FORMAT
    name: str
    machine: str = ""
    inode: int = 0
    mark: str = ""  # inode and change time of the file `birth`, which no copy can have
    created: datetime


_decode = msgspec.json.Decoder(StationFile).decode


class DataDirectory:
    """An opened data directory."""

    def __init__(
        self, root: Path, name: str | None, disk: Disk, clock: Clock, audit: Audit, *,
        read_only: bool = False, single_process: bool = False, timeout_s: float = 30.0,
    ) -> None:  # fmt: skip
        self.root = root
        self.read_only = read_only
        self.boot = disks.boot_id()
        self._disk = disk
        self._clock = clock
        self._audit = audit
        self._timeout_s = timeout_s
        self._open_lock: FileLock | None = None
        self._unsynced_noted = False
        if not read_only:
            self._prepare()
        self.file_system = kind = disks.file_system(root) if root.exists() else ""
        if disks.over_network(kind) and not single_process and not read_only:
            raise ConfigError(
                f"{root} is on a network file system ({kind}), where locks and shared memory cannot be relied on. "
                "Use a local disk, or set storage.single_process if only one process will ever open it."
            )
        self.station = self._read_only_open(name) if read_only else self._open(name)

    def _prepare(self) -> None:
        try:
            fresh = not self.root.exists()
            for part in ("channels", "subscriptions"):
                (self.root / part).mkdir(parents=True, exist_ok=True)
            if fresh:
                self._disk.sync_directory(self.root.parent)
        except OSError as error:
            raise explain(error, f"cannot prepare {self.root}") from error

    # -- opening ------------------------------------------------------------------------------------------

    def _open(self, name: str | None) -> StationFile:
        try:
            recover_lock = FileLock(self.root / "recover.lock", self._disk)
        except OSError as error:
            raise explain(error, f"cannot open {self.root}") from error
        try:
            recover_lock.exclusive(self._clock, self._timeout_s)
            station = self._load(name) or self._create(name)
            self._open_lock = FileLock(self.root / "open.lock", self._disk)
            if self._open_lock.try_exclusive():
                station = self._recover(station)
            self._open_lock.shared(self._clock, self._timeout_s)
        except BaseException as error:
            self.abandon()  # or the next try in this process would wait for this one
            if isinstance(error, OSError):
                raise explain(error, f"cannot open {self.root}") from error
            raise
        finally:
            recover_lock.release()
        return station

    def _read_only_open(self, name: str | None) -> StationFile:
        try:
            station = self._load(name)
        except OSError as error:
            raise explain(error, f"cannot open {self.root}") from error
        if station is None:
            raise NotFound(f"{self.root} holds no station; 'helio init' makes one")
        return station  # without a lock: a reader must not keep the first writer after a boot from recovering

    def _load(self, name: str | None) -> StationFile | None:
        path = self.root / "station.json"
        try:
            station = _decode(self._disk.read_file(path))
        except NotADirectoryError:
            return None
        except FileNotFoundError:
            channel.check_nobodys(self.root, self._disk, self._clock.time_ns() // 1000)
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(f"{path} cannot be read ({error}). Restore it from a backup.") from None
        if station.format > FORMAT:
            raise UnsupportedFormat(
                f"{self.root} was written in format {station.format}; this Heliograph knows up to {FORMAT}. Upgrade it."
            )
        if name is not None and name != station.name:
            raise WrongStation(
                f"{self.root} belongs to station '{station.name}', not '{name}'. "
                "Use its name, or another directory (a station's name is part of every message it published)."
            )
        return station

    def _create(self, name: str | None) -> StationFile:
        station = StationFile(
            name=check_name(name or _host_name(), "station"),
            machine=disks.machine_id(),
            inode=self._disk.stat(self.root).st_ino,
            mark=self._mark(),
            created=from_us(self._clock.time_ns() // 1000),
        )
        self._save(station)
        return station

    def _save(self, station: StationFile) -> None:
        data = msgspec.json.format(msgspec.json.encode(station), indent=1) + b"\n"
        self._disk.replace_file(self.root / "station.json", data)

    # -- recovery, alone in the directory --------------------------------------------------------------------

    def _recover(self, station: StationFile) -> StationFile:
        moved = self._moved(station)
        unsynced = self.root / "unsynced"
        # New lives come first: recovered heads would look as if there had been no boot, if this is interrupted.
        if moved or (unsynced.exists() and self._rebooted()):
            self._renew_all(
                "the directory was copied, restored or moved" if moved else "a power cut may have taken messages back"
            )
        else:
            self._renew_copied()
        for name in channel.names(self.root, self._disk):
            for directory in self._partitions(name):
                self._recover_partition(station.name, name, directory)
        if moved:
            station = msgspec.structs.replace(
                station, machine=disks.machine_id(), inode=self._disk.stat(self.root).st_ino, mark=self._mark()
            )
            self._save(station)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(unsynced)
        self._sweep()
        return station

    def _moved(self, station: StationFile) -> bool:
        machine = disks.machine_id()
        return (
            station.inode != self._disk.stat(self.root).st_ino
            or station.mark != self._mark()
            or bool(machine and station.machine and station.machine != machine)
        )

    def _mark(self) -> str:
        """What tells a copy from the original though it got the same inodes: ``birth`` is never touched again.

        Whoever copies can set names, contents and modification times, but not the time of change.
        """
        path = self.root / "birth"
        if not path.exists():
            self._disk.close(self._disk.open(path, os.O_CREAT | os.O_WRONLY))
        made = self._disk.stat(path)
        return f"{made.st_ino}/{made.st_ctime_ns}"

    def _partitions(self, name: str) -> list[Path]:
        path = channel.channel_path(self.root, name)
        return [path / entry for entry in sorted(self._disk.listdir(path)) if entry.isdigit()]

    def place(self, name: str, number: int, station: str) -> indexing.Place:
        return indexing.Place(
            channel.channel_path(self.root, name) / str(number), station, number,
            self.root / "quarantine" / name / str(number),
        )  # fmt: skip

    def _rebooted(self) -> bool:
        """Whether some head dates from before this boot, or is lost."""
        return any(
            not self._head_fields(directory)[1]
            for name in channel.names(self.root, self._disk)
            for directory in self._partitions(name)
        )

    def _recover_partition(self, station: str, name: str, directory: Path) -> None:
        """Bring one partition's head up to date."""
        place = self.place(name, int(directory.name), station)
        changed_ns = self._disk.stat(directory).st_ctime_ns
        if self._unchanged(place, changed_ns):
            return
        entries = self._disk.listdir(directory)  # once, and not looked at one by one: a long log has many
        text = "/".join(entries)
        for entry in entries if ".tmp-" in text else ():
            if ".tmp-" in entry:  # half written, and nobody is there to go on
                self._disk.unlink(directory / entry)
        if redact.INTENT in text or segments.NEXT_INDEX in text:
            redact.finish(place, self._disk)
            entries = self._disk.listdir(directory)
        fields, known = self._head_fields(directory)
        ends = segments.first_and_last(entries)
        if fields is not None and known and recovery.agrees(place, self._disk, fields, ends):
            self._settle(directory, fields)
            if SYSTEM_CLOCK.time_ns() - changed_ns > LISTING_SETTLED_S * 1e9:
                self._note_look(directory, changed_ns)
            return
        report = recovery.recover(place, self._disk, None, self._clock.time_ns() // 1000)
        fresh = report.fields
        if fields is not None:
            if fresh.next < fields.next:
                self._renew(name, f"partition {directory.name} ends at {fresh.next}, it ended at {fields.next}")
            flags = fields.flags & FENCED if known else 0  # a fence is for what this boot's page cache may hold
            fresh = fresh._replace(state=((fields.generation + 1) << 8) | flags)
        Head.create(directory / "head", self._disk, self.boot, fresh)
        if report.missing:
            self._audit.write("damage", channel=name, partition=int(directory.name), missing=report.missing)

    def _unchanged(self, place: indexing.Place, changed_ns: int) -> bool:
        """Whether no file came or went since the partition was last looked through, and the head is in order still."""
        fields, known = self._head_fields(place.directory, changed_ns)
        if fields is None or not known:
            return False
        if not recovery.agrees(place, self._disk, fields, (fields.first, fields.base)):
            return False
        self._settle(place.directory, fields)
        return True

    def _note_look(self, directory: Path, changed_ns: int) -> None:
        """Remember when the directory had last changed before it was looked through: a long log has many files."""
        with contextlib.closing(Head(directory / "head", self._disk)) as head:
            head.words[LOOKED_THROUGH] = changed_ns

    def _settle(self, directory: Path, fields: Fields) -> None:
        """Sync what a killed process wrote and did not sync, and keep what it meant to delete and did not."""
        settled = fields._replace(state=fields.state & ~DELETED)
        if fields.synced != fields.written and not fields.flags & FENCED:
            try:
                recovery.sync(segments.path_of(directory, fields.base), self._disk)
                settled = settled._replace(synced=fields.written, synced_next=fields.next, synced_crc=fields.crc)
            except OSError as error:
                self._audit.write("fenced", partition=str(directory), error=str(error))
                settled = settled._replace(state=settled.state | FENCED)
        if settled != fields:
            Head.create(directory / "head", self._disk, self.boot, settled)

    def _head_fields(self, directory: Path, looked_ns: int | None = None) -> tuple[Fields | None, bool]:
        """What the head says, and whether it may be believed; nothing if the directory was not looked through then."""
        try:
            head = Head(directory / "head", self._disk)
        except (FileNotFoundError, TornHead, ValueError):
            return None, False
        try:
            if looked_ns is not None and head.words[LOOKED_THROUGH] != looked_ns:
                return None, False
            return head.load(), head.trusted(self.boot, self._disk)
        except TornHead:
            return None, False
        finally:
            head.close()

    def _renew_all(self, why: str) -> None:
        for name in channel.names(self.root, self._disk):
            self._renew(name, why)

    def _renew_copied(self) -> None:
        """A restored directory may have got the inode of the one before it; its heads then tell."""
        for name in channel.names(self.root, self._disk):
            if any(Head.copied(directory / "head", self._disk) for directory in self._partitions(name)):
                self._renew(name, "the channel was copied or restored")

    def _renew(self, name: str, why: str) -> None:
        try:
            file = channel.load(self.root, name, self._disk)
        except (Damaged, NotFound) as error:  # the station must open, or it could not be repaired, which renews it
            self._audit.write("damage", channel=name, why=str(error))
            return
        fresh = msgspec.structs.replace(file, incarnation=channel.new_incarnation())
        channel.save(self.root, fresh, self._disk)
        self._audit.write("incarnation", channel=name, before=file.incarnation, after=fresh.incarnation, why=why)

    def _sweep(self) -> None:
        """Remove what a crash left half made or half removed."""
        graves, deleted = channel.buried(self.root, self._disk)
        for place in [self.root / "channels", *(self.root / "channels" / name for name in self._names())]:
            for entry in self._disk.listdir(place):
                if entry.startswith(channel.NEW):
                    self._disk.remove_tree(place / entry)
        self._sweep_orphans(deleted)
        for grave in graves:  # last: it tells whose deletion is not finished
            self._disk.remove_tree(grave)

    def _sweep_orphans(self, deleted: set[str]) -> None:
        """What belongs to channels whose deletion was killed in the middle: a new one begins without.

        Where there is no channel at all, they may lie on a disk that is not mounted yet: positions and producers of
        those that are not in the trash stay, for nothing but these files knows them.
        """
        known = set(self._names())
        for folder in (self.root / "subscriptions", self.root / "producers" / "channels"):
            with contextlib.suppress(FileNotFoundError):
                for entry in self._disk.listdir(folder):
                    gone = entry not in known and (bool(known) or entry in deleted)
                    if gone and os.path.isdir(folder / entry):
                        self._disk.remove_tree(folder / entry)
        with contextlib.suppress(FileNotFoundError):
            for entry in self._disk.listdir(self.root / "seen"):
                if os.path.splitext(entry)[0] not in known:
                    self._disk.unlink(self.root / "seen" / entry)

    def _names(self) -> list[str]:
        return channel.names(self.root, self._disk)

    # -- while it is open -----------------------------------------------------------------------------------

    def check_there(self) -> None:
        """Whether the path still leads to the directory that was opened; not if it was only opened to be read."""
        if self._open_lock is not None and not self._open_lock.in_place():
            raise disks.moved_away(self.root)

    def note_unsynced(self) -> None:
        """Before the first append that readers may see unsynced: say so, durably."""
        if not self._unsynced_noted:
            if self.read_only:
                raise ReadOnly(f"{self.root} was opened with read_only=True")
            self._disk.replace_file(self.root / "unsynced", b"")
            self._unsynced_noted = True

    def close(self) -> None:
        """Everything is synced. The last one out says that nothing is left unsynced."""
        if self._open_lock is None:
            return
        with contextlib.suppress(OSError):
            if self._unsynced_noted and self._open_lock.try_exclusive() and self._all_synced():
                self._disk.unlink(self.root / "unsynced")
        self.abandon()

    def _all_synced(self) -> bool:
        """Not if a process was killed that had written what nobody synced since."""
        heads = [
            self._head_fields(directory)[0]
            for name in channel.names(self.root, self._disk)
            for directory in self._partitions(name)
        ]
        return all(fields is not None and fields.synced == fields.written for fields in heads)

    def abandon(self) -> None:
        if self._open_lock is not None:
            self._open_lock.release()
            self._open_lock = None


def _host_name() -> str:
    name = os.uname().nodename.split(".")[0]
    try:
        return check_name(name, "station")
    except InvalidName:
        return "station"
