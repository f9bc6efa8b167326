"""Names of queries: whose batches they are, and whether those have numbers. Pure."""

from __future__ import annotations

from typing import Final

ALONE: Final = "batches"
"""The query that single batches belong to: one after the other, each with a name of its own."""
HUB: Final = "hub."
"""How the names of queries begin that publish through this station's hub: ``hub.PEER.QUERY``, QUERY without a dot."""


def is_numbered(query: str) -> bool:
    """Whether the batches of a query have numbers; else they have names.

    >>> [is_numbered(query) for query in ("6f1e", "replay.batches", "batches", "hub.host1.6f1e", "hub.host1.batches")]
    [True, True, False, True, False]
    """
    return query != ALONE and not (query.startswith(HUB) and query.endswith(f".{ALONE}"))


def owner(query: str) -> str:
    """The peer whose query it is; empty for one of this station.

    >>> owner("hub.host1.lab.6f1e"), owner("6f1e")
    ('host1.lab', '')
    """
    return query.removeprefix(HUB).rpartition(".")[0] if query.startswith(HUB) else ""
