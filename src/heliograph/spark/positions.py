"""How far a stream has come: what Spark keeps in its checkpoint, for every partition of every channel.

    {"alerts": {"incarnation": "k3f9q2", "partitions": {"0": [41, "01a1e178-9ccc-…"], "1": [0, ""]}}}

An offset, before which everything is done, and the id of the message before it: if the channel lives anew when the
stream goes on (restored, moved to another machine, cut by a power failure), that message tells whether the log is
still the one that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from heliograph.errors import ConfigError


class Reached(NamedTuple):
    """A place in a partition."""

    offset: int
    id: str


class ChannelPosition(msgspec.Struct, frozen=True):
    """How far a stream has come in a channel."""

    incarnation: str
    partitions: dict[int, Reached]


Positions = dict[str, ChannelPosition]


def to_json(positions: Mapping[str, ChannelPosition]) -> dict[str, Any]:
    """As Spark keeps it; the same for the same positions."""
    return {
        name: {
            "incarnation": one.incarnation,
            "partitions": {str(number): list(one.partitions[number]) for number in sorted(one.partitions)},
        }
        for name, one in sorted(positions.items())
    }


def from_json(found: dict[str, Any]) -> Positions:
    """What ``to_json`` made."""
    try:
        return msgspec.convert(found, Positions, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the checkpoint is not one of a Heliograph stream ({error}); use another checkpointLocation"
        ) from None
