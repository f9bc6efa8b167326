"""Spark as separate processes on this machine: a standalone cluster, a Connect server, and ``helio`` that uses them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

START_S: Final = 180.0
"""How long a loaded machine may take to start one of them."""
_PR_SET_PDEATHSIG: Final = 1


def environment(**more: str) -> dict[str, str]:
    """For whatever is started here: the packages and the Python of the tests, whatever is configured elsewhere."""
    import pyspark

    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


def _die_with_the_tests() -> None:
    """Between fork and exec: nothing outlives tests that are killed themselves."""
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A process with its own group, whose words go to a file; it is killed with all its children."""

    def __init__(self, place: Path, command: list[str], env: dict[str, str]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self.log = place / "log"
        with (place / "out").open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, cwd=place, env=env, start_new_session=True,
                preexec_fn=_die_with_the_tests,  # noqa: PLW1509 - nothing of ours holds a lock there
            )  # fmt: skip
        self.pid = self._process.pid

    def said(self, pattern: str, seconds: float = START_S) -> str:
        """Wait for some words; what matched."""
        until = time.monotonic() + seconds
        while (found := re.search(pattern, self.text())) is None:
            assert self.running(), f"it ended:\n{self.text()[-3000:]}"
            assert time.monotonic() < until, f"it does not say {pattern!r}:\n{self.text()[-3000:]}"
            time.sleep(0.05)
        return found[0]

    def text(self) -> str:
        return (self.place / "out").read_text(errors="replace") + self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self._process.poll() is None

    def end(self, seconds: float = START_S) -> tuple[int, str, str]:
        """Wait until it ends by itself: exit code, stdout, stderr."""
        code = self._process.wait(seconds)
        return code, (self.place / "out").read_text(), self.log.read_text()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def spark_class(place: Path, *arguments: str, memory: str) -> Process:
    """One of Spark's own programs, on a machine that is not in UTC; the wheel has no scripts for most of them."""
    env = environment(
        SPARK_CONF_DIR=str(place), SPARK_LOCAL_DIRS=str(place / "local"), SPARK_DAEMON_MEMORY=memory,
        TZ="America/St_Johns",
    )  # fmt: skip
    return Process(place, [str(Path(env["SPARK_HOME"], "bin", "spark-class")), *arguments], env)


class Cluster:
    """A master and some workers, each a Java of its own with one core; executors are children of the workers."""

    SETTINGS = ("spark.executor.memory=512m", "spark.driver.memory=512m", "spark.sql.shuffle.partitions=2")

    def __init__(self, place: Path, workers: int) -> None:
        self._place = place
        self._started = 0
        self._workers: list[Process] = []
        self._master = spark_class(
            place / "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0", memory="256m",
        )  # fmt: skip
        try:
            self.url = self._master.said(r"spark://127\.0\.0\.1:\d+")
            for _ in range(workers):
                self.add_worker()
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise

    def add_worker(self) -> None:
        self._started += 1
        place = self._place / f"worker-{self._started}"
        one = spark_class(
            place, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
            "--cores", "1", "--memory", "600m", "--work-dir", str(place / "apps"), self.url, memory="256m",
        )  # fmt: skip
        self._workers.append(one)

    def wait_for_workers(self) -> None:
        for one in self._workers:
            one.said("Successfully registered with master")

    def executors(self) -> list[int]:
        """The processes that run tasks now."""
        parents = {one.pid for one in self._workers}
        return [pid for pid in _processes() if _parent(pid) in parents and b"CoarseGrainedExecutor" in _command(pid)]

    def executors_ever(self, app: str) -> int:
        """How many processes an application has had for its tasks."""
        return sum(len(list(one.place.glob(f"apps/{app}/*"))) for one in self._workers)

    def newest_app(self) -> str:
        """The application that was started last."""
        return max(path.name for one in self._workers for path in one.place.glob("apps/app-*"))

    def kill_executor(self, chance: random.Random) -> None:
        """SIGKILL for one of those that run tasks; others of its machine live on."""
        if there := self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(there), signal.SIGKILL)

    def kill_worker(self, chance: random.Random) -> None:
        """SIGKILL for a whole worker with its executor; another takes its place."""
        one = chance.choice(self._workers)
        one.kill()
        self._workers.remove(one)
        self.add_worker()

    def close(self) -> None:
        for one in (*self._workers, self._master):
            one.kill()


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def child(parent: int, words: bytes) -> int:
    """The child of a process with these words in its command; 0 if there is none yet."""
    return next((pid for pid in _processes() if _parent(pid) == parent and words in _command(pid)), 0)


class ConnectServer:
    """A Spark Connect server with a local Spark."""

    def __init__(self, place: Path) -> None:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.ui.enabled": "false",
        }
        said = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self._server = spark_class(
            place, "org.apache.spark.deploy.SparkSubmit", "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]", *said,
            "spark-internal", memory="1g",
        )  # fmt: skip
        try:
            told = self._server.said(r"Spark Connect server started at: \S*?:(\d+)")
        except BaseException:
            self.close()
            raise
        self.url = f"sc://127.0.0.1:{told.rpartition(':')[2]}"

    def close(self) -> None:
        self._server.kill()


@contextlib.contextmanager
def helio(place: Path, data: Path, *args: Any, **more: str) -> Iterator[Process]:
    """``helio`` as a process that is gone afterwards."""
    command = [sys.executable, "-m", "heliograph.cli", "-d", str(data), *map(str, args)]
    one = Process(place, command, environment(PYTHONUNBUFFERED="1", **more))
    try:
        yield one
    finally:
        one.kill()
