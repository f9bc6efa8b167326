"""``helio channels``: list, show, create, alter, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from heliograph import config as configs
from heliograph.cli import output
from heliograph.cli.ask import confirm_name
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command, group
from heliograph.cli.names import channel_argument
from heliograph.cli.settings import human
from heliograph.log.channel import ChannelSettings

if TYPE_CHECKING:
    from heliograph.station import Station
    from heliograph.station.info import ChannelInfo

F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = {
    setting.keyword: setting for setting in configs.describe() if setting.keyword in ChannelSettings.__struct_fields__
}


def option_of(field: str) -> str:
    """The option for a channel's setting; a unit at the end is for machines.

    >>> option_of("retention_age_s")
    '--retention-age'
    """
    return "--" + field.removesuffix("_s").replace("_", "-")


def _settings_options(function: F) -> F:
    """An option for each setting a channel may have of its own, with the configuration's description."""
    for field, setting in reversed(_SETTINGS.items()):
        name, doc = option_of(field), setting.doc.replace("`", "")
        if setting.kind == "yes or no":
            decorate = click.option(f"{name}/--no-{name[2:]}", field, default=None, help=doc)
        else:
            metavar = {"size": "SIZE", "duration": "TIME"}.get(setting.kind, "VALUE")
            decorate = click.option(name, field, metavar=metavar, help=doc)
        function = decorate(function)
    return function


@group(
    "channels",
    examples="""
helio channels list
helio channels create logs --retention-age 7d --compress
helio channels alter logs --retention-bytes 10GiB --partitions 8
""",
)
def channels() -> None:
    """Channels: what there is, and how long it is kept."""


@command(
    "list",
    examples="""
helio channels list
helio channels list --json | jq -r '.[].name'
helio channels list --replies                  # also those of requests
""",
)
@click.option("--replies", is_flag=True, help="Also the channels in which requests are answered.")
@click.pass_obj
def list_(common: Common, replies: bool) -> None:
    """List the channels with what they hold."""
    with common.open() as station:
        found = station.channels(replies=replies)
    if common.json:
        output.document(plain(found))
        return
    if not found:
        common.note("no channels yet; publishing makes them")
        return
    output.table(
        ["CHANNEL", ">PARTITIONS", ">MESSAGES", ">FIRST", ">NEXT", ">SIZE", ">SEGMENTS", "STATE"],
        [
            (info.name, info.partitions, info.messages, _offset(info, info.first), _offset(info, info.next),
             output.size(info.bytes), info.segments, _state(info.fenced))
            for info in found
        ],
    )  # fmt: skip


def _offset(info: ChannelInfo, offset: int) -> str:
    """Offsets are those of one partition."""
    return str(offset) if info.partitions == 1 else ""


def _state(fenced: bool) -> output.Mark:
    return output.Mark("fenced", "red") if fenced else output.Mark("ok", "green")


@command(
    "show",
    examples="""
helio channels show alerts
helio channels show alerts --json
""",
)
@channel_argument
@click.pass_obj
def show(common: Common, channel: str) -> None:
    """Show a channel: what it holds, its settings and its subscriptions."""
    with common.open() as station:
        info = station.channel(channel)
        effective = station.engine.settings(station.engine.describe(channel))
        subscriptions = station.subscriptions(channel)
    if common.json:
        output.document(plain(info) | {"effective": plain(effective), "subscriptions": plain(subscriptions)})
        return
    output.facts([
        ("channel", info.name), ("messages", info.messages), *([_offsets(info)] if info.partitions == 1 else []),
        ("size", f"{output.size(info.bytes)} in {output.several(info.segments, 'segment')}"),
        ("partitions", info.partitions), ("created", info.created), ("incarnation", info.incarnation),
        ("state", "fenced: a sync failed; run 'helio verify --repair'" if info.fenced else "ok"),
    ])  # fmt: skip
    if info.partitions > 1:
        print()
        output.table(
            [">PARTITION", ">MESSAGES", ">FIRST", ">NEXT", ">SIZE", ">SEGMENTS", "STATE"],
            [
                (part.partition, part.messages, str(part.first), str(part.next), output.size(part.bytes),
                 part.segments, _state(part.fenced))
                for part in info.parts
            ],
        )  # fmt: skip
    print()
    output.table(["SETTING", "VALUE", "FROM"], _setting_rows(info.settings, effective))
    if subscriptions:
        from heliograph.cli.subscriptions import print_table

        print()
        print_table(subscriptions)


