"""Names on the command line: checked before anything is opened, completed by the shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import CompletionItem

from heliograph.cli.common import Common
from heliograph.names import check_name
from heliograph.patterns import Pattern, is_pattern


class Name(click.types.StringParamType):
    """A name that may become a path; anything else is refused here already."""

    def __init__(self, what: str) -> None:
        self.name = what

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, or InvalidName."""
        del param, ctx
        return check_name(value, self.name)


class Channel(Name):
    """The name of a channel."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The channels there are; whatever goes wrong, it is silent, because nobody could read an error."""
        del param
        try:
            with ctx.ensure_object(Common).open() as station:
                names = station.engine.channel_names()
        except Exception:  # noqa: BLE001 - as above
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class ChannelOrPattern(Channel):
    """The name of a channel, or a pattern that matches several."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name or the pattern, or InvalidName."""
        return Pattern(value).text if is_pattern(value) else super().convert(value, param, ctx)


class Channels(ChannelOrPattern):
    """Names and patterns, one or several with commas between them."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text, or InvalidName."""
        return ",".join(super(Channels, self).convert(word.strip(" "), param, ctx) for word in value.split(","))


CHANNEL: Final = Channel("channel")
CHANNEL_OR_PATTERN: Final = ChannelOrPattern("channel")
CHANNELS: Final = Channels("channel")
SUBSCRIPTION: Final = Name("subscription")
STATION: Final = Name("station")
PRODUCER: Final = Name("producer")
SCHEDULE: Final = Name("schedule")

partition_option = click.option(
    "--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition.  [default: all]"
)
channel_argument = click.argument("channel", type=CHANNEL)
channel_or_pattern_argument = click.argument("channel", type=CHANNEL_OR_PATTERN)
optional_channel_argument = click.argument("channel", required=False, type=CHANNEL)
