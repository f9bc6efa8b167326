"""How FastStream's own log of calls looks for this broker: time, level, channel, subscription, message."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

_PLACE_CHARS = 12


class _Columns(DefaultLoggerStorage):
    """Wide enough for every channel and name that was declared."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"channel": 7, "subscription": 0}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make room for it."""
        for column, width in self._widths.items():
            self._widths[column] = max(width, len(params.get(column, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger ``faststream.access.heliograph``."""
        known = self._get_logger_ref()
        if known is not None:
            return known
        columns = [f"%({column})-{width}s | " for column, width in self._widths.items() if width]
        made = get_broker_logger(
            name="heliograph",
            default_context=dict.fromkeys(self._widths, ""),
            message_id_ln=_PLACE_CHARS,
            fmt="".join(
                ["%(asctime)s %(levelname)-8s - ", *columns, f"%(message_id)-{_PLACE_CHARS}s - ", "%(message)s"]
            ),
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(made)
        return made


make_state = partial(make_logger_state, default_storage_cls=_Columns)
