"""``helio pub``: publish from the command line, files or a pipe."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final, cast

import click

from heliograph.cli import output
from heliograph.cli.common import Common
from heliograph.cli.durations import Number, duration, moment
from heliograph.cli.frame import command
from heliograph.cli.hubs import hub_client, hub_options
from heliograph.cli.names import channel_argument
from heliograph.cli.payloads import MODES, Reader
from heliograph.cli.schedule import placed
from heliograph.cli.signals import Stop, Terminated
from heliograph.errors import InvalidMessage, MessageTooLarge
from heliograph.message import attributes as own_attributes
from heliograph.names import check_publishable
from heliograph.payloads import Payloads
from heliograph.schedule.times import due_us, ttl_of

if TYPE_CHECKING:
    from datetime import datetime

    from heliograph.client import Client
    from heliograph.message import Receipt
    from heliograph.station import Station

_BATCH_MAX: Final = 10_000
"""Most messages of one append: as fast as more, and memory stays small."""

_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of one append, unless a single message has more."""

_CHUNK_BYTES: Final = 256 * 1024
"""How much of stdin is read at once."""

_TICK_S: Final = 0.02
"""With --rate, what is due within this time goes together."""


def _headers(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found[name] = value
    return found


header_option = click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers,
    help="A header. May be repeated.",
)  # fmt: skip


