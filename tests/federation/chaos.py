"""A small proxy between stations that cuts connections in the middle of whatever they say."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


class Proxy:
    """Passes bytes on to a port; cuts a connection after a random number of them, and may hold everything up.

    ``rate``: bytes a second, each way; 0 is as fast as it goes.
    """

    def __init__(
        self, port: int, *, cut_after: tuple[int, int] = (1 << 60, 1 << 61), seed: int = 1, rate: int = 0
    ) -> None:
        self._target = port
        self._random = random.Random(seed)
        self.cut_after = cut_after
        self.cuts = 0
        self.passed = 0  # bytes, both ways
        self._rate = rate
        self.silent = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        if rate:  # or the kernel would take in a moment what the line takes a while for
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            left = [self._random.randrange(*self.cut_after)]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(*pair, left), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 * 1024):
                while self.silent.is_set() and not self._closed:
                    time.sleep(0.01)
                target.sendall(data[: max(0, left[0])])
                self.passed += len(data)
                if self._rate:
                    time.sleep(len(data) / self._rate)
                left[0] -= len(data)
                if left[0] <= 0:
                    self.cuts += 1
                    break
        self._shut(source, target)

    def _shut(self, *pair: socket.socket) -> None:
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._open.discard(one)

    def cut(self) -> None:
        """Cut everything that is connected now."""
        self.cuts += bool(self._open)
        self._shut(*list(self._open))

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextlib.contextmanager
def proxies(port: int) -> Iterator[Callable[..., Proxy]]:
    """Makes proxies before a port, and closes them in the end."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Proxy:
            made = Proxy(port, **options)
            stack.callback(made.close)
            return made

        yield make
