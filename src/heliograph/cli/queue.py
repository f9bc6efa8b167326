"""``helio queue``: list, show, release, redrive."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.dead import dry_run_option, offset_option, where_option
from heliograph.cli.frame import command, group
from heliograph.cli.names import Name, channel_argument, optional_channel_argument
from heliograph.cli.read import parse_where

if TYPE_CHECKING:
    from heliograph.station import Station
    from heliograph.station.info import QueueInfo

QUEUE = Name("queue")
_LEASES_PRINTED = 20


@group(
    "queue",
    examples="""
helio queue list
helio queue show images resize
helio queue release images resize --offset 17
""",
)
def queue() -> None:
    """Work queues: what waits, who works, what is stuck.

    A queue is a subscription whose messages are leased to one worker each and acknowledged one by one
    (queue=True, or station.queue). 'helio subscriptions' seeks and forgets it as any other.
    """


@command(
    "list",
    examples="""
helio queue list
helio queue list images --json | jq '.[] | select(.depth > 1000)'
""",
)
@optional_channel_argument
@click.pass_obj
def list_(common: Common, channel: str | None) -> None:
    """List queues: how deep, how much is in flight, how many work.

    DEPTH counts what waits to be handed out, DELAYED messages included; OLDEST is the age of the oldest message
    that is not acknowledged.
    """
    with common.open() as station:
        if channel is not None:
            station.channel(channel)  # an unknown channel is an error, not an empty list
        found = station.queues(channel)
        letters = _letters(station, channel) if found else Counter()
    if common.json:
        output.document([_json(info, letters) for info in found])
    elif found:
        output.table(
            ["CHANNEL", "QUEUE", ">DEPTH", ">IN FLIGHT", ">DELAYED", ">OLDEST", ">WORKERS", ">DEAD LETTERS"],
            [
                (info.channel, info.name, info.depth, info.in_flight, info.delayed, output.age(info.oldest_s),
                 sum(worker.live for worker in info.workers), letters[info.channel, info.name])
                for info in found
            ],
        )  # fmt: skip
    else:
        common.note("no queues; subscribing with queue=True, or station.queue(), makes one")


def _letters(station: Station, channel: str | None) -> Counter[tuple[str, str]]:
    """Dead letters by channel and queue."""
    from heliograph.admin import dead

    counted: Counter[tuple[str, str]] = Counter()
    for one in dead.summary(station, channel, None):
        counted[one.channel, one.subscription] += one.count
    return counted


def _json(info: QueueInfo, letters: Counter[tuple[str, str]]) -> dict[str, Any]:
    return {**plain(info), "dead_letters": letters[info.channel, info.name]}


@command(
    "show",
    short_help="Show a queue, its workers and its leases.",
    examples="""
helio queue show images resize
helio queue show images resize --json | jq '.leases[] | select(.left_s < 5)'
""",
)
@channel_argument
@click.argument("name", type=QUEUE)
@click.pass_obj
def show(common: Common, channel: str, name: str) -> None:
    """Show a queue: its numbers and settings, who works for it, and what is on its way.

    A message on its way is leased (somebody works on it), delayed (given back, until its time comes) or visible
    (whoever asks next gets it). LEFT is the time until the lease runs out, or the delay is over.
    """
    with common.open() as station:
        info = station.queue_info(channel, name)
        letters = _letters(station, channel)
    if common.json:
        output.document(_json(info, letters))
        return
    output.facts([
        ("queue", f"{info.name} of {info.channel}"), ("depth", info.depth), ("in flight", info.in_flight),
        ("delayed", info.delayed), ("oldest", output.age(info.oldest_s)),
        ("dead letters", letters[info.channel, info.name]), ("visibility", output.age(info.visibility_s)),
        ("max in flight", info.max_in_flight), ("max deliveries", info.max_deliveries),
    ])  # fmt: skip
    _print_workers(info)
    _print_leases(info)


def _print_workers(info: QueueInfo) -> None:
    if info.workers:
        print()
        output.table(
            ["WORKER", "LIVE", ">LEASES"],
            [
                (worker.name, output.Mark("yes", "green") if worker.live else output.Mark("no", "red"), worker.leases)
                for worker in info.workers
            ],
        )


def _print_leases(info: QueueInfo) -> None:
    if info.leases:
        print()
        output.table(
            ["PLACE", "STATE", ">DELIVERIES", ">LEFT", "WORKER"],
            [
                (f"{one.partition}/{one.offset}", one.state, one.deliveries, output.age(one.left_s), one.worker)
                for one in info.leases[:_LEASES_PRINTED]
            ],
        )
        if len(info.leases) > _LEASES_PRINTED:
            print(f"… and more: --json shows {len(info.leases):,}")


@command(
    "release",
    short_help="Take leases away from a worker that is stuck.",
    examples="""
helio queue release images resize --offset 17
helio queue release images resize --worker 4711-9f3a1c02
helio queue release images resize --all
""",
)
@channel_argument
@click.argument("name", type=QUEUE)
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="The lease of this message.")
@click.option(
    "--partition", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="The partition of --offset.",
)  # fmt: skip
@click.option("--worker", metavar="WORKER", help="All leases of this worker (see 'helio queue show').")
@click.option("--all", "everything", is_flag=True, help="All leases.")
@click.pass_obj
def release(
    common: Common, channel: str, name: str, offset: int | None, partition: int, worker: str | None, everything: bool
) -> None:
    """Take leases away: somebody else gets the messages at once, and they count as delivered once more.

    The worker that had them cannot acknowledge them any more. What a dead worker held needs no release.
    """
    if sum([offset is not None, worker is not None, everything]) != 1:
        raise click.UsageError("say which: --offset N, --worker WORKER, or --all")
    with common.open(write=True) as station:
        released = station.release(channel, name, worker=worker, partition=partition, offset=offset)
    if common.json:
        output.document({"channel": channel, "name": name, "released": released})
    elif not common.quiet:
        print(f"released {output.several(released, 'lease')} of {name} of {channel}")


@command(
    "redrive",
    short_help="Hand dead letters' originals out again, to this queue alone.",
    examples="""
helio queue redrive images resize --dry-run
helio queue redrive images resize
helio queue redrive images resize --where 'error~Timeout'
""",
)
@channel_argument
@click.argument("name", type=QUEUE)
@where_option
@offset_option
@dry_run_option
@click.pass_obj
def redrive(
    common: Common, channel: str, name: str, conditions: tuple[str, ...], offsets: tuple[int, ...], dry_run: bool
) -> int:
    """Hand the originals of this queue's dead letters out again and take the letters away.

    Nothing is published: only this queue gets the messages, from where they are in the log, with a fresh count of
    deliveries. A letter whose original was deleted or has expired stays: 'helio dead replay' publishes it again, for
    this queue. Exit code 1 if there are such.
    """
    from heliograph.admin.redrive import redrive as admin_redrive

    with common.open(write=not dry_run) as station:
        report = admin_redrive(
            station, channel, name, where=parse_where(conditions), offsets=offsets or None, dry_run=dry_run
        )
    if common.json:
        output.document(plain(report))
    else:
        for offset in report.gone:
            common.warn(f"offset {offset} stays: its original is gone or has expired; try 'helio dead replay'")
        if not common.quiet:
            count = report.matched - len(report.gone) if dry_run else report.redriven
            print(f"{'would redrive' if dry_run else 'redrove'} {output.several(count, 'dead letter')} to {name}")
    return exits.BAD if report.gone else exits.OK


for _command in (list_, show, release, redrive):
    queue.add_command(_command)
