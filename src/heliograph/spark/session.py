"""A Spark session that works: the right Python, a Java, filters pushed down, and no page of JVM noise."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heliograph.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'^\S+ version "([0-9]{1,4})[".+-]', re.MULTILINE)
"""Of ``openjdk version "17.0.15" 2025-04-15``, or ``"26-ea"``; before it Java may tell which options it picked up."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""spark-submit says so to the Python that it starts, and has decided about the master."""
_MASTER: Final = re.compile(
    r"local|local\[(\*|0*[1-9][0-9]*)(\s*,\s*[0-9]+)?\]|local-cluster\[.+\]|spark://.+|yarn|k8s://.+"
)
_PYTHONS: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_REAL_PYTHON: Final = "PYSPARK_REAL_PYTHON"
_LAUNCHER: Final = Path(__file__).with_name("python.sh")
_QUIET: Final = Path(__file__).with_name("log4j2.properties")
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
SETTINGS: Final = {
    PUSHDOWN: "true",
    f"spark.executorEnv.{_REAL_PYTHON}": sys.executable,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.buffer.size": str(1 << 20),
}
"""What a session gets unless its maker says otherwise."""
_SOCKETS: Final = "spark.python.unix.domain.socket"
_SOCKET_CHARS: Final = len("/.9a1c03f7-0000-4000-8000-000000000000.sock")
_SOCKET_PATH_MAX: Final = 103 if sys.platform == "darwin" else 107


def session(
    app: str = "heliograph", *, master: str | None = None, remote: str | None = None, **settings: Any
) -> SparkSession:
    """A Spark session for Heliograph: the one that there is, or a new one.

    ``master`` is ``local[*]`` unless said otherwise (or a ``spark-submit`` says it); ``remote`` a Spark Connect server
    (``sc://host``). Further arguments are settings, with ``__`` for a dot: ``spark__executor__memory="4g"``.
    """
    builder = _builder().appName(app)
    said = {name.replace("__", "."): str(value) for name, value in settings.items()}
    for name in said:
        if "." not in name:  # Spark would take it, and nobody would ever read it
            close = name.replace("_", "__")
            raise ConfigError(f"Spark knows no setting '{name}': with '__' for each dot it may be {close}")
    if remote is not None:
        return _connected(builder, remote, said)
    chosen = {**SETTINGS, **said}
    master = chosen.pop("spark.master", None) if master is None else master
    check_master(master)
    find_java()
    quiet = f"-Dlog4j2.configurationFile=file:{_QUIET}"
    chosen["spark.driver.extraJavaOptions"] = f"{quiet} {chosen.get('spark.driver.extraJavaOptions', '')}".strip()
    if master is not None or _SUBMITTED not in os.environ:
        master = "local[*]" if master is None else master
        builder = builder.master(master)
    here = master is not None and master.startswith("local")
    sockets = _sockets() if here and f"{_SOCKETS}.enabled" not in said else {}
    for name, value in {**sockets, **chosen}.items():
        builder = builder.config(name, value)
    with _with_python(here=here):
        found = builder.getOrCreate()
    _forget(sockets)
    return found


def _stop() -> None:
    """Stop a Spark that nobody has stopped: its Python processes would write of pipes that are broken."""
    from pyspark import SparkContext

    running = SparkContext._active_spark_context  # whoever asks otherwise gets a new one
    if running is not None:
        with contextlib.suppress(Exception):
            running.stop()


def _sockets() -> dict[str, str]:
    """Have Java and Python talk over sockets of Unix instead of TCP, which takes a sixth of the time of reading.

    Whoever may connect to one is trusted, so they are in a directory that is only ours; it is removed at the end. For
    this machine only: a cluster's directories are the cluster's. Nothing, if the path is too long for a socket.
    """
    folder = _socket_folder()
    if folder is not None and not os.path.isdir(folder):  # whoever tidies up temporary directories has removed it
        _socket_folder.cache_clear()
        folder = _socket_folder()
    return {} if folder is None else {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": folder}


@functools.cache
def _socket_folder() -> str | None:
    folder = tempfile.mkdtemp(prefix="heliograph-")
    owner = os.getpid()

    if len(os.fsencode(folder)) + _SOCKET_CHARS > _SOCKET_PATH_MAX:
        os.rmdir(folder)
        return None

    def end() -> None:
        if os.getpid() == owner:  # not whoever was forked meanwhile
            _stop()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return folder


def _forget(settings: Iterable[str]) -> None:
    """The Java that was just started keeps its settings for all sessions to come, also those on a cluster."""
    from pyspark import SparkContext

    for name in settings if SparkContext._jvm is not None else ():
        SparkContext._jvm.java.lang.System.clearProperty(name)


@contextlib.contextmanager
def _with_python(*, here: bool) -> Iterator[None]:
    """Tell Spark which Python to use, unless somebody did: ours, on this machine without the zips (see python.sh).

    The Java that is started meanwhile, and the session, remember it. Later ones may be for other machines.
    """
    unsaid = [name for name in _PYTHONS if name not in os.environ]
    os.environ[_REAL_PYTHON] = sys.executable
    quick = here and os.access(_LAUNCHER, os.X_OK) and _installed()
    os.environ.update(dict.fromkeys(unsaid, str(_LAUNCHER) if quick else sys.executable))
    try:
        yield
    finally:
        os.environ.update(dict.fromkeys(unsaid, sys.executable))


def _installed() -> bool:
    """Whether processes find what they need without Spark's zips: not of a Spark that was only unpacked somewhere."""
    found = [importlib.util.find_spec(name) for name in ("pyspark", "py4j")]
    return all(one is not None and one.origin is not None and Path(one.origin).exists() for one in found)


def _connected(builder: Any, remote: str, said: dict[str, str]) -> Any:
    """A session of a Connect server. Its Java runs already: what only a start could change is refused."""
    found = builder.remote(remote).getOrCreate()
    with contextlib.suppress(Exception):  # a server that does not let clients set it reads more than it must
        found.conf.set(PUSHDOWN, SETTINGS[PUSHDOWN])
    for name, value in said.items():
        try:
            found.conf.set(name, value)
        except Exception as error:
            raise ConfigError(f"{name} cannot be set for {remote}: say it where that server is started") from error
    return found


def _builder() -> Any:
    try:
        import pyarrow as pa  # noqa: F401 - what Spark and our source exchange
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed ({error.name} is missing): pip install 'heliograph[spark]'"
        ) from None
    return SparkSession.builder


def check_master(master: str | None) -> None:
    """Refuse what Spark does not know: its Java would start, end, and leave the reason on a page in its log."""
    if master is not None and not _MASTER.fullmatch(master):
        raise ConfigError(f"Spark knows no master {master!r}: use local[*], spark://HOST:7077, yarn or k8s://HOST")


def find_java() -> str:
    """The Java that Spark will use: that of JAVA_HOME, else the ``java`` of the path."""
    home = os.environ.get("JAVA_HOME")
    there = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if there is not None and _new_enough(there):
        return there
    what = f"{there} is older" if there is not None and Path(there).exists() else "none was found"
    raise ConfigError(
        f"Spark needs Java {_JAVA_MIN} or newer, and {what}: install one (Debian: apt-get install "
        "openjdk-17-jre-headless), or set JAVA_HOME, and try again"
    )


def _new_enough(java: str) -> bool:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except OSError:
        return False
    found = _VERSION.search(said)
    return found is not None and int(found[1]) >= _JAVA_MIN
