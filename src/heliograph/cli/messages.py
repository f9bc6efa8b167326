"""How messages are shown: as a table, as JSON lines, or as they are stored."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from heliograph.cli import output
from heliograph.cli.common import Common, clean
from heliograph.message import RESERVED, Message

FORMATS: Final = ("table", "json", "raw")
_WIDE_COLUMNS: Final = 110
"""From here on the type has a column of its own."""

format_option = click.option(
    "--format", "-o", "shape", type=click.Choice(FORMATS), default=None,
    help="How to print messages: table for people, json (one line each, with their offset), or raw as "
    "stored.  [default: table; json with --json]",
)  # fmt: skip


def to_json(message: Message) -> bytes:
    """The stored envelope with the message's place in this log, as one line without its newline.

    The place comes last: a header may have the same name, and of two JSON readers keep the last.
    """
    return b'%b,"partition":%d,"offset":%d}' % (message.raw[:-1], message.partition, message.offset)


def printer(
    common: Common, shape: str | None, *, several: bool = False, channels: bool = False
) -> Callable[[Message], None]:
    """What prints one message after the other; with ``channels`` its channel, with ``several`` partitions its place."""
    shape = shape or ("json" if common.json else "table")
    if shape == "json":
        return lambda message: output.write(to_json(message) + b"\n")
    if shape == "raw":
        return lambda message: output.write(message.raw + b"\n")
    return _Table(several=several, channels=channels)


class _Table:
    """Rows as they come; fixed columns, because nobody knows what comes next."""

    def __init__(self, *, several: bool, channels: bool) -> None:
        self._channels = channels
        self._several = several
        self._watched = sys.stdout.isatty()
        self._columns = shutil.get_terminal_size().columns if self._watched else 0
        self._wide = not self._watched or self._columns >= _WIDE_COLUMNS
        self._begun = False

    def __call__(self, message: Message) -> None:
        if not self._begun:
            self._begun = True
            self._print("CHANNEL", "PLACE" if self._several else "OFFSET", "TIME", "KEY", "TYPE", "DATA")
        time = output.moment(message.time, "milliseconds" if self._wide else "seconds")
        key = "-" if message.key is None else clean(message.key)
        place = f"{message.partition}/{message.offset}" if self._several else str(message.offset)
        self._print(message.channel, place, time, key, clean(message.type), clean(payload(message.data)))

    def _print(self, channel: str, offset: str, time: str, key: str, type_name: str, data: str) -> None:
        if self._wide:
            columns = [offset.rjust(8), time.ljust(24), self._fit(key, 12), self._fit(type_name, 24), data]
        else:
            columns = [offset.rjust(8), time.ljust(20), self._fit(key, 8), data]
        line = "  ".join([self._fit(channel, 24), *columns] if self._channels else columns)
        print(self._fit(line, self._columns).rstrip() if self._watched else line)

    def _fit(self, text: str, width: int) -> str:
        """As wide as that on a terminal, where some characters take two columns; else at least as wide."""
        if not self._watched:
            return text.ljust(width)
        from rich.cells import cell_len, set_cell_size

        if cell_len(text) > width:
            text = set_cell_size(text, width - 1) + "…"
        return set_cell_size(text, width)


def payload(data: Any) -> str:
    """A payload on one line: text as it is, anything else as JSON."""
    if isinstance(data, str):
        return data
    if isinstance(data, bytes):
        return f"{output.size(len(data))}: {data[:64]!r}"
    return msgspec.json.encode(data).decode()


def show(message: Message) -> None:
    """Everything about one message, for a person."""
    envelope = message.envelope
    headers = [(name, envelope[name]) for name in envelope if name not in RESERVED]
    output.facts([
        ("channel", message.channel), ("partition", message.partition), ("offset", str(message.offset)),
        ("id", message.id),
        ("time", output.moment(message.time)), ("type", message.type), ("source", message.source), ("key", message.key),
        ("subject", message.subject), ("correlation", message.correlationid),
        ("trace", message.traceparent), ("redriven for", message.redrivefor), *headers,
        ("origin", f"{message.origin} {message.originseq}"),
    ])  # fmt: skip
    print()
    show_payload(message.data)


def show_payload(data: Any) -> None:
    """A payload on as many lines as it needs."""
    if isinstance(data, (dict, list)):
        text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    else:
        text = payload(data)
    for line in text.split("\n"):
        print(clean(line))
