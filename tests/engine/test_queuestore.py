from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from heliograph.disk import SYSTEM_DISK
from heliograph.engine import kinds, queueworkers
from heliograph.engine.queuestore import Key, Pending, Progress, QueueStore
from heliograph.errors import AlreadyExists, Busy, Damaged, Forked, NotFound, StorageError
from tests.proof.tools import Child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.sqlite3"


def lease(store: QueueStore, offset: int, token: int = 7, until_us: int = 100) -> None:
    with store.turn() as turn:
        turn.lease([Pending(0, offset, 1, token, "w", until_us, 0)])


def test_a_turn_is_kept_as_a_whole_or_not_at_all(path: Path) -> None:
    store = QueueStore(path, timeout_s=1)
    with pytest.raises(ZeroDivisionError), store.turn() as turn:
        turn.begin(Progress(0, 5, "a", 1))
        turn.lease([Pending(0, 4, 1, 7, "w", 100, 0)])
        raise ZeroDivisionError
    with store.look() as turn:
        assert turn.progress() == {}
        assert turn.pending(10) == []
    lease(store, 4)
    store.close()
    again = QueueStore(path, timeout_s=1)
    with again.look() as turn:
        assert [one.offset for one in turn.pending(10)] == [4]
    again.close()


def test_only_the_right_token_changes_anything(path: Path) -> None:
    store = QueueStore(path, timeout_s=1)
    lease(store, 4)
    wrong = Key(0, 4, 8)
    with store.turn() as turn:
        assert turn.finish([wrong]) == [wrong]
        assert turn.extend([wrong], 500) == [wrong]
        assert not turn.put_back(wrong, 0, counts=True)
        assert not turn.begin_letter(wrong, 1, 1)
        assert turn.pending(10) == [Pending(0, 4, 1, 7, "w", 100, 0)]
        assert turn.begin_letter(Key(0, 4, 7), 33, 50)
        assert turn.pending(10) == [Pending(0, 4, 1, 7, "w", 100, 33)], "a lease is never made shorter"
        assert turn.finish([Key(0, 4, 7)]) == []
    store.close()


def test_another_process_that_holds_the_file_is_busy(path: Path) -> None:
    store = QueueStore(path, timeout_s=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy, match="locked for too long"), store.turn():
        pass
    with store.look() as turn:
        assert turn.pending(1) == [], "looking is not held up"
    other.execute("ROLLBACK")
    other.close()
    lease(store, 1)
    store.close()


_MAKER = """
import sys, time
from pathlib import Path
from heliograph.engine.queuestore import QueueStore

folder, begin = Path(sys.argv[1]), float(sys.argv[2])
for number in range(50):
    while time.time() < begin + number * 0.02:
        pass
    QueueStore(folder / f"{number}.sqlite3", timeout_s=30).close()
"""


def test_two_processes_may_make_the_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait where two change how the journal is kept, however long it was told to wait."""
    command = [sys.executable, "-c", _MAKER, str(tmp_path), str(time.time() + 1)]
    makers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [maker.communicate()[1] for maker in makers] == ["", ""]


def test_what_is_no_database_is_damaged(path: Path) -> None:
    path.write_bytes(b"nothing that SQLite knows" * 50)
    with pytest.raises(Damaged, match="Move it away"):
        QueueStore(path, timeout_s=1)


def test_a_closed_store_says_so(path: Path) -> None:
    store = QueueStore(path, timeout_s=1)
    store.close()
    with pytest.raises(StorageError), store.look():
        pass


def test_threads_take_turns(path: Path) -> None:
    store = QueueStore(path, timeout_s=1)
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                lease(store, 100 * number + step)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with store.look() as turn:
        assert len(turn.pending(1_000)) == 120
    store.close()


def test_a_forked_child_does_not_use_it_and_does_no_harm(path: Path) -> None:
    store = QueueStore(path, timeout_s=1)
    lease(store, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with store.turn():
                pass
        except Forked:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lease(store, 2)
    store.close()


WRITER = """
import sys
from pathlib import Path
from heliograph.engine.queuestore import Pending, QueueStore
store = QueueStore(Path(sys.argv[1]), timeout_s=5)
number = 0
while True:
    with store.turn(durable=number % 10 == 0) as turn:
        turn.lease([Pending(0, number, 1, 7, "w", 1, 0), Pending(1, number, 1, 7, "w", 1, 0)])
    print(number, flush=True)
    number += 1
"""


def test_sigkill_loses_nothing_that_was_booked(path: Path) -> None:
    with Child(WRITER, path) as child:
        while int(child.line()) < 20:
            pass
        last = int(child.line())
        child.kill()
    reader = QueueStore(path, timeout_s=1, read_only=True)
    with reader.look() as turn:
        found = {(one.partition, one.offset) for one in turn.pending(1_000_000)}
    assert found >= {(part, number) for part in (0, 1) for number in range(last + 1)}
    assert len(found) % 2 == 0, "half a turn was kept"
    reader.close()


def test_workers_are_alive_as_long_as_their_lock_is_held(tmp_path: Path) -> None:
    worker = queueworkers.Worker(tmp_path, SYSTEM_DISK)
    assert not queueworkers.is_dead(tmp_path, worker.name, SYSTEM_DISK)
    assert queueworkers.living(tmp_path, SYSTEM_DISK) == [worker.name]
    worker.close()
    assert queueworkers.is_dead(tmp_path, worker.name, SYSTEM_DISK)
    assert queueworkers.living(tmp_path, SYSTEM_DISK) == []
    assert queueworkers.living(tmp_path / "nowhere", SYSTEM_DISK) == []


def test_a_name_has_one_kind(tmp_path: Path) -> None:
    kinds.check(tmp_path, "queue", SYSTEM_DISK)
    kinds.check(tmp_path, kinds.PLAIN, SYSTEM_DISK)
    kinds.save(tmp_path, {"kind": "queue"}, SYSTEM_DISK)
    kinds.check(tmp_path, "queue", SYSTEM_DISK)
    with pytest.raises(AlreadyExists, match="is a queue, not a plain subscription"):
        kinds.check(tmp_path, kinds.PLAIN, SYSTEM_DISK)
    (tmp_path / "kind.json").write_text("{")
    with pytest.raises(Damaged):
        kinds.check(tmp_path, "queue", SYSTEM_DISK)


@pytest.mark.parametrize("begun", [b"", "PRAGMA journal_mode = WAL"])
def test_a_file_that_is_only_being_made_is_not_found_yet(path: Path, begun: bytes | str) -> None:
    if isinstance(begun, bytes):
        path.write_bytes(begun)
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(begun)
    with pytest.raises(NotFound, match="being made"):
        QueueStore(path, timeout_s=1, read_only=True)
    store = QueueStore(path, timeout_s=1)
    QueueStore(path, timeout_s=1, read_only=True).close()
    store.close()
