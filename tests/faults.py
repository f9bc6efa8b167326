"""Disks that fail on demand, and clocks that step.

``FaultyDisk`` counts every call and fails those it is told to: the Nth of a kind, the Nth of all, for once or until
it is healed; it can write short, run a hook in the middle of an operation, and die (``kill_at``).

``PowerDisk`` keeps beside the real files what a disk that loses its power would still hold: bytes that were
synced, names whose directory was synced. ``cut()`` then turns the directory into what is left, at worst or at random.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph.clock import Clock
from heliograph.disk import Disk

MUTATING = ("open", "write", "pwrite", "ftruncate", "unlink", "rename", "mkdir", "rmdir", "fdatasync", "sync_directory")
READING = ("pread", "lseek", "listdir", "scandir", "stat", "fstat")
KINDS = (*MUTATING, *READING, "flock", "dup", "close")
WRITES = ("write", "pwrite")


class Died(BaseException):
    """What a call of a dead disk raises: no handler of errors may catch it, as none runs in a killed process."""


class FaultyDisk(Disk):
    """A disk that fails when it is told to. Safe to use from several threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.journal: list[tuple[str, str]] = []
        self.recording = False
        self.fired: list[str] = []
        self.dead = False
        self.buried = False
        self.before: dict[str, Callable[..., None]] = {}
        self.after: dict[str, Callable[..., None]] = {}
        self._rules: list[Callable[[str, tuple[Any, ...]], BaseException | int | None]] = []
        self._paths: dict[int, str] = {}
        self._busy = threading.local()

    # -- what shall fail --------------------------------------------------------------------------------------

    def fail(
        self, kind: str, code: int = errno.EIO, *, at: int = 1, times: int = 1, path: str = "", short: int | None = None
    ) -> None:
        """Fail the ``at``-th call of a kind from now on, and the ``times - 1`` after it. ``path`` narrows it.

        ``short`` lets writes write so many bytes instead of failing; the next one of the call fails.
        """
        seen = 0

        def rule(called: str, arguments: tuple[Any, ...]) -> BaseException | int | None:
            nonlocal seen
            if called != kind or (path and path not in self._path_of(arguments)):
                return None
            seen += 1
            if not at <= seen < at + times:
                return None
            self.fired.append(called)
            return OSError(code, os.strerror(code)) if short is None else short

        self._rules.append(rule)

    def fail_at(
        self, number: int, code: int = errno.EIO, kinds: tuple[str, ...] = MUTATING, *, for_ever: bool = False
    ) -> None:
        """Fail the Nth call of any of these kinds from now on."""
        seen = 0

        def rule(called: str, arguments: tuple[Any, ...]) -> BaseException | int | None:
            nonlocal seen
            if called not in kinds:
                return None
            seen += 1
            if seen != number and not (for_ever and seen > number):
                return None
            self.fired.append(f"{called} {self._path_of(arguments)}")
            return OSError(code, os.strerror(code))

        self._rules.append(rule)

    def kill_at(self, number: int, kinds: tuple[str, ...] = MUTATING) -> None:
        """Die at the Nth call: it and all later ones but close raise Died."""
        seen = 0

        def rule(called: str, arguments: tuple[Any, ...]) -> BaseException | int | None:
            nonlocal seen
            seen += called in kinds
            if seen < number:
                return None
            if not self.dead:
                self.fired.append(f"{called} {self._path_of(arguments)}")
            self.dead = True
            return Died(called)

        self._rules.append(rule)

    def heal(self) -> None:
        """Nothing fails any more."""
        self._rules.clear()
        self.dead = False

    def bury(self) -> None:
        """Close every descriptor that is still open, as the kernel does for a killed process."""
        self.heal()
        self.buried = True
        for fd in list(self._paths):
            if self._paths.pop(fd, None) is not None:
                os.close(fd)

    # -- carrying it out --------------------------------------------------------------------------------------

    def _path_of(self, arguments: tuple[Any, ...]) -> str:
        if not arguments:
            return ""
        return self._paths.get(arguments[0], "") if isinstance(arguments[0], int) else str(arguments[0])

    def _call(self, kind: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if kind == "close":  # a dead process's files are closed, too
            if self._paths.pop(arguments[0], None) is None:
                # Closed before, or buried: by now the number may be a file of another story in this process.
                return None if self.buried else _bad_descriptor()
            return function(*arguments, **named)
        self.counts[kind] += 1
        if self.recording:
            self.journal.append((kind, self._path_of(arguments)))
        hook = self.before.get(kind)
        if hook is not None and not getattr(self._busy, "hooked", False):
            self._hooked(hook, arguments)
        verdicts = [rule(kind, arguments) for rule in tuple(self._rules)]
        for verdict in verdicts:
            if isinstance(verdict, BaseException):
                raise verdict
            if isinstance(verdict, int) and kind in WRITES:
                fd, data, *rest = arguments
                arguments = (fd, bytes(data)[:verdict], *rest)
        result = function(*arguments, **named)
        hook = self.after.get(kind)
        if hook is not None and not getattr(self._busy, "hooked", False):
            self._hooked(hook, arguments)
        return result

    def _hooked(self, hook: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._busy.hooked = True
        try:
            hook(self._path_of(arguments), *arguments)
        finally:
            self._busy.hooked = False

    def open(self, path: str | Path, flags: int, mode: int = 0o644) -> int:
        fd: int = self._call("open", super().open, path, flags, mode)
        self._paths[fd] = str(path)
        return fd

    def dup(self, fd: int) -> int:  # type: ignore[override]
        copy: int = self._call("dup", os.dup, fd)
        self._paths[copy] = self._paths.get(fd, "")
        return copy

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync", super().fdatasync, fd)

    def sync_directory(self, path: str | Path) -> None:
        self._call("sync_directory", super().sync_directory, path)


def _bad_descriptor() -> None:
    raise OSError(errno.EBADF, "closed twice")


def _forward(kind: str) -> Callable[..., Any]:
    real = getattr(Disk, kind)

    def call(self: FaultyDisk, *arguments: Any, **named: Any) -> Any:
        return self._call(kind, real, *arguments, **named)

    return call


for _kind in KINDS:
    if _kind not in FaultyDisk.__dict__:
        setattr(FaultyDisk, _kind, _forward(_kind))


class QuickDisk(Disk):
    """Syncs nothing: for stories that end by closing or killing, where the page cache survives."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str | Path) -> None:
        pass


class SteppedClock(Clock):
    """A wall clock that tests can set; the monotonic one goes on."""

    def __init__(self) -> None:
        self.step_us = 0

    def time_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + self.step_us * 1000


# -- a power cut ----


class PowerDisk(FaultyDisk):
    """Knows what would be left of a directory if the power failed now."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self._births: Counter[int] = Counter()  # inodes are used again: (inode, birth) is a file
        self._synced: dict[tuple[int, int], bytes] = {}  # file -> content that is on the platter
        self._names: dict[int, dict[str, tuple[int, int]]] = {}  # directory's inode -> name -> file, as last synced
        self._lock = threading.Lock()

    def _file(self, inode: int) -> tuple[int, int]:
        return inode, self._births[inode]

    def _listed(self, directory: str | Path) -> dict[str, tuple[int, int]]:
        return {entry.name: self._file(entry.inode()) for entry in os.scandir(directory)}

    def open(self, path: str | Path, flags: int, mode: int = 0o644) -> int:
        fresh = flags & os.O_CREAT and not os.path.exists(path)
        fd = super().open(path, flags, mode)
        if fresh:
            with self._lock:
                self._births[os.fstat(fd).st_ino] += 1
        return fd

    def rmdir(self, path: str | Path) -> None:  # type: ignore[override]
        inode = os.stat(path).st_ino
        self._call("rmdir", os.rmdir, path)
        with self._lock:
            self._names.pop(inode, None)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        with self._lock, open(f"/proc/self/fd/{fd}", "rb") as file:
            self._synced[self._file(os.fstat(fd).st_ino)] = file.read()

    def sync_directory(self, path: str | Path) -> None:
        super().sync_directory(path)
        with self._lock:
            self._names[os.stat(path).st_ino] = self._listed(path)

    def everything_is_durable(self) -> None:
        """Take the directory as it is for synced: where a story begins."""
        with self._lock:
            for directory, _, files in os.walk(self.root):
                self._names[os.stat(directory).st_ino] = self._listed(directory)
                for name in files:
                    path = Path(directory, name)
                    self._synced[self._file(path.stat().st_ino)] = path.read_bytes()

    def cut(self, luck: random.Random | None = None) -> None:
        """The power fails: without ``luck`` everything that was not synced is gone, else some of it."""
        with self._lock:
            self._cut(self.root, luck)

    def _cut(self, directory: Path, luck: random.Random | None) -> None:
        durable = self._names.get(directory.stat().st_ino, {})
        now = self._listed(directory)
        for name, file in now.items():
            path = directory / name
            if durable.get(name) != file and (luck is None or luck.random() < 0.5):
                self._lose_name(path, durable.get(name))
            elif path.is_dir():
                self._cut(path, luck)
            else:
                self._lose_bytes(path, file, luck)
        for name, file in durable.items():
            if name not in now and file in self._synced and (luck is None or luck.random() < 0.5):
                (directory / name).write_bytes(self._synced[file])  # its removal or renaming was not synced

    def _lose_name(self, path: Path, before: tuple[int, int] | None) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        elif before is not None and before in self._synced:
            path.write_bytes(self._synced[before])  # the renaming was not synced: the old file is back
        else:
            path.unlink()

    def _lose_bytes(self, path: Path, file: tuple[int, int], luck: random.Random | None) -> None:
        current, synced = path.read_bytes(), self._synced.get(file, b"")
        if current == synced:
            return
        if luck is None:
            left = synced
        elif current.startswith(synced):
            left = synced + _mangled(current[len(synced) :], luck)
        else:
            left = luck.choice([current, synced, _mixed(synced, current, luck)])
        with path.open("r+b") as stream:  # in place: inodes stay
            stream.truncate(0)
            stream.write(left)


def _mixed(synced: bytes, current: bytes, luck: random.Random) -> bytes:
    """What may be left of bytes that were overwritten and not synced: any of their blocks as it was, is, or garbage."""
    kept = bytearray(current if luck.random() < 0.5 else current[: max(len(synced), luck.randint(0, len(current)))])
    for start in range(0, len(kept), 512):
        before, now = synced[start : start + 512], bytes(kept[start : start + 512])
        if before == now:
            continue
        differ = (at for at, (one, other) in enumerate(zip(before, now, strict=False)) if one != other)
        same = next(differ, min(len(before), len(now)))
        fate = luck.random()
        if fate < 0.4:
            kept[start : start + 512] = (before + now[len(before) :])[: len(now)]
        elif fate < 0.5:
            kept[start + same : start + 512] = luck.randbytes(len(now) - same)
    return bytes(kept)


def _mangled(tail: bytes, luck: random.Random) -> bytes:
    """What may be left of bytes that were written and not synced: any of their blocks, in any state."""
    kept = bytearray(tail[: luck.randint(0, len(tail))])
    for start in range(0, len(kept), 512):
        fate = luck.random()
        if fate < 0.25:
            kept[start : start + 512] = bytes(len(kept[start : start + 512]))
        elif fate < 0.35:
            kept[start : start + 512] = luck.randbytes(len(kept[start : start + 512]))
    return bytes(kept)
