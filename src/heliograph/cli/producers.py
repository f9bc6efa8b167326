"""``helio producers``: list, forget."""

from __future__ import annotations

import click

from heliograph.cli import output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command, group
from heliograph.cli.names import PRODUCER, channel_argument, optional_channel_argument


@group(
    "producers",
    examples="""
helio producers list
helio producers forget orders old-importer
""",
)
def producers() -> None:
    """Numbered publishers, whose repeated messages a channel recognises.

    They are made by station.producer(ID) in a program. A channel remembers a bounded number of them
    (publishing.producers_max).
    """


@command(
    "list",
    examples="""
helio producers list
helio producers list orders --json | jq -r '.[].producer'
""",
)
@optional_channel_argument
@click.pass_obj
def list_(common: Common, channel: str | None) -> None:
    """List the producers that channels remember, and the number of the last message of each.

    The number is that of the last checkpoint: a producer that is at work may be further.
    """
    with common.open() as station:
        if channel is not None:
            station.channel(channel)  # an unknown channel is an error, not an empty list
        found = station.producers(channel)
    if common.json:
        output.document(plain(found))
    elif found:
        output.table(
            ["CHANNEL", "PRODUCER", ">EPOCH", ">LAST"],
            [(info.channel, info.producer, str(info.epoch), str(info.last)) for info in found],
        )
    else:
        common.note("no producers; station.producer(ID) in a program makes one")


@command("forget", examples="helio producers forget orders old-importer")
@channel_argument
@click.argument("producer", type=PRODUCER)
@click.pass_obj
def forget(common: Common, channel: str, producer: str) -> None:
    """Make room for another producer: what this one publishes again is not recognised any more."""
    with common.open(write=True) as station:
        station.forget_producer(channel, producer)
    if common.json:
        output.document({"channel": channel, "producer": producer})
    elif not common.quiet:
        print(f"forgot producer {producer} of {channel}")


for _command in (list_, forget):
    producers.add_command(_command)
