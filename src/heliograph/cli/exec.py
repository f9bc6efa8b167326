"""``helio sub --exec``: a command for each message."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import IO, TYPE_CHECKING, Final

import click

from heliograph.cli.messages import to_json

if TYPE_CHECKING:
    import subprocess

    from heliograph.message import Message

_TAIL_BYTES: Final = 1_000
"""How much of what a failing command said on stderr goes into its error, and so into the dead letter."""

_LINGER_S: Final = 0.5
"""How long to wait for the end of stderr once a command has ended: it may have left something running."""


class Command(click.types.StringParamType):
    """A shell command. An empty one (a variable that is not set) would succeed with each message and do nothing."""

    name = "command"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The command as it is."""
        if not value.strip():
            self.fail("it is empty, and every message would count as done.", param, ctx)
        return value


class CommandFailed(Exception):
    """The command did not exit with 0."""


class Exec:
    """Runs a shell command for each message.

    The command is a process group of its own, so that Ctrl-C at the terminal reaches helio only, which lets
    the command finish.
    """

    def __init__(self, command: str, timeout_s: float, *, capture: bool = False) -> None:
        self._command = command
        self._timeout_s = timeout_s or None
        self._capture = capture
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ending = False

    @property
    def running(self) -> bool:
        """Whether a command is at work."""
        return bool(self._running)

    def __call__(self, message: Message) -> None:
        """Run it; raises unless it exits with 0."""
        self.run(message)

    def run(self, message: Message) -> bytes:
        """Run it; what it printed, if that is captured. Raises unless it exits with 0."""
        import tempfile

        if not self._capture:
            self._run(message, None)
            return b""
        with tempfile.TemporaryFile() as stdout:
            self._run(message, stdout)
            stdout.seek(0)
            return stdout.read()

    def _run(self, message: Message, stdout: IO[bytes] | None) -> None:
        import subprocess
        import tempfile

        # A file, not a pipe: a command that does not read its input must not block or break anything.
        with tempfile.TemporaryFile() as stdin:
            stdin.write(to_json(message) + b"\n")
            stdin.seek(0)
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE,
                env=environment(message), process_group=0,
            )  # fmt: skip
        assert process.stderr is not None
        stderr = _Tail(process.stderr)
        self._running.add(process)
        try:
            if self._ending:
                _kill(process)
            status = process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            raise TimeoutError(f"the command took longer than {self._timeout_s:g} s and was killed") from None
        finally:
            self._running.discard(process)
            stderr.finish()
        if status:
            raise CommandFailed(_describe(status, stderr.text()))

    def end(self, _: int = 0) -> None:
        """Kill what runs; its message is delivered again by the next subscriber of the name."""
        self._ending = True
        for process in list(self._running):
            _kill(process)


def environment(message: Message) -> dict[bytes, bytes]:
    """What a command finds in its environment; a NUL, which cannot be there, becomes a replacement mark.

    As bytes: the locale may not know the characters of a key, and its stdin is UTF-8 whatever the locale.
    """
    told = {
        "CHANNEL": message.channel,
        "PARTITION": str(message.partition),
        "OFFSET": str(message.offset),
        "ID": message.id,
        "TYPE": message.type,
        "KEY": message.key or "",
    }
    said = {f"HELIOGRAPH_{name}": text.replace("\0", "\ufffd") for name, text in told.items()}
    return os.environb | {name.encode(): text.encode() for name, text in said.items()}


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _describe(status: int, said: str) -> str:
    if status < 0:
        try:
            what = f"killed by {signal.Signals(-status).name}"
        except ValueError:
            what = f"killed by signal {-status}"
    else:
        what = f"exit code {status}"
    return f"{what}: {said}" if said else what


class _Tail:
    """Passes a command's stderr on and remembers its end."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._tail = b""
        self._thread = threading.Thread(target=self._copy, name="helio-stderr", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        with self._source:
            while chunk := os.read(self._source.fileno(), 65_536):
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.buffer.write(chunk)
                    sys.stderr.buffer.flush()

    def finish(self) -> None:
        """Wait for the rest, a moment."""
        self._thread.join(_LINGER_S)

    def text(self) -> str:
        """Its last words, on one line."""
        return " ".join(self._tail.decode("utf-8", "replace").split())
