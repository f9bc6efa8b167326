"""Wake-ups from other processes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from heliograph.engine.watch import Watcher
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"


def test_a_write_to_a_watched_file_calls_back_and_unwatching_ends_it(tmp_path: Path) -> None:
    watcher = Watcher()
    called: list[float] = []
    path = tmp_path / "news"
    watcher.watch(path, lambda: called.append(time.monotonic()))
    watcher.watch(path, lambda: called.append(-1.0))  # watched already
    path.write_bytes(b"!")
    eventually(lambda: called)
    assert -1.0 not in called
    watcher.unwatch(path)
    time.sleep(0.05)
    count = len(called)
    path.write_bytes(b"!!")
    time.sleep(0.1)
    assert len(called) == count
    watcher.close()


def test_closing_ends_the_thread_and_frees_its_descriptors(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    watcher = Watcher()
    for number in range(20):
        watcher.watch(tmp_path / f"news-{number}", lambda: None)
    watcher.close()
    watcher.close()
    eventually(lambda: threading.active_count() <= threads)
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_a_path_that_cannot_be_watched_is_no_error(tmp_path: Path) -> None:
    watcher = Watcher()
    watcher.watch(tmp_path / "missing" / "news", lambda: None)
    watcher.watch(tmp_path / "news", lambda: None)
    watcher.close()


def test_a_station_leaves_no_threads_and_no_descriptors_behind(opened: Opener) -> None:
    opened().close()  # whatever is made once per process
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    for durability in ("always", "interval", "os"):
        with opened(durability=durability) as station:
            station.publish_many(CHANNEL, list(range(10)))
            station.publish("other", 1)
            got: list[int] = []
            station.subscribe(CHANNEL, lambda message, got=got: got.append(message.data), name="w", start="first")
            station.subscribe(CHANNEL, lambda message: None, start="first")
            eventually(lambda got=got: len(got) == 10)
            list(station.read(CHANNEL))
            station.trim()
    eventually(lambda: threading.active_count() <= threads, f"{threading.enumerate()}")
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_closed_by_two_it_leaves_the_files_alone_that_have_its_numbers_since(tmp_path: Path) -> None:
    before, watcher = set(threading.enumerate()), Watcher()
    watcher.watch(tmp_path / "news", lambda: None)
    (thread,) = set(threading.enumerate()) - before
    watcher.abandon()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]  # the same numbers
    eventually(lambda: not thread.is_alive())
    watcher.close()
    watcher.abandon()
    for fd in others:
        os.close(fd)  # EBADF if the watcher closed it


def test_an_engine_is_abandoned_once(opened: Opener) -> None:
    station = opened()
    station.publish(CHANNEL, 1)
    station.engine.abandon()
    with opened() as other:
        other.publish(CHANNEL, 2)
        station.engine.abandon()  # as in the child of a child
        assert [message.data for message in other.read(CHANNEL)] == [1, 2]
        other.sync()
