"""``helio schedule``: what waits for its time, and what is published again and again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli import output
from heliograph.cli.common import Common, plain
from heliograph.cli.durations import duration
from heliograph.cli.frame import command, group
from heliograph.cli.names import SCHEDULE, channel_argument, optional_channel_argument
from heliograph.cli.payloads import MODES, Reader
from heliograph.errors import NotFound

if TYPE_CHECKING:
    from heliograph.message import Receipt
    from heliograph.schedule.recurring import Schedule
    from heliograph.schedule.waiting import Scheduled


@group(
    "schedule",
    examples="""
helio pub alerts 'wake up' --delay 10m
helio schedule list alerts
helio schedule add nightly reports '{"kind": "daily"}' --cron '0 3 * * *'
""",
)
def schedule() -> None:
    """Messages that wait for their time, and recurring ones.

    They are delivered by whichever process has the station open ('helio sub', an application); what was due
    while none had comes as soon as one has.
    """


@command(
    "list",
    examples="""
helio schedule list
helio schedule list alerts --limit 20
helio schedule list --json | jq -r 'select(.error != "") | .id'
""",
)
@optional_channel_argument
@click.option("--limit", "-n", type=click.IntRange(min=1), metavar="N", help="Only the N that are due first.")
@click.pass_obj
def list_(common: Common, channel: str | None, limit: int | None) -> None:
    """List the messages that wait, those due first first.

    One that could not be delivered when it was due says why, and is tried again at least once a minute.
    """
    with common.open() as station:
        found = itertools.islice(station.scheduled(channel), limit)
        if common.json:
            for one in found:
                output.json_line(placed(one))
            return
        rows = list(found)
        if not rows:
            common.note("nothing waits; 'helio pub CHANNEL MESSAGE --delay 10m' schedules a message")
            return
        now_s = station.engine.clock.time_ns() / 1e9
    output.table(
        ["CHANNEL", "DUE", ">IN", "KEY", "ID", "~STATE"],
        [
            (one.channel, one.due, output.age(max(0.0, one.due.timestamp() - now_s)), one.key, one.id, _state(one))
            for one in rows
        ],
    )


def placed(one: Receipt) -> dict[str, Any]:
    """A receipt as JSON: a message that waits has no partition and offset yet."""
    return {name: value for name, value in plain(one).items() if name not in ("partition", "offset") or value >= 0}


def _state(one: Scheduled) -> str | output.Mark:
    if one.error:
        return output.Mark(one.error, "red")
    return "on its way" if one.moving else "waiting"


@command("recurring", examples="helio schedule recurring\nhelio schedule recurring --json | jq '.[].next'")
@click.pass_obj
def recurring(common: Common) -> None:
    """List the recurring schedules."""
    with common.open() as station:
        found = station.schedules()
    if common.json:
        output.document(plain(found))
    elif found:
        output.table(
            ["NAME", "CHANNEL", "CRON", "TIMEZONE", "MISSED", "NEXT", "LAST", "~ERROR"],
            [
                (one.name, one.channel, one.cron, one.timezone, one.missed, one.next, one.last, one.error)
                for one in found
            ],
        )
    else:
        common.note("no recurring schedules; 'helio schedule add' makes one")


@command("count", examples="helio schedule count\nhelio schedule count alerts")
@optional_channel_argument
@click.pass_obj
def count(common: Common, channel: str | None) -> None:
    """Print how many messages wait."""
    with common.open() as station:
        number = station.timetable.count(channel)
        failed = station.timetable.failed() if channel is None else None
    if common.json:
        output.document({"channel": channel, "waiting": number, "failed": failed})
    else:
        print(number)


@command("show", examples="helio schedule show 01a1e178-9ccc-7407-85f2-6133ee555df3\nhelio schedule show nightly")
@click.argument("reference", metavar="ID|NAME")
@click.pass_obj
def show(common: Common, reference: str) -> None:
    """Show a waiting message with its envelope, or a recurring schedule."""
    import msgspec

    with common.open() as station:
        found = station.timetable.find(reference)
        plan = next((one for one in station.schedules() if one.name == reference), None)
    if found is not None:
        one, envelope = found
        if common.json:
            output.document({**placed(one), "envelope": msgspec.Raw(envelope)})
            return
        output.facts(
            [("id", one.id), ("channel", one.channel), ("due", one.due), ("key", one.key), ("state", str(_state(one)))]
        )
        print(msgspec.json.format(envelope, indent=2).decode())
    elif plan is not None:
        if common.json:
            output.document(plain(plan))
        else:
            output.facts([(name, getattr(plan, name)) for name in plan.__struct_fields__])
    else:
        raise NotFound(f"no message with id {reference!r} waits, and no recurring schedule has that name")


@command("cancel", examples="helio schedule cancel 01a1e178-9ccc-7407-85f2-6133ee555df3")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.pass_obj
def cancel(common: Common, ids: tuple[str, ...]) -> None:
    """Take back messages that wait. What is delivered already, or on its way, is not found."""
    with common.open(write=True) as station:
        cancelled = [one for one in ids if station.cancel(one)]
    if common.json:
        output.document({"cancelled": cancelled})
    elif not common.quiet:
        for one in cancelled:
            print(f"cancelled {one}")
    missing = [one for one in ids if one not in cancelled]
    if missing:
        raise NotFound(f"not waiting (any more): {', '.join(missing)}")


@command(
    "add",
    examples="""
