"""A redaction is not undone by compression, and one that died halfway is finished by the next."""

from __future__ import annotations

import threading
from pathlib import Path

import heliograph as hg


def test_a_redaction_waits_for_upkeep_which_could_bring_old_bytes_back(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", segment_bytes=4096) as station:
        receipts = [station.publish("alerts", {"n": number, "text": "x" * 200}) for number in range(50)]
        done = threading.Event()

        def redact() -> None:
            station.redact(receipts[3].id)
            done.set()

        thread = threading.Thread(target=redact)
        with station.engine.without_upkeep():  # as a process that compresses just now holds it
            thread.start()
            assert not done.wait(0.2)
        thread.join(10)
        assert done.is_set()
        assert 3 not in [message.offset for message in station.read("alerts")]


def test_a_redaction_that_died_halfway_is_finished_by_the_next(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", segment_bytes=4096) as station:
        receipts = [station.publish("alerts", {"n": number, "text": "x" * 200}) for number in range(50)]
        (tmp_path / "channels" / "alerts" / "0" / "redact.json").write_bytes(b'{"offsets":[1,2]}')
        station.redact(receipts[3].id)
        assert [message.offset for message in station.read("alerts", end=6)] == [0, 4, 5]
