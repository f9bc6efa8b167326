"""Operations over a station: verify, backup, transfer, dead letters, filters, doctor.

They return what they did and never print. Whoever wants to show how far they are passes ``progress``.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do (0 where that is not known), in bytes or items."""
