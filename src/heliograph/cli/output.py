"""Printing: JSON for programs, tables for people, plain text when nobody watches."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from heliograph.cli.common import Common, clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MARKS = ">~…"
_FLEXIBLE_MIN = 16
"""What a column that wraps or is cut is left with, however wide the others are."""

_PLAIN_WIDTH = 100_000
"""Nobody watches, so nothing is cut or wrapped."""

# -- bytes and lines ----------------------------------------------------------------------------------------


def prepare() -> None:
    """Let text pass straight into the buffer of bytes, so that both may be mixed without a flush for each.

    With PYTHONUNBUFFERED (many containers set it) there is no buffer, so that each line would be a system
    call, and a partial write would go unnoticed: then there is one, and what has to be seen is flushed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It was closed (`>&-`). Its number must not go to a log, where a command's output would end up.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    raw: Any = sys.stdout.buffer
    if isinstance(raw, io.RawIOBase):
        buffer = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffer, encoding=sys.stdout.encoding, line_buffering=raw.isatty())
    sys.stdout.reconfigure(write_through=True, errors="backslashreplace")


def write(data: bytes) -> None:
    """Bytes to stdout, in their place between what is printed."""
    sys.stdout.buffer.write(data)


def flush() -> None:
    """Everything out; here a closed pipe or a full disk shows."""
    sys.stdout.flush()


def discard() -> None:
    """Nobody reads stdout any more: what is still buffered must not fail once more at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def discard_if_broken() -> bool:
    """After an error: if stdout is what broke, let it go and say so."""
    try:
        flush()
    except OSError:
        discard()
        return True
    return False


def document(value: Any) -> None:
    """One JSON document; indented for a person, one line for a program."""
    encoded = _encoded(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    write(encoded + b"\n")


def json_line(value: Any) -> None:
    """One line of a stream of JSON."""
    write(_encoded(value) + b"\n")


def _encoded(value: Any) -> bytes:
    """JSON of anything. The name of a file need not be UTF-8; escaped, a program can make the same bytes of it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


@contextlib.contextmanager
def to_file(path: str | None) -> Iterator[BinaryIO]:
    """A file that appears when it is complete; stdout if there is no path, or ``-``.

    What is there and is no file (/dev/null, a pipe) is written to. A link stays one: its target is replaced.
    """
    if path is None or path == "-":
        yield sys.stdout.buffer
        flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as special:
            yield special
        return
    path = os.path.realpath(path)
    part = Path(path + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


# -- tables -------------------------------------------------------------------------------------------------


def console(stream: IO[str] | None = None) -> Console:
    """Where rich draws: as wide as the terminal, or without bounds when there is none."""
    from rich.console import Console

    stream = stream or sys.stdout
    watched = stream.isatty()
    return Console(
        file=stream, width=None if watched else _PLAIN_WIDTH, highlight=False, markup=False, emoji=False,
        soft_wrap=not watched,
    )  # fmt: skip


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows under headings.

    A heading that begins with ``>`` is of numbers; one that begins with ``~`` or ``…`` is of text that wraps, or
    is cut, so that the others fit a terminal. If that is not enough, the longest of the others wrap; numbers last.
    """
    if sys.stdout.isatty():
        terminal = console()
        terminal.print(rich_table(columns, rows, terminal.width))
    else:
        print(plain_table(columns, rows))


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> RenderableType:
    """As :func:`table`, for a terminal of that width."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    widths = [
        max([len(heading.lstrip(_MARKS)), *(len(cell(row[at])) for row in rows)]) for at, heading in enumerate(columns)
    ]
    for heading, space in zip(columns, _fitting(columns, widths, width), strict=True):
        rigid = heading.startswith((">", "…"))
        drawn.add_column(
            heading.lstrip(_MARKS), justify="right" if heading.startswith(">") else "left", no_wrap=rigid,
            overflow="ellipsis" if rigid else "fold", width=space,
        )  # fmt: skip
    for row in rows:
        drawn.add_row(*(Text(cell(value), style=_style(value)) for value in row))
    return drawn


