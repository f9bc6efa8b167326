"""A log for whoever runs a station in the foreground: a line for each event, for people or as JSON."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from heliograph.cli import output
from heliograph.cli.common import lines, one_line


class Lines(logging.Handler):
    """Writes what is logged to stdout, each line as soon as it is there. ``error`` says why that failed, if it did."""

    def __init__(self, *, json: bool, verbose: bool) -> None:
        super().__init__()
        self._json = json
        self._verbose = verbose
        self.error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """One line; a traceback only for whoever asked for one.

        What is audited is for programs: people are told in words of their own.
        """
        more: dict[str, Any] = {}
        text: Any = record.getMessage()
        if record.name == "heliograph.audit" and record.levelno == logging.INFO:
            if not self._json:
                return
            text, more["facts"] = record.args or ("", {})
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        if record.exc_info and self._verbose:
            more["traceback"] = logging.Formatter().formatException(record.exc_info)
        self.say(
            text, level=record.levelname.lower(), about=record.name.rpartition(".")[2],
            at=datetime.fromtimestamp(record.created, UTC), **more,
        )  # fmt: skip

    def say(
        self, text: str, *, level: str = "info", about: str = "serve", at: datetime | None = None, **more: Any
    ) -> None:
        """Write a line that is not from the library; ``more`` is for programs, and a traceback for both."""
        at = at or datetime.now(UTC)
        if self._json:
            line = msgspec.json.encode(
                {"time": at, "level": level, "about": about, "message": text, **more}, enc_hook=str
            )
        else:
            line = f"{output.moment(at, 'seconds')} {level.ljust(7)} {one_line(text)}".encode(errors="replace")
            if more.get("traceback"):
                line += b"\n" + lines(str(more["traceback"])).encode(errors="replace")
        self.acquire()
        try:
            output.write(line + b"\n")
            output.flush()
        except OSError as error:  # nobody reads it any more, or the disk is full: whoever serves finds out
            self.error = error
        finally:
            self.release()
