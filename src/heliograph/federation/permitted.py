"""What a peer sends, held against its rules while it is stored: `NotAllowed`, and nothing of it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from heliograph.engine.bounded import TooManyOrigins
from heliograph.engine.foreign import Batch
from heliograph.errors import NotAllowed
from heliograph.federation.rules import Rules


def senders(rules: Rules) -> Callable[[Batch], None]:
    """A check of the origins in a batch: a peer sends its own lines, and those of whom it may relay."""

    def check(batch: Batch) -> None:
        for origin in {run.origin for run in batch.runs}:
            why_not = rules.sending(origin)
            if why_not:
                raise NotAllowed(why_not)

    return check


@contextlib.contextmanager
def within_bounds() -> Iterator[None]:
    """To invent origins without end is not allowed, either."""
    try:
        yield
    except TooManyOrigins as error:
        raise NotAllowed(str(error)) from None
