"""Wake-ups from other processes: watches the ``news`` files of partitions somebody waits for.

Linux has inotify (reached through libc: the standard library has no door to it), macOS kqueue. Where neither
works, readers still look once a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_EVENT: Final = struct.Struct("iIII")
_IN_MODIFY: Final = 0x2


class Watcher:
    """One thread that waits for news of all watched files of a station."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._known: dict[Path, int] = {}
        self._source: _Inotify | _Kqueue | None = None
        self._failed = False
        self._closed = False

    def watch(self, path: Path, callback: Callable[[], None]) -> None:
        """Call back whenever the file is written to. Cheap when it is watched already."""
        if path in self._known or self._failed or self._closed:
            return
        with self._lock:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
                if self._source is None:
                    self._source = _Inotify() if sys.platform == "linux" else _Kqueue()
                    threading.Thread(
                        target=self._run, args=(self._source,), name="heliograph-news", daemon=True
                    ).start()
                handle = self._source.add(path)
            except OSError:
                self._failed = self._source is None
                return
            self._callbacks[handle] = callback
            self._known[path] = handle

    @property
    def deaf(self) -> bool:
        """Whether nothing can be watched here."""
        return self._failed

    def unwatch(self, path: Path) -> None:
        with self._lock:
            handle = self._known.pop(path, None)
            if handle is not None and self._source is not None:
                self._callbacks.pop(handle, None)
                with contextlib.suppress(OSError):
                    self._source.remove(handle)

    def _run(self, source: _Inotify | _Kqueue) -> None:
        while not self._closed:
            try:
                handles = source.wait()
            except OSError:
                return
            for handle in handles:
                callback = self._callbacks.get(handle)
                if callback is not None:
                    callback()

    def close(self) -> None:
        self._closed = True
        if self._source is not None:
            self._source.stop()

    def abandon(self) -> None:
        """In a forked child: the thread does not exist here, only its descriptors."""
        self._closed = True
        if self._source is not None:
            self._source.close()


class _Inotify:
    def __init__(self) -> None:
        import ctypes

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd = self._check(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._stop_read, self._stop_write = os.pipe()
        self._open = [self._fd, self._stop_read, self._stop_write]
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._stop_read, select.POLLIN)

    def _check(self, result: int) -> int:
        import ctypes

        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def add(self, path: Path) -> int:
        return self._check(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY))

    def remove(self, handle: int) -> None:
        self._libc.inotify_rm_watch(self._fd, handle)

    def wait(self) -> set[int]:
        ready = dict(self._poll.poll())
        if self._stop_read in ready:
            self.close()
            raise OSError("stopped")
        data = os.read(self._fd, 64 * 1024)
        handles, at = set(), 0
        while at < len(data):
            handle, _, _, length = _EVENT.unpack_from(data, at)
            handles.add(handle)
            at += _EVENT.size + length
        return handles

    def stop(self) -> None:
        if self._open:
            os.write(self._stop_write, b"x")

    def close(self) -> None:
        _close_once(self._open)


class _Kqueue:
    def __init__(self) -> None:
        kqueue: Any = select
        self._queue: Any = kqueue.kqueue()
        self._note_write: int = kqueue.KQ_NOTE_WRITE
        self._stop_read, self._stop_write = os.pipe()
        self._open = [self._stop_read, self._stop_write]
        self._change(self._stop_read, "KQ_FILTER_READ", "KQ_EV_ADD", 0)

    def _change(self, fd: int, filter_name: str, flag: str, notes: int) -> None:
        kqueue: Any = select  # its names are missing from the stubs on Linux
        flags = getattr(kqueue, flag) | kqueue.KQ_EV_CLEAR
        self._queue.control([kqueue.kevent(fd, getattr(kqueue, filter_name), flags, notes)], 0)

    def add(self, path: Path) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._change(fd, "KQ_FILTER_VNODE", "KQ_EV_ADD", self._note_write)
        return fd

    def remove(self, handle: int) -> None:
        os.close(handle)

    def wait(self) -> set[int]:
        handles = {int(event.ident) for event in self._queue.control(None, 64)}
        if self._stop_read in handles:
            self.close()
            raise OSError("stopped")
        return handles

    def stop(self) -> None:
        if self._open:
            os.write(self._stop_write, b"x")

    def close(self) -> None:
        self._queue.close()
        _close_once(self._open)


def _close_once(descriptors: list[int]) -> None:
    """Close them, whichever of two threads comes first: closed twice, a number may be somebody else's by then."""
    with contextlib.suppress(IndexError):
        while True:
            os.close(descriptors.pop())
