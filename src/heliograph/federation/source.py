"""The configuration file that a station's links came from, watched while they run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.errors import HeliographError

if TYPE_CHECKING:
    from heliograph.config import Config

logger = logging.getLogger("heliograph.links")


class Source:
    """A file, and how to load it again; or none."""

    def __init__(self, source: tuple[Path, Callable[[], Config]] | None) -> None:
        self._source = source
        self._known = self._signature()

    def _signature(self) -> tuple[int, ...]:
        """Differs when the file was replaced or written to."""
        if self._source is None:
            return ()
        try:
            found = os.stat(self._source[0])
        except OSError:
            return (0,)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def changed(self) -> bool:
        """Whether it did since this was asked last."""
        before, self._known = self._known, self._signature()
        return before != self._known

    def load(self) -> Config | None:
        """What it says now; None, and a warning, if that cannot be used."""
        if self._source is None:
            return None
        try:
            return self._source[1]()
        except HeliographError as error:
            logger.warning("the new configuration is not used, the old one stays in use: %s", error)
            return None