@command(
    "pub",
    examples="""
helio pub alerts 'system problem!'
helio pub alerts '{"message": "disk full", "level": 3}' --key host2
helio pub alerts '{"level": 3}' --type com.example.alert.v1 -H region=eu
tail -F /var/log/syslog | helio pub logs --as text  # each line is a message
helio pub photos --file cat.jpg --as bytes
helio pub prices null --as json --key ACME          # no data: deletes the key
helio pub test hello --count 1000 --rate 50         # fifty a second
helio pub alerts 'wake up' --delay 10m              # or --at 2026-11-16T06Z
helio pub prices '{"eur": 1.08}' --ttl 30s          # useless after that
helio pub alerts hello --hub hub.example:7740       # no data directory here
""",
)
@channel_argument
@click.argument("message", required=False)
@click.option(
    "--file", "-f", "files", multiple=True, metavar="FILE",
    help="Publish the whole content of a file as one message. May be repeated.",
)  # fmt: skip
@click.option(
    "--as", "mode", type=click.Choice(MODES), default="auto", show_default=True,
    help="What the input is. auto: JSON objects and lists as such, anything else as text. json: insist on "
    "JSON. text: as it is. base64: bytes, encoded. bytes: as it is, but no text.",
)  # fmt: skip
@click.option("--type", "type_name", metavar="NAME", help="The payload's type.  [default: heliograph.data.v1]")
@click.option("--key", help="The partition key: messages of one key stay in order.")
@header_option
@click.option("--correlation-id", metavar="ID", help="What the messages belong to.")
@click.option(
    "--count", "-n", type=click.IntRange(min=1), metavar="N", help="Publish MESSAGE N times, or N lines of stdin."
)
@click.option("--rate", type=Number(min=0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option("--delay", metavar="TIME", callback=duration, help="Deliver it later: after 250ms, 10s, 5m, 1h, 7d.")
@click.option(
    "--at", "deliver_at", metavar="TIME", callback=moment, help="Deliver it then; a time without a zone is UTC."
)
@click.option("--ttl", metavar="TIME", callback=duration, help="Do not deliver it any more after this time.")
@hub_options
@click.option("--receipts", is_flag=True, help="Print where each message is, not only a summary.")
@click.pass_obj
def pub(
    common: Common,
    channel: str,
    message: str | None,
    files: tuple[str, ...],
    mode: str,
    type_name: str | None,
    key: str | None,
    headers: dict[str, str],
    correlation_id: str | None,
    count: int | None,
    rate: float | None,
    delay: float | None,
    deliver_at: datetime | None,
    ttl: float | None,
    receipts: bool,
) -> None:
    """Publish messages to a channel, which is made if it is new.

    MESSAGE is one message. Without it, or with '-', every line of stdin is a message; what arrives together
    is appended together, in order. When helio returns, all of it is on disk. With --delay or --at it waits
    there; see 'helio schedule'. With --hub nothing is made here: the hub has it on its disk.
    """
    if message == "-":
        message = None
    if message is not None and files:
        raise click.UsageError("give MESSAGE or --file, not both")
    check_publishable(channel)  # before a station is made for it
    if delay is not None and deliver_at is not None:
        raise click.UsageError("give --delay or --at, not both")
    attributes: dict[str, Any] = {
        "type": type_name, "key": key, "headers": headers, "correlation_id": correlation_id, "delay": delay,
        "deliver_at": deliver_at, "ttl": ttl,
    }  # fmt: skip
    bytes_max = common.config().messages.max_bytes
    given = [message.encode("utf-8", "surrogateescape")] if message is not None else _read(files, bytes_max)
    reader = Reader(mode, common.warn)
    own_attributes(key, correlation_id, None, None, headers)  # all is checked before a station is made for it
    _check_times(delay, deliver_at, ttl)
    size = _checked(given[0], reader, type_name) if given else 0
    client = hub_client(common)
    if client is not None:
        _no_delay(attributes)
    elif size > bytes_max:
        raise MessageTooLarge(f"a message of {size} bytes for '{channel}'; messages.max_bytes is {bytes_max}")
    with client or common.open(create=True) as station, Stop() as stop:
        if message is None and not files:
            common.note("reading messages, one per line; Ctrl-D ends") if sys.stdin.isatty() else None
            batches, single = _few(_lines(stop, bytes_max), count), False
        else:
            batches, single = _repeat(given, count or 1), len(given) * (count or 1) == 1
        publishing = _Publishing(common, station, channel, attributes, reader)
        publishing.each = receipts or single
        publishing.place = "message {}" if message is not None or files else "line {}"
        publishing.run(batches, stop, rate)


def _check_times(delay: float | None, deliver_at: datetime | None, ttl: float | None) -> None:
    ttl_of(ttl)
    if delay is not None or deliver_at is not None:
        due_us(time.time_ns() // 1000, deliver_at, delay)


def _checked(raw: bytes, reader: Reader, type_name: str | None) -> int:
    """Refuse a payload that nobody can publish before a station is made for it; how many bytes it takes at least."""
    data = reader.payload(raw)
    if isinstance(data, bytes):
        return -(-len(data) // 3) * 4  # as base64
    return len(Payloads().check_and_encode(type_name, data)[1])


def _no_delay(attributes: dict[str, Any]) -> None:
    """A hub appends at once; what waits for its time waits in a station."""
    if attributes.pop("delay") is not None or attributes.pop("deliver_at") is not None:
        raise click.UsageError("--delay and --at need a station to wait in; leave out --hub, or them")


# -- where messages come from -------------------------------------------------------------------------------


def _read(files: Iterable[str], bytes_max: int) -> list[bytes]:
    found = []
    for name in files:
        if name == "-":
            found.append(sys.stdin.buffer.read(bytes_max + 1))
        else:
            with open(name, "rb") as file:
                found.append(file.read(bytes_max + 1))  # publish refuses it, with size and limit in the error
    return found


def _repeat(given: list[bytes], count: int) -> Iterator[list[bytes]]:
    items = itertools.chain.from_iterable(itertools.repeat(given, count))
    together = max(1, min(_BATCH_MAX, _BATCH_BYTES_MAX // max(1, *map(len, given))))
    while batch := list(itertools.islice(items, together)):
        yield batch


def _lines(stop: Stop, bytes_max: int) -> Iterator[list[bytes]]:
    """What is there now, in whole lines: one from a person, thousands from a file."""
    stdin, rest = cast(BufferedReader, sys.stdin.buffer), bytearray()  # of a line whose end has not come yet
    while True:
        with stop.waiting():
            chunk = stdin.read1(_CHUNK_BYTES)
        if not chunk:
            break
        head, newline, tail = chunk.partition(b"\n")
        rest += head
        lines = []
        if newline:
            *others, last = tail.split(b"\n")
            lines, rest = [bytes(rest), *others], bytearray(last)
        if len(rest) > bytes_max:
            lines, rest = [*lines, bytes(rest)], bytearray()  # publish refuses it, with size and limit in the error
        if lines:
            yield lines
    if rest:
        yield [bytes(rest)]


def _few(batches: Iterator[list[bytes]], count: int | None) -> Iterator[list[bytes]]:
    for batch in batches:
        yield batch if count is None else batch[:count]
        if count is not None:
            count -= len(batch)
            if count <= 0:
                return


# -- publishing ---------------------------------------------------------------------------------------------


class _Publishing:
    """Publishes batches, says how far it came."""

    def __init__(
        self, common: Common, station: Station | Client, channel: str, attributes: Mapping[str, Any], reader: Reader
    ) -> None:
        self.each = False
        self.place = "message {}"
        self._common = common
        self._station = station
        self._channel = channel
        self._attributes = attributes
        self._payload = reader.payload
        self._later = attributes.get("delay") is not None or attributes.get("deliver_at") is not None
        self._verb = "scheduled" if self._later else "published"
        self._done = 0
        self._first: int | None = None
        self._last: int | None = None
        self._started_s = time.monotonic()

    def run(self, batches: Iterator[list[bytes]], stop: Stop, rate: float | None) -> None:
        together = _BATCH_MAX if rate is None else max(1, int(min(_BATCH_MAX, rate * _TICK_S)))
        try:
            for batch in batches:
                for at in range(0, len(batch), together):
                    stop.raise_if_asked()
                    self._publish(batch[at : at + together])
                    if rate is not None:
                        pause_s = self._started_s + self._done / rate - time.monotonic()
                        stop.asked.wait(min(pause_s, threading.TIMEOUT_MAX))
        except (KeyboardInterrupt, Terminated):
            self._common.note(f"stopped; {output.several(self._done, 'message')} {self._verb} to {self._channel}")
            raise
        self._summary()

    def _publish(self, batch: list[bytes]) -> None:
        payload, station = self._payload, self._station
        try:
            payloads = [payload(raw) for raw in batch]
            self._note(station.publish_many(self._channel, payloads, **self._attributes))
        except InvalidMessage:
            # One of them cannot be published. Those before it can, and then it is known which one it was.
            for raw in batch:
                self._publish_one(raw)

    def _publish_one(self, raw: bytes) -> None:
        try:
            self._note([self._station.publish(self._channel, self._payload(raw), **self._attributes)])
        except InvalidMessage as error:
            before = f"; {output.several(self._done, 'message')} before it published" if self._done else ""
            place = f"{self.place.format(self._done + 1)}: " if before or "line" in self.place else ""
            raise type(error)(f"{place}{error}{before}") from error

    def _note(self, receipts: list[Receipt]) -> None:
        if self._first is None and receipts and not self._later:
            self._first = receipts[0].offset
        if receipts and not self._later:
            self._last = receipts[-1].offset
        self._done += len(receipts)
        if self.each and self._common.json:
            for receipt in receipts:
                output.json_line(placed(receipt))
        elif self.each and not self._common.quiet:
            for receipt in receipts:
                due = getattr(receipt, "due", None)
                place = f"at offset {receipt.offset}" if due is None else f"for {output.moment(due)}"
                print(f"{self._verb} to {receipt.channel} {place}, id {receipt.id}")
        output.flush()

    def _summary(self) -> None:
        seconds = time.monotonic() - self._started_s
        if self.each:
            return
        if self._common.json:
            output.document({
                "channel": self._channel, self._verb: self._done, "first": self._first, "last": self._last,
                "seconds": round(seconds, 6),
            })  # fmt: skip
        elif not self._common.quiet:
            offsets = f", offsets {self._first} to {self._last}" if self._done and not self._later else ""
            rate = f", {self._done / seconds:,.0f} a second" if self._done > 1 and seconds > 0 else ""
            print(f"{self._verb} {output.several(self._done, 'message')} to {self._channel}{offsets}{rate}")
