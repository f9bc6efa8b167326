"""``helio init``: make a station."""

from __future__ import annotations

from typing import Any

import click

from heliograph.cli import output
from heliograph.cli.common import Common, station_in
from heliograph.cli.frame import command
from heliograph.cli.names import STATION


@command(
    "init",
    examples="""
helio init  # in ./data, named after this host
helio init /var/lib/heliograph --name host1
""",
)
@click.argument("directory", required=False)
@click.option(
    "--name",
    type=STATION,
    metavar="NAME",
    help="The station's name; part of every message it publishes.  [default: this host's]",
)
@click.pass_obj
def init(common: Common, directory: str | None, name: str | None) -> None:
    """Make a station in a directory.

    A station is one participant with its own directory. Where there is one already, nothing changes.
    Publishing and subscribing make a station, too; init is for choosing its name first.
    """
    if directory is not None and common.data not in (None, directory):
        raise click.UsageError(f"two directories: {directory} and --data {common.data}")
    common.data = directory or common.data
    settings: dict[str, Any] = {} if name is None else {"name": name}
    new = not station_in(common.config(**settings))
    with common.open(create=True, announce=False, **settings) as station:
        if common.json:
            output.document({"name": station.name, "path": str(station.path), "created": new})
        elif not common.quiet:
            what = "made" if new else "there is already"
            print(f"{what} station '{station.name}' in {station.path}")
            if new:
                print(f"next: helio -d {station.path} pub alerts 'system problem!'")
