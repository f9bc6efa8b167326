"""What every command has in common: where the data is, the configuration, and how to print."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heliograph.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.station import Station


class Common:
    """The options that every command takes, before or after its name."""

    def __init__(self) -> None:
        self.data: str | None = None
        self.config_file: str | None = None
        self.json = False
        self.quiet = False
        self.verbose = False
        self._logging: logging.Handler | None = None

    def config(self, **settings: Any) -> Config:
        """Everything that was said: options, environment, file, defaults."""
        from heliograph import config

        if self.config_file == "":
            raise ConfigError("--config names no file")
        if self.data is not None:
            settings["data_dir"] = self.data
        return config.load(self.config_file, **settings)

    def open(self, *, write: bool = False, create: bool = False, announce: bool = True, **settings: Any) -> Station:
        """The station. Only ``create`` makes a new one; without ``write`` no trace is left."""
        import heliograph as hg

        self.log()
        config = self.config(**settings)
        new = not station_in(config)
        if new and not create:
            raise NotFound(missing(config))
        station = hg.open(config=config, read_only=not (write or create), federate=False)
        if new and announce:
            self.note(f"made a new station '{station.name}' in {station.path}")
        return station

    def elsewhere(self, directory: str) -> Station:
        """Another station, by its directory alone, to be looked at."""
        import heliograph as hg
        from heliograph.config import Config, Storage

        config = Config(storage=Storage(data_dir=directory))
        if not station_in(config):
            raise NotFound(missing(config))
        return hg.open(config=config, read_only=True)

    def note(self, text: str) -> None:
        """Say something that is not the result: on stderr, unless --quiet."""
        if not self.quiet:
            print(one_line(text), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Say what is wrong but stops nothing."""
        print(f"warning: {one_line(text)}", file=sys.stderr, flush=True)

    def log(self) -> None:
        """Show what the library logs: warnings, or everything with --verbose."""
        if self._logging is None:
            handler = logging.StreamHandler()
            handler.setFormatter(_Plain(self.verbose))
            self.log_to(handler, logging.ERROR if self.quiet else logging.WARNING)

    def log_to(self, handler: logging.Handler, level: int) -> None:
        """Have what the library logs shown by a handler, from a level on; everything with --verbose."""
        self._logging = handler
        logger = logging.getLogger("heliograph")
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.DEBUG if self.verbose else level)

    def close(self) -> None:
        """Take back what was set for the whole process; tests run many commands in one."""
        if self._logging is not None:
            logger = logging.getLogger("heliograph")
            logger.removeHandler(self._logging)
            logger.propagate = True
            logger.setLevel(logging.NOTSET)


class _Plain(logging.Formatter):
    """One line each; tracebacks only for whoever asked for them."""

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {one_line(record.getMessage())}"
        if record.exc_info and self._verbose:
            text += "\n" + lines(self.formatException(record.exc_info))
        return text


def one_line(text: str) -> str:
    """Text as one line that cannot speak to the terminal.

    >>> one_line("a\\nb \\x1b[31mred")
    'a b \\\\x1b[31mred'
    """
    return clean(" ".join(text.splitlines()))


def lines(text: str) -> str:
    """Text of several lines that cannot speak to the terminal: a traceback, and what the other side said in it.

    >>> lines("Traceback\\n  \\x1b[31mred\\n")
    'Traceback\\n  \\\\x1b[31mred'
    """
    return "\n".join(map(clean, text.splitlines()))


def clean(text: str) -> str:
    """Show control characters instead of sending them: a message must not move the cursor.

    >>> clean("bell\\a")
    'bell\\\\x07'
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in text])


def station_in(config: Config) -> bool:
    """Whether there is a station where the configuration says; perhaps one that cannot be opened."""
    from heliograph.disk import SYSTEM_DISK
    from heliograph.log.channel import somebodys

    return somebodys(Path(config.storage.data_dir), SYSTEM_DISK)


def missing(config: Config) -> str:
    """What to say when there is none."""
    path = config.storage.data_dir
    what = f"{path} holds no station" if os.path.isdir(path) else f"there is no directory {path}"
    return f"{what}; 'helio init' makes a station, --data DIR or HELIOGRAPH_STORAGE_DATA_DIR name another"


def report(common: Common, error: BaseException, prefix: str = "") -> None:
    """One line on stderr that helps; the traceback only with --verbose."""
    if common.verbose:
        import traceback

        print(lines("".join(traceback.format_exception(error))), file=sys.stderr)
    print(f"error: {prefix}{one_line(describe(error))}", file=sys.stderr, flush=True)


def describe(error: BaseException) -> str:
    """What an error says, in words."""
    from heliograph.errors import HeliographError

    if isinstance(error, HeliographError):
        return str(error)
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return f"{error.filename}: {what}" if error.filename else what
    return f"internal error, please report it: {type(error).__name__}: {error} (--verbose shows where)"


def plain(value: Any) -> Any:
    """Structs as plain data."""
    import msgspec

    return msgspec.to_builtins(value)
