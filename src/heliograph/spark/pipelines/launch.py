"""A session for a pipeline: what its Java says goes to a file, and Ctrl-C still means what it meant before."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from heliograph.errors import ConfigError, Unreachable
from heliograph.limits import SPARK_CONNECT_S
from heliograph.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT_PORT: Final = 15002


def launch(
    app: str, *, master: str | None, remote: str | None, settings: Mapping[str, str], log: Path | None
) -> SparkSession:
    """The session; with a ``log`` the Java that is started for it, and its Python workers, write there."""
    if master is not None and remote is not None:
        raise ConfigError("--master and --remote are two places: leave out one")
    try:
        if remote is not None:
            importlib.import_module("grpc")  # pyspark ends the whole process in its place, if that has no main file
            _reach(remote)
        with _own_signals(), _speaking_to(log):
            spark = session(app, master=master, remote=remote, **{"spark.sql.session.timeZone": "UTC", **settings})
    except ImportError as error:
        raise ConfigError(f"Spark Connect needs more packages: pip install 'heliograph[connect]' ({error})") from None
    if log is not None:
        _hush()
    return spark


def _reach(remote: str) -> None:
    """See that somebody listens there: Spark's client would try for minutes before it says that nobody does."""
    try:
        where = urlsplit(remote)
        place = (where.hostname or "", where.port or _CONNECT_PORT)
    except ValueError:
        place = ("", 0)
    if not remote.startswith("sc://") or not place[0]:
        raise ConfigError(f"a Spark Connect server is sc://HOST or sc://HOST:PORT, not {remote!r}")
    try:
        socket.create_connection(place, SPARK_CONNECT_S).close()
    except OSError as error:
        raise Unreachable(
            f"there is no Spark Connect server at {remote} ({error.strerror or error}): start one with "
            "start-connect-server.sh of Spark"
        ) from None


def _hush() -> None:
    """Spark's Python logs a page for each error that it raises, too; whoever gets the error tells of it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Spark takes Ctrl-C for itself, and would cancel a micro-batch in the middle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _speaking_to(log: Path | None) -> Iterator[None]:
    """Whatever is started in this block has a file as its stderr, for as long as it lives."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    usual = os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(file)