def _offsets(info: ChannelInfo) -> tuple[str, str]:
    return "offsets", f"{info.first} to {info.next - 1}" if info.messages else f"none; next is {info.next}"


def _setting_rows(own: ChannelSettings, effective: ChannelSettings) -> list[tuple[str, str, str]]:
    rows = []
    for field, setting in _SETTINGS.items():
        whose = "this channel" if getattr(own, field) is not None else "the station"
        rows.append((field, human(setting, getattr(effective, field)), whose))
    return rows


@command(
    "create",
    examples="""
helio channels create alerts
helio channels create logs --retention-age 7d --compress
helio channels create jobs --retention-once-read
helio channels create readings --partitions 8
helio channels create prices --retention-compact    # the latest of each key
""",
)
@channel_argument
@click.option(
    "--partitions", type=int, metavar="N",
    help="How many partitions: messages of one key stay in order, partitions are worked on side by side.  "
    "[default: 1; setting storage.partitions]",
)  # fmt: skip
@_settings_options
@click.pass_obj
def create(common: Common, /, channel: str, **settings: Any) -> None:
    """Make a channel, with settings of its own.

    Publishing makes channels, too; create is for choosing settings first. What is not given is the station's
    setting. Sizes are bytes, or 64MiB; times are seconds, or 7d.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    with common.open(write=True) as station:
        _print_changed(common, station, station.create_channel(channel, **given), "made")


@command(
    "alter",
    examples="""
helio channels alter logs --retention-age 30d
helio channels alter logs --no-compress --unset retention-bytes
helio channels alter readings --partitions 16
""",
)
@channel_argument
@click.option(
    "--partitions", type=int, metavar="N",
    help="Grow to this many partitions. Keys are spread anew: what a key published before stays where it is.",
)  # fmt: skip
@_settings_options
@click.option(
    "--unset", multiple=True, metavar="SETTING", type=click.Choice([option_of(field)[2:] for field in _SETTINGS]),
    help="Go back to the station's setting. May be repeated.",
)  # fmt: skip
@click.pass_obj
def alter(common: Common, /, channel: str, unset: tuple[str, ...], **settings: Any) -> None:
    """Change the settings of a channel; every process heeds them from its next append on."""
    given = {key: value for key, value in settings.items() if value is not None}
    for field in _SETTINGS:
        if option_of(field)[2:] in unset:
            if field in given:
                raise click.UsageError(f"{option_of(field)} is given and unset")
            given[field] = None
    if not given:
        raise click.UsageError("nothing to change; give a setting such as --retention-age 7d")
    with common.open(write=True) as station:
        _print_changed(common, station, station.alter_channel(channel, **given), "changed")


def _print_changed(common: Common, station: Station, info: ChannelInfo, what: str) -> None:
    if common.json:
        output.document(plain(info))
    elif not common.quiet:
        own = [
            f"{field} {human(setting, value)}"
            for field, setting in _SETTINGS.items()
            if (value := getattr(info.settings, field)) is not None
        ]
        if info.partitions > 1:
            own.insert(0, f"{info.partitions} partitions")
        print(f"{what} channel {info.name} of {station.name}: {', '.join(own) or 'all settings are the station’s'}")


@command(
    "delete",
    examples="""
helio channels delete test             # asks for the name
helio channels delete test --yes test  # does not ask
""",
)
@channel_argument
@click.option("--yes", metavar="CHANNEL", help="Do not ask; the name once more, so that no history repeats it.")
@click.pass_obj
def delete(common: Common, channel: str, yes: str | None) -> None:
    """Delete a channel with all its messages and its subscriptions' positions.

    Making it again starts empty. Its dead letters are a channel of their own and stay.
    """
    with common.open(write=True) as station:
        info = station.channel(channel)
        names = sorted({subscription.name for subscription in station.subscriptions(channel)})
        if yes is None:
            and_what = f" and the positions of {', '.join(names)}" if names else ""
            common.note(f"{channel} holds {output.several(info.messages, 'message')}, {output.size(info.bytes)}.")
            common.note(f"Deleting it deletes them for good{and_what}.")
        confirm_name("Type its name to delete it:", channel, yes)
        station.delete_channel(channel)
        if common.json:
            output.document({"deleted": channel, "messages": info.messages, "subscriptions": names})
        elif not common.quiet:
            print(f"deleted channel {channel} with {output.several(info.messages, 'message')}")


for _command in (list_, show, create, alter, delete):
    channels.add_command(_command)