def _fitting(columns: Sequence[str], widths: Sequence[int], width: int) -> list[int]:
    """The widths at which a table fits: text that may wrap or be cut gives way first, then other text, never numbers.

    >>> _fitting(["CHANNEL", ">MESSAGES", "~WHY"], [50, 8, 40], 80)
    [50, 8, 18]
    >>> _fitting(["CHANNEL", ">MESSAGES", "~WHY"], [50, 8, 40], 60)
    [32, 8, 16]
    """
    found, excess = list(widths), sum(widths) + 2 * (len(widths) - 1) - width
    flexible = [at for at, heading in enumerate(columns) if heading.startswith(("~", "…"))]
    others = [at for at, heading in enumerate(columns) if not heading.startswith(tuple(_MARKS))]
    for giving in (flexible, others):
        while excess > 0 and giving and found[longest := max(giving, key=found.__getitem__)] > _FLEXIBLE_MIN:
            found[longest] -= 1
            excess -= 1
    return found


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """As :func:`table`, without a terminal: aligned, uncut.

    >>> print(plain_table(["CHANNEL", ">MESSAGES"], [["alerts", 12_345], ["orders", 7]]))
    CHANNEL  MESSAGES
    alerts     12,345
    orders          7
    """
    lines = [[heading.lstrip(_MARKS) for heading in columns], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    right = [heading.startswith(">") for heading in columns]
    drawn = [
        "  ".join([
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        ]).rstrip()
        for line in lines
    ]  # fmt: skip
    return "\n".join(drawn)


def cell(value: Any) -> str:
    """A value as a person reads it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case datetime():
            return moment(value, "seconds")
    return clean(str(value))


class Mark(NamedTuple):
    """A word that is good or bad news, in the style of rich that says so."""

    text: str
    style: str

    def __str__(self) -> str:
        return self.text


def _style(value: Any) -> str:
    return value.style if isinstance(value, Mark) else ""


def heading(text: str) -> None:
    """A line that stands out on a terminal."""
    from rich.text import Text

    console().print(Text(text, style="bold"))


def facts(pairs: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one to a line; empty ones are left out."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "")]
    width = max([len(name) for name, _ in shown], default=0)
    columns = console().width
    for name, text in shown:
        wrapped = textwrap.wrap(text, columns - width - 2, break_on_hyphens=False) or [""]
        for label, line in zip([name, *[""] * (len(wrapped) - 1)], wrapped, strict=True):
            print(f"{label.ljust(width)}  {line}")


# -- progress -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(common: Common, what: str, *, sizes: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr while something long is done; nothing when nobody watches."""
    if common.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    counter = DownloadColumn(binary_units=True) if sizes else MofNCompleteColumn()
    columns = ("{task.description}", BarColumn(bar_width=None), counter, TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield update


# -- quantities ---------------------------------------------------------------------------------------------


def size(count: int) -> str:
    """Bytes as people say them.

    >>> size(900), size(1_500_000)
    ('900 B', '1.4 MiB')
    """
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{count} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def age(seconds: float | None) -> str:
    """A time span as people say it.

    >>> age(0.25), age(90), age(200_000), age(None)
    ('250 ms', '1.5 min', '2.3 d', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def moment(value: datetime | None, precision: str = "milliseconds") -> str:
    """A time as it may be given to --start: UTC.

    >>> moment(datetime(2026, 11, 15, 20, 30, 1, 123456, UTC))
    '2026-11-15T20:30:01.123Z'
    """
    if value is None:
        return "-"
    return value.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def several(count: int, what: str) -> str:
    """A count and its noun.

    >>> several(1, "message"), several(12_000, "message")
    ('1 message', '12,000 messages')
    """
    return f"{count:,} {what}" + ("" if count == 1 else "s")
