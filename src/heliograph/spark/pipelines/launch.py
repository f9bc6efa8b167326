"""A session for a pipeline: what its Java says goes to a file, and Ctrl-C still means what it meant before."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from heliograph.errors import ConfigError, Unreachable
from heliograph.limits import SPARK_CONNECT_S, SPARK_ENDED_S
from heliograph.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVERS: Final = {"sc": ("Spark Connect server", 15002), "spark": ("Spark master", 7077)}


def launch(
    app: str, *, master: str | None, remote: str | None, settings: Mapping[str, str], log: Path | None
) -> SparkSession:
    """The session; with a ``log`` the Java that is started for it, and its Python workers, write there."""
    if master is not None and remote is not None:
        raise ConfigError("--master and --remote are two places: leave out one")
    try:
        if remote is not None:
            importlib.import_module("grpc")  # pyspark ends the whole process in its place, if that has no main file
            if not remote.startswith("sc://"):
                raise ConfigError(f"a Spark Connect server is sc://HOST or sc://HOST:PORT, not {remote!r}")
            _reach(remote)
        elif master is not None and master.startswith("spark://"):
            _reach(master)
        with _own_signals(), _speaking_to(log), _whole():
            spark = session(app, master=master, remote=remote, **{"spark.sql.session.timeZone": "UTC", **settings})
    except ImportError as error:
        raise ConfigError(f"Spark Connect needs more packages: pip install 'heliograph[connect]' ({error})") from None
    if log is not None:
        _hush()
    return spark


def _reach(url: str) -> None:
    """See that somebody listens there: Spark would try for minutes before it says, on a page, that nobody does."""
    scheme, _, rest = url.partition("://")
    what, port = _SERVERS[scheme]
    failed: OSError | None = None
    for one in rest.split(",") if scheme == "spark" else [rest]:  # a cluster may have several masters
        try:
            place = urlsplit(f"//{one}")
            host, number = place.hostname or "", place.port or port
        except ValueError:
            host = ""
        if not host:
            raise ConfigError(f"a {what} is {scheme}://HOST or {scheme}://HOST:PORT, not {url!r}")
        try:
            socket.create_connection((host, number), SPARK_CONNECT_S).close()
            return
        except OSError as error:
            failed = error
    assert failed is not None
    raise Unreachable(
        f"there is no {what} at {url} ({failed.strerror or failed}); docs/scale.md tells how to start one"
    )


def java_ended(wait_s: float = SPARK_ENDED_S) -> bool:
    """Whether the Java that this process started has ended, or does so soon."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _hush() -> None:
    """Spark's Python logs a page for each error that it raises, too; whoever gets the error tells of it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """If the start is broken off, Java ends, too: one that cannot say where it listens would wait for ever."""
    try:
        yield
    except BaseException as error:
        there = [one for frame, _ in traceback.walk_tb(error.__traceback__) for one in frame.f_locals.values()]
        for one in there:  # Spark keeps it only when it is up
            if isinstance(one, subprocess.Popen) and getattr(one, "pid", None) is not None:
                one.terminate()
        raise


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
