"""The only door to files, so that tests can make a disk full, sick or dead.

Methods that add nothing are the builtins themselves: a call costs one attribute lookup.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from heliograph.errors import DiskFull, HeliographError, ReadOnly, StorageError

_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "9p",
        "fuse.sshfs",
        "afpfs",
        "webdav",
    }
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_numbers: Final = itertools.count()
_SYNC_FILE_RANGE_WRITE: Final = 2  # and not to wait: whoever waits there takes the error away from the sync
_AT_EMPTY_PATH: Final = 0x1000
_STATX_NLINK: Final = 4
F_FULLFSYNC: Final = 51  # macOS: fsync alone leaves the data in the drive's cache


def _sync_fully(fd: int) -> None:
    """macOS: until the data is on the medium."""
    fcntl.fcntl(fd, F_FULLFSYNC)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux alone has it, and the standard library no door to it. Loaded when it is first used."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        found = ctypes.CDLL(None).sync_file_range
    except (AttributeError, ImportError, OSError):  # a libc without, or no descriptor left to load it with
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    called: Callable[[int, int, int, int], int] = found
    return called


@functools.cache
def _statx() -> tuple[Callable[..., int], Callable[[], Any]] | None:
    """The call of the system, and what makes it a place for its answer; only Linux has it."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        found = ctypes.PyDLL(None).statx  # which keeps the interpreter: a file that is open is asked of in no time
    except (AttributeError, ImportError, OSError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    return found, ctypes.c_uint32 * 64


def _count_names(fd: int) -> int:
    """How many names an open file has, without asking for its times; -1 if that cannot be told."""
    found = _statx()
    if found is None:
        return -1
    statx, place = found
    answer = place()
    if statx(fd, b"", _AT_EMPTY_PATH, _STATX_NLINK, answer) != 0 or not answer[0] & _STATX_NLINK:
        return -1
    return int(answer[4])


class Disk:
    """Files as the operating system has them."""

    write = staticmethod(os.write)
    pwrite = staticmethod(os.pwrite)
    pread = staticmethod(os.pread)
    lseek = staticmethod(os.lseek)
    close = staticmethod(os.close)
    dup = staticmethod(os.dup)
    flock = staticmethod(fcntl.flock)
    ftruncate = staticmethod(os.ftruncate)
    unlink = staticmethod(os.unlink)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    listdir = staticmethod(os.listdir)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    stat = staticmethod(os.stat)
    fstat = staticmethod(os.fstat)
    fdatasync = staticmethod(_sync_fully if sys.platform == "darwin" else os.fdatasync)

    def linked(self, fd: int) -> bool:
        """Whether an open file has a name.

        Not with ``fstat`` if that can be: after it the next write and sync take two fifths longer (ext4 on Linux 6.18).
        A kernel that has told a file's times notes a new one with the next write. ``statx`` is not told them, and takes
        less than half the time of a look at ``/proc``.
        """
        names = _count_names(fd)
        if names >= 0:
            return names > 0
        try:
            return not os.readlink(f"/proc/self/fd/{fd}").endswith(" (deleted)")
        except OSError:
            return bool(self.fstat(fd).st_nlink)

    @staticmethod
    def start_sync(fd: int, position: int, length: int) -> None:
        """Let bytes that were written begin their way to the disk: what is done until they are synced costs no time.

        Nothing is promised by it, and what goes wrong is told by the sync.
        """
        begin = _sync_file_range()
        if begin is not None:
            begin(fd, position, length, _SYNC_FILE_RANGE_WRITE)

    def open(self, path: str | Path, flags: int, mode: int = 0o666) -> int:
        """As os.open; a program started from here does not inherit the descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def sync_directory(self, path: str | Path) -> None:
        """Make the names in a directory durable."""
        fd = self.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            self.close(fd)

    def write_all(self, fd: int, data: bytes | memoryview) -> None:
        """Write everything at the descriptor's position; a short write goes on where it stopped."""
        view = memoryview(data)
        while view:
            view = view[self.write(fd, view) :]

    def pwrite_all(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write everything at a position; a short write goes on where it stopped."""
        view = memoryview(data)
        while view:
            done = self.pwrite(fd, view, position)
            view, position = view[done:], position + done

    def read_range(self, fd: int, length: int, position: int) -> bytes:
        """Read exactly ``length`` bytes, or fewer at the end of the file."""
        data = self.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length and (more := self.pread(fd, length - have, position + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def uncache(self, fd: int, length: int, position: int) -> None:
        """Nobody will read that again soon: its memory may serve others. What is not synced stays."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)

    def read_file(self, path: str | Path) -> bytes:
        """A whole, small file."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return self.read_range(fd, self.fstat(fd).st_size, 0)
        finally:
            self.close(fd)

    def replace_file(self, path: str | Path, data: bytes, *, sync_names: bool = True) -> None:
        """Replace a small file so that a crash leaves the old or the new content, never a mixture."""
        temporary = f"{path}.tmp-{os.getpid()}-{next(_numbers)}"  # two threads may replace the same file
        try:
            fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                self.write_all(fd, data)
                self.fdatasync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if sync_names:
            self.sync_directory(Path(path).parent)

    @staticmethod
    def scandir(path: Path) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """The entries of a directory, which know what they are."""
        return os.scandir(path)

    def directories(self, path: Path) -> list[str]:
        """The names of the directories in one, in order. Others leave files there (.DS_Store)."""
        with self.scandir(path) as entries:
            return sorted([entry.name for entry in entries if entry.is_dir()])

    def remove_tree(self, path: str | Path) -> None:
        """Remove a directory and everything in it."""
        for name in self.listdir(path):
            entry = os.path.join(path, name)
            if os.path.isdir(entry) and not os.path.islink(entry):
                self.remove_tree(entry)
            else:
                self.unlink(entry)
        self.rmdir(path)


def _refuse(*_: object) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class TracelessDisk(Disk):
    """Another disk of which nothing is changed: what is opened with ``read_only=True`` has no other."""

    def __init__(self, disk: Disk) -> None:
        self._open = disk.open
        for name in ("pread", "lseek", "close", "flock", "listdir", "scandir", "stat", "fstat"):
            setattr(self, name, getattr(disk, name))
        for name in (
            *("write", "pwrite", "ftruncate", "unlink", "rename", "link", "mkdir", "rmdir"),
            *("fdatasync", "sync_directory"),
        ):
            setattr(self, name, _refuse)

    def open(self, path: str | Path, flags: int, mode: int = 0o644) -> int:
        """Open for reading; anything else is refused."""
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return self._open(path, flags, mode)


SYSTEM_DISK = Disk()


def anchored(path: str | os.PathLike[str]) -> Path:
    """What a path means now, whatever directory the process goes to later, as a daemon does.

    >>> anchored("data") == Path.cwd() / "data"
    True
    """
    try:
        return Path(path).absolute()
    except FileNotFoundError:  # the working directory is gone: whoever uses the path hears of it
        return Path(path)


def make_below(root: Path, path: Path) -> None:
    """Make a directory and those above it, but not the station's own: where that was, nothing is begun anew.

    FileNotFoundError if another process removes one of them in this moment.
    """
    above = path.parents[: len(path.relative_to(root).parts) - 1]
    try:
        for one in (*reversed(above), path):
            one.mkdir(exist_ok=True)
    except FileNotFoundError:
        if root.is_dir():
            raise
        raise moved_away(root) from None


def moved_away(root: Path) -> StorageError:
    """What to say when a station's directory is not where it was opened."""
    return StorageError(f"{root} was moved or deleted while this station had it open. Open it where it is now.")


def explain(error: OSError, doing: str) -> StorageError | ReadOnly:
    """Turn an OSError into ours: what happened, to what, and what to do next."""
    detail = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return DiskFull(f"{doing}: {detail}. Free space (or raise the quota); publishing resumes by itself.")
    if error.errno in _REFUSED:
        return ReadOnly(
            f"{doing}: {detail}. Check the owner and mode of the data directory, or open with read_only=True."
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StorageError(
            f"{doing}: too many open files. Raise the limit (ulimit -n) or lower storage.open_partitions_max."
        )
    return StorageError(f"{doing}: {detail}. Nothing was published; 'helio doctor' checks the disk.")


@contextlib.contextmanager
def explaining(doing: str) -> Iterator[None]:
    """Turn every OSError inside into ours. Also a decorator."""
    try:
        yield
    except OSError as error:
        if isinstance(error, HeliographError):  # NotAllowed, for example: it says enough
            raise
        where = f" ({error.filename})" if isinstance(error.filename, str | os.PathLike) else ""
        raise explain(error, f"{doing}{where}") from error


def boot_id() -> bytes:
    """Sixteen bytes that differ after every boot: a head file from before it is not to be trusted."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except OSError:  # macOS: no such file; the boot time in whole seconds identifies the boot
        import subprocess

        text = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, check=False).stdout
        import hashlib

        return hashlib.sha256(text).digest()[:16]


def machine_id() -> str:
    """A text that differs between machines; empty where the system has none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            return Path(path).read_text().strip()
    if sys.platform == "darwin":
        import subprocess

        return subprocess.run(["sysctl", "-n", "kern.uuid"], capture_output=True, check=False, text=True).stdout.strip()
    return ""


def file_system(path: Path) -> str:
    """The type of the file system that holds ``path``; empty where the system does not say."""
    try:
        mounts = Path("/proc/mounts").read_text()
    except OSError:
        return ""
    best, kind = "", ""
    target = str(path.resolve())
    for line in mounts.splitlines():
        _, point, fstype, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fstype
    return kind


def over_network(kind: str) -> bool:
    """Whether a file system of this type is reached over a network."""
    return kind in _NETWORK_FILE_SYSTEMS
