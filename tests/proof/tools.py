"""Children, patience, and a second reader of the on-disk format that shares no code with the first."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import google_crc32c

HERE = Path(__file__).parent
PATIENCE_S = 60.0


def eventually(condition: Callable[[], object], what: str = "", patience_s: float = PATIENCE_S) -> None:
    """Wait until it holds; how long that takes is nobody's business but the limit's."""
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, what or "it never happened"
        time.sleep(0.002)


class Child:
    """Another Python process that runs some code and speaks over its standard output."""

    def __init__(self, code: str | Path, *arguments: object, **popen: Any) -> None:
        program = [str(code)] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
        self.process = subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{HERE.parent.parent}"},
            **popen,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line it says; what went wrong if it says none."""
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(f"the child said nothing more: {self.process.stderr.read()}")
        return line

    def tell(self, line: str = "") -> None:
        """Say something to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and bury it."""
        self.process.kill()
        self.process.wait()
        self._close()

    def finish(self) -> str:
        """Wait for its end, which must be a good one; whatever it still said."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        return out

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        self.kill()


# -- reading the format as docs and design describe it, from the bytes alone ----

_SEGMENT = re.compile(r"(\d{20})\.jsonl(\.zst)?")


def segment_lines(directory: Path) -> list[tuple[int, list[bytes]]]:
    """First offset and lines of every segment. A segment ends with a newline, or is empty; behind the last is room."""
    found: dict[int, bytes] = {}
    for path in sorted(directory.iterdir()):
        match = _SEGMENT.fullmatch(path.name)
        if not match:
            continue
        if match[2]:
            found[int(match[1])] = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout
        else:
            found.setdefault(int(match[1]), path.read_bytes())
    segments = []
    if found:
        found[max(found)] = found[max(found)].rstrip(b"\r")
    for base, data in sorted(found.items()):
        assert not data or data.endswith(b"\n"), f"segment {base} of {directory} ends inside a line"
        segments.append((base, data.split(b"\n")[:-1]))
    return segments


def checked_log(root: Path, channel: str, *, holes: bool = False) -> dict[int, dict[str, Any]]:
    """Every stored message by its offset, after checking all that the format promises about them."""
    directory = root / "channels" / channel / "0"
    messages: dict[int, dict[str, Any]] = {}
    expected: int | None = None
    for base, lines in segment_lines(directory):
        assert expected is None or base == expected, f"segment {base} does not begin where the last ended, {expected}"
        for offset, line in enumerate(lines, base):
            if not line.strip(b" "):
                assert holes, f"offset {offset} is empty"
                continue
            messages[offset] = _checked_line(line, offset)
        expected = base + len(lines)
    ids = [message["id"] for message in messages.values()]
    assert len(ids) == len(set(ids)), "an id is stored twice"
    return messages


def _checked_line(line: bytes, offset: int) -> dict[str, Any]:
    body, mark, tail = line.rpartition(b',"crc":"')
    assert mark, f"offset {offset} has no checksum: {line!r}"
    assert tail == b'%08x"}' % google_crc32c.value(body), f"offset {offset} has a wrong checksum: {line!r}"
    envelope: dict[str, Any] = json.loads(line)
    assert envelope["originseq"] == f"0/{offset}", f"offset {offset} says it is {envelope['originseq']}"
    return envelope


def tree(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything about a directory that a trace would change."""
    found = {}
    for directory, _, files in os.walk(root):
        for name in ["", *files]:
            path = Path(directory, name)
            info = path.stat()
            content = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(root))] = (info.st_mtime_ns, info.st_size, info.st_ino, content)
    return found
