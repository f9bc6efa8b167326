"""What ``helio top`` draws, as text: the line at the top, the cells of the table, the pane of details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heliograph.admin.overview import ChannelView, ReaderView, View
from heliograph.cli import output
from heliograph.config.units import human_duration, human_size
from heliograph.log.channel import ChannelSettings

BARS: Final = " ▁▂▃▄▅▆▇█"
ORDER_OF_COLUMN: Final = ("name", "rate", "messages", "size", "lag", "behind", "", "dead")
_NAMES: Final = ("CHANNEL", "PER S", "MSGS", "SIZE", "LAG", "BEHIND", "LIVE", "DEAD")
_WIDTHS: Final = (0, 6, 6, 6, 6, 7, 5, 5)
_NAME_MIN: Final = 12


class Column(NamedTuple):
    """A column of the table."""

    label: Text
    width: int


def number(count: float | None) -> str:
    """A count in at most six characters.

    >>> number(0.4), number(950), number(12_345), number(123_456), number(1_234_567), number(None)
    ('0.4', '950', '12,345', '123k', '1.23M', '-')
    """
    if count is None:
        return "-"
    if count < 10 and count != int(count):
        return f"{count:.1f}"
    for limit, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**5, "k")):
        if count >= limit:
            return f"{count / (limit if unit != 'k' else 1000):.3g}{unit}"
    return f"{count:,.0f}"


def short_size(count: int) -> str:
    """Bytes in at most six characters.

    >>> short_size(277), short_size(1_500_000), short_size(1 << 50)
    ('277', '1.4M', '1024T')
    """
    value = float(count)
    for unit in ("", "K", "M", "G", "T"):
        if value < 1000 or unit == "T":
            return f"{value:.1f}{unit}" if unit and value < 100 else f"{value:.0f}{unit}"
        value /= 1024
    raise AssertionError


def shortened(name: str, width: int) -> str:
    """A name that fits; its end tells as much as its beginning.

    >>> shortened("sensors.kitchen.temperature", 20)
    'sensors.k…emperature'
    """
    if len(name) <= width:
        return name
    tail = width // 2
    return f"{name[: width - tail - 1]}…{name[len(name) - tail :]}"


def columns(width: int, sort: str, *, reverse: bool) -> list[Column]:
    """The columns for a table of that width; the name takes what the others leave."""
    left = width - sum(_WIDTHS) - 2 * len(_WIDTHS) - 1  # two of padding each, one for a scroll bar
    found = []
    for name, wide, order in zip(_NAMES, _WIDTHS, ORDER_OF_COLUMN, strict=True):
        mark = ("▲" if (order == "name") != reverse else "▼") if order == sort else ""
        space = wide or max(_NAME_MIN, left)
        text = f"{name}{mark}" if not wide else f"{name}{mark}".rjust(space)
        found.append(Column(Text(text, style="bold", no_wrap=True), space))
    return found


def cells(one: ChannelView, width: int) -> list[Text]:
    """A channel's row."""
    return [
        _name(one, width),
        _right(number(one.rate), "green" if one.rate else ""),
        _right(number(one.messages)),
        _right(short_size(one.bytes)),
        _right(number(one.lag) if one.readers else "-", "yellow" if one.lag else ""),
        _right(output.age(one.lag_s) if one.readers else "-", "yellow" if one.lag_s else ""),
        _right(f"{one.live}/{len(one.readers)}" if one.readers else "-", _life(one.live, len(one.readers))),
        _right(number(one.dead_letters) if one.dead_letters else "-", "bold red" if one.dead_letters else ""),
    ]


def _name(one: ChannelView, width: int) -> Text:
    text = f"! {one.name}" if one.fenced else one.name
    return Text(shortened(text, width), style="bold red" if one.fenced else "", no_wrap=True)


def _right(text: str, style: str = "") -> Text:
    return Text(text, style=style or ("dim" if text in ("-", "0") else ""), justify="right", no_wrap=True)


def _life(live: int, readers: int) -> str:
    return "" if not readers else "green" if live == readers else "yellow" if live else "red"