helio schedule add nightly reports '{"kind": "daily"}' --cron '0 3 * * *'
helio schedule add ping health ping --cron '*/5 * * * *' --ttl 1m
helio schedule add open shop open --cron '0 9 * * MON-FRI' --missed skip
helio schedule add noon bell ding --cron '0 12 * * *' --timezone Asia/Tokyo
""",
)
@click.argument("name", type=SCHEDULE)
@channel_argument
@click.argument("message")
@click.option(
    "--cron", required=True, metavar="EXPRESSION",
    help="When: minute, hour, day, month, weekday. Six fields begin with seconds.",
)  # fmt: skip
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="The zone its times are in.")
@click.option(
    "--missed", type=click.Choice(["one", "all", "skip"]), default="one", show_default=True,
    help="What becomes of times at which no process had the station open: one message for all, each, or none.",
)  # fmt: skip
@click.option("--as", "mode", type=click.Choice(MODES), default="auto", show_default=True, help="As in 'helio pub'.")
@click.option("--type", "type_name", metavar="NAME", help="The payload's type.")
@click.option("--key", help="The partition key.")
@click.option(
    "--ttl", metavar="TIME", callback=duration, help="Each message is not delivered any more after this time."
)
@click.pass_obj
def add(
    common: Common, name: str, channel: str, message: str, cron: str, timezone: str, missed: Any, mode: str,
    type_name: str | None, key: str | None, ttl: float | None,
) -> None:  # fmt: skip
    """Publish MESSAGE again and again, at the times of a cron expression.

    The same NAME again changes the schedule. The id of each message is NAME@TIME.
    """
    payload = Reader(mode, common.warn).payload(message.encode("utf-8", "surrogateescape"))
    with common.open(write=True) as station:
        made = station.schedule(
            name, channel, payload, cron=cron, timezone=timezone, missed=missed, type=type_name, key=key, ttl=ttl
        )
    _tell(common, made)


def _tell(common: Common, made: Schedule) -> None:
    if common.json:
        output.document(plain(made))
    elif not common.quiet:
        print(f"{made.name} publishes to {made.channel}, next at {output.moment(made.next, 'seconds')}")


@command("remove", examples="helio schedule remove nightly")
@click.argument("name", type=SCHEDULE)
@click.pass_obj
def remove(common: Common, name: str) -> None:
    """Remove a recurring schedule. What it has published stays."""
    with common.open(write=True) as station:
        if not station.unschedule(name):
            raise NotFound(f"there is no recurring schedule '{name}'; 'helio schedule recurring' lists them")
    if common.json:
        output.document({"removed": name})
    elif not common.quiet:
        print(f"removed {name}")


for _command in (list_, count, show, cancel, recurring, add, remove):
    schedule.add_command(_command)
