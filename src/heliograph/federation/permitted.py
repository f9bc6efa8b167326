"""What a peer sends, held against its rules while it is stored: `NotAllowed`, and nothing of it was."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

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


class WithinBounds:
    """To invent origins without end is not allowed, either. Entered for all that arrives, hence no generator."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, TooManyOrigins):
            raise NotAllowed(str(error)) from None


WITHIN_BOUNDS: Final = WithinBounds()
