"""What links cost the disk: retention waits for those that are behind, without limit unless somebody set one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from heliograph.station.holding import held_for_links
from heliograph.station.links import LinkInfo

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.links")


def burdened(links: Iterable[LinkInfo], held: Mapping[str, int]) -> list[LinkInfo]:
    """The links, each with what retention keeps for it."""
    return [msgspec.structs.replace(link, held_bytes=_of(link, held)) for link in links]


def _of(link: LinkInfo, held: Mapping[str, int]) -> int:
    if link.kind == "hub":
        return held.get(f"link to {link.name}", 0) or held.get(f"link to {link.address}", 0)
    return held.get(f"link from {link.name}", 0) if link.kind == "peer" else 0


class Burden:
    """Looks now and then, and says so once for each link that is away and keeps data from being deleted."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self._told: set[str] = set()
        self.held: dict[str, int] = {}

    def look(self, links: list[LinkInfo]) -> None:
        """In a thread: what is held now."""
        self.held = held_for_links(self._engine)
        away = {
            link.name or link.address: link.held_bytes
            for link in burdened(links, self.held)
            if link.held_bytes and link.state != "up"
        }
        for name in away.keys() - self._told:
            logger.warning(
                "%.1f MB are kept on disk for %s, which is away: they are past their retention. "
                "storage.holdback_bytes sets a limit",
                away[name] / 1e6, name,
            )  # fmt: skip
            self._engine.audit.write("link-held-back", peer=name, bytes=away[name])
        self._told = set(away)
