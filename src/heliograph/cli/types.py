"""``helio types``: list, show, diff."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, clean, plain
from heliograph.cli.frame import command, group
from heliograph.cli.names import channel_argument, optional_channel_argument
from heliograph.errors import NotFound

if TYPE_CHECKING:
    from heliograph.schemas import Change
    from heliograph.station.info import TypeInfo

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
_version = click.IntRange(min=1)


@group(
    "types",
    examples="""
helio types list
helio types show alerts com.example.alert.v1
helio types diff alerts com.example.alert.v1
""",
)
def types() -> None:
    """Payload types: the schemas that are stored with the channels."""


@command(
    "list",
    examples="""
helio types list
helio types list alerts --json | jq -r '.[] | "\\(.type) \\(.version)"'
""",
)
@optional_channel_argument
@click.pass_obj
def list_(common: Common, channel: str | None) -> None:
    """List the types that were published under a registered class.

    VERSION is the newest one; with --json every version is told, with its JSON Schema.
    """
    with common.open() as station:
        found = station.types(channel)
    if common.json:
        output.document(plain(found))
        return
    if not found:
        common.note("no types yet; publishing an object of a registered class stores its schema")
        return
    newest = [list(versions)[-1] for _, versions in itertools.groupby(found, lambda one: (one.channel, one.type))]
    output.table(
        ["CHANNEL", "TYPE", ">VERSION", "SINCE", "~FIELDS"],
        [(info.channel, info.type, info.version, info.created, _summary(info)) for info in newest],
    )


def _summary(info: TypeInfo) -> str:
    """The names of its fields, or what it is if it has none."""
    from heliograph.schemas import fields

    found = fields(info.schema)
    named = [path.removeprefix("$.") for path in found if path.count(".") == 1 and path.startswith("$.")]
    return ", ".join(named) or found["$"]


@command(
    "show",
    examples="""
helio types show alerts com.example.alert.v1
helio types show alerts com.example.alert.v1 --version 1 --json | jq .schema
""",
)
@channel_argument
@click.argument("type_name", metavar="TYPE")
@click.option("--version", type=_version, metavar="N", help="Another version than the newest one.")
@click.pass_obj
def show(common: Common, channel: str, type_name: str, version: int | None) -> None:
    """Show a type as it is stored with a channel, field by field; with --json its JSON Schema."""
    from heliograph.schemas import fields

    versions = _versions(common, channel, type_name)
    info = _pick(versions, version) if version is not None else versions[-1]
    if common.json:
        output.document(plain(info))
        return
    output.facts([
        ("type", info.type), ("channel", info.channel), ("version", f"{info.version} of {versions[-1].version}"),
        ("since", info.created),
    ])  # fmt: skip
    print()
    output.table(["FIELD", "~TYPE"], list(fields(info.schema).items()))


@command(
    "diff",
    examples="""
helio types diff alerts com.example.alert.v1        # the last change
helio types diff alerts com.example.alert.v1 1      # from 1 to the newest
helio types diff alerts com.example.alert.v1 1 2 --json
""",
)
@channel_argument
@click.argument("type_name", metavar="TYPE")
@click.argument("before", type=_version, required=False, metavar="[V1")
@click.argument("after", type=_version, required=False, metavar="V2]")
@click.pass_obj
def diff(common: Common, channel: str, type_name: str, before: int | None, after: int | None) -> int:
    """Show what changed between two versions of a type, and whether readers of the second can read the first.

    Without versions it is the last change.
    """
    from heliograph.schemas import conflicts, differences

    versions = _versions(common, channel, type_name)
    if before is None and len(versions) < 2:
        raise NotFound(f"{type_name} has only version {versions[0].version} in channel '{channel}': nothing changed")
    old = _pick(versions, before) if before is not None else versions[-2]
    new = _pick(versions, after) if after is not None else versions[-1]
    changes, against = differences(old.schema, new.schema), conflicts(old.schema, new.schema)
    if common.json:
        output.document({
            "channel": channel, "type": type_name, "before": old.version, "after": new.version,
            "changes": [change._asdict() for change in changes], "compatible": not against,
            "conflicts": [conflict._asdict() for conflict in against],
        })  # fmt: skip
        return exits.OK
    output.heading(f"{type_name} in {channel}: version {old.version} → {new.version}")
    _print_changes(changes)
    if against:
        print(f"version {new.version} cannot read all that version {old.version} wrote:")
        for conflict in against:
            print(f"  {clean(str(conflict))}")
    elif not common.quiet:
        print(f"version {new.version} reads what version {old.version} wrote")
    return exits.OK


def _print_changes(changes: list[Change]) -> None:
    from rich.text import Text

    terminal = output.console()
    width = max([len(change.path) for change in changes], default=0)
    for change in changes:
        sign, style = _SIGNS[change.kind]
        said = f"{change.before} → {change.now}" if change.kind == "changed" else change.before or change.now
        terminal.print(Text(clean(f"{sign} {change.path.ljust(width)}  {said}"), style=style))
    if not changes:
        print("no field changed")


def _versions(common: Common, channel: str, type_name: str) -> list[TypeInfo]:
    with common.open() as station:
        stored = station.types(channel)
    found = [info for info in stored if info.type == type_name]
    if not found:
        known = ", ".join(dict.fromkeys(info.type for info in stored)) or "none"
        raise NotFound(f"channel '{channel}' has no schema of {type_name!r}; it has: {known}")
    return found


def _pick(versions: list[TypeInfo], number: int) -> TypeInfo:
    for info in versions:
        if info.version == number:
            return info
    known = ", ".join(str(info.version) for info in versions)
    raise NotFound(f"{versions[0].type} has no version {number} in channel '{versions[0].channel}'; it has: {known}")


for _command in (list_, show, diff):
    types.add_command(_command)
