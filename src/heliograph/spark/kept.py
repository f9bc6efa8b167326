"""What a stream plans with, again and again: a directory is opened each time, a hub stays connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.spark.archive.together import whole
from heliograph.spark.options import ReadOptions
from heliograph.spark.store import Store

if TYPE_CHECKING:
    from heliograph.client.inquirer import Inquirer


class Kept:
    """The way to a station. A copy of it, in a task for example, finds its own."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._line: Inquirer | None = None

    def __reduce__(self) -> tuple[type[Kept], tuple[ReadOptions]]:
        return Kept, (self._options,)

    def open(self) -> Store:
        """What is there now."""
        if self._options.hub is None:
            return whole(self._options)
        from heliograph.spark.hub import Hub

        if self._line is None:
            self._line = self._options.hub.inquire()
        return Hub(self._line, keep=True)

    def close(self) -> None:
        """Leave. It is connected again when it is used again."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