def summary(view: View, shown: int, count: int, *, interval_s: float, paused: bool) -> Text:
    """The line at the top: the station, how many of its channels are shown, and everything together."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(view.station, style="bold")
    if paused:
        text.append("  PAUSED ", style="bold yellow")
    text.append(f"  {output.several(count, 'channel')}" if shown == count else f"  {shown} of {count} channels")
    text.append(f"  {number(view.rate)}/s", style="green" if view.rate else "")
    text.append(f"  {output.size(view.bytes)}")
    text.append(f"  lag {number(view.lag)}", style="yellow" if view.lag else "")
    text.append(f"  dead {number(view.dead_letters)}", style="bold red" if view.dead_letters else "")
    text.append(f"  every {interval_s:g} s", style="dim")
    text.append(f"  {view.path}", style="dim")
    return text


# -- one channel ----------------------------------------------------------------------------------------------------


def detail(
    one: ChannelView, settings: ChannelSettings | None, history: Sequence[float], width: int
) -> RenderableType:  # fmt: skip
    """Everything about a channel."""
    title = Text(one.name, style="bold")
    if one.fenced:
        title.append("  fenced: a sync failed; run 'helio verify --repair'", style="bold red")
    speed = "" if one.byte_rate is None else f", {output.size(int(one.byte_rate))}/s"
    stored = f"{output.several(one.messages, 'message')} in {output.several(one.segments, 'segment')}"
    held = Text(f"{stored}, {output.size(one.bytes)}; {number(one.rate)}/s{speed}")
    parts: list[RenderableType] = [title, held, Text(f"{_offsets(one)}keeps {retention(settings)}")]
    if one.dead_letters:
        grows = f", {number(one.dead_rate)}/s" if one.dead_rate else ""
        parts.append(Text(f"{output.several(one.dead_letters, 'dead letter')}{grows}", style="red"))
    if any(history):
        line = Text(sparkline(history, width - 14), style="green")
        line.append(f" ≤ {number(max(history))}/s", style="dim")
        parts.append(line)
    parts.append(_readers(one.readers) if one.readers else Text("no durable subscriptions", style="dim"))
    if len(one.partitions) > 1:
        parts.append(_partitions(one))
    return Group(*parts)


def _offsets(one: ChannelView) -> str:
    """Where the only partition begins and ends; several have a table."""
    if len(one.partitions) > 1:
        return f"{len(one.partitions)} partitions; "
    return "".join(f"offsets {part.first} to {part.next - 1}; " for part in one.partitions if part.next > part.first)


def retention(settings: ChannelSettings | None) -> str:
    """How long messages are kept.

    >>> retention(ChannelSettings(retention_age_s=604800.0, retention_bytes=1 << 30))
    'at most 7d and 1GiB'
    >>> retention(ChannelSettings())
    'everything'
    """
    if settings is None:
        return "nothing: it is gone"
    bounds = []
    if settings.retention_age_s:
        bounds.append(str(human_duration(settings.retention_age_s, "s")))
    if settings.retention_bytes:
        bounds.append(str(human_size(settings.retention_bytes)))
    said = ["at most " + " and ".join(bounds)] if bounds else []
    if settings.retention_compact:
        said.append("the newest of each key")
    if settings.retention_archived:
        said.append("what is not archived")
    if settings.retention_once_read:
        said.append("what is not read by all")
    kept = ", ".join(said) or "everything"
    return f"{kept}, compressed" if settings.compress else kept


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars, the newest at the right.

    >>> sparkline([0, 1, 2, 4], 6)
    ' ▂▄█'
    """
    shown = list(values)[-max(1, width) :]
    most = max(shown, default=0.0)
    if not most:
        return ""
    return "".join(BARS[max(1, round(value / most * 8)) if value else 0] for value in shown)


def _grid(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right", no_wrap=True, overflow="ellipsis")
    return table


def _readers(readers: Sequence[ReaderView]) -> Table:
    table = _grid("subscription", "live", "lag", "behind", "per s")
    for one in sorted(readers, key=lambda reader: -reader.lag):
        alive = "yes" if one.kind == "plain" else str(one.workers)
        live = Text(alive, style="green") if one.live else Text("no", style="red" if one.lag else "dim")
        lag = Text(number(one.lag), style="yellow" if one.lag else "dim")
        name = one.name if one.kind == "plain" else f"{one.name} ({one.kind})"
        table.add_row(name, live, lag, output.age(one.lag_s), number(one.rate))
    return table


def _partitions(one: ChannelView) -> Table:
    table = _grid("part", "first", "next", "size", "segs", "per s")
    for part in one.partitions:
        table.add_row(
            Text(f"{part.partition} fenced", style="red") if part.fenced else str(part.partition),
            str(part.first), str(part.next), short_size(part.bytes), str(part.segments), number(part.rate),
        )  # fmt: skip
    return table
