"""A handler that prints messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.cli import output
from heliograph.cli.signals import raise_for

if TYPE_CHECKING:
    from heliograph.message import Message


class OutputLost(Exception):
    """A message could not be printed, which is not the message's fault."""


class Printing:
    """Prints each message; one is done when it has left this process."""

    def __init__(self, show: Callable[[Message], None]) -> None:
        self.error: OSError | None = None
        self.end = raise_for
        self._show = show

    def __call__(self, message: Message) -> None:
        """Print it."""
        try:
            self._show(message)
            output.flush()
        except OSError as error:
            self.error = error
            raise OutputLost from error
