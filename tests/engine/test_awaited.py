"""A subscription that is asked to begin beyond the end of its log waits for that offset, also after a restart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from tests.engine.test_fitting import CHANNEL, audited, fill
from tests.opening import Opener
from tests.proof.tools import eventually

KINDS = pytest.mark.parametrize(
    "kind", [{}, {"group": True}, {"queue": True}], ids=["durable", "group", "queue"]
)  # fmt: skip


@KINDS
@pytest.mark.parametrize("rebuilt", [False, True], ids=["", "state-lost"])
def test_a_later_offset_is_waited_for_across_restarts(
    opened: Opener, root: Path, kind: dict[str, Any], rebuilt: bool
) -> None:
    got: list[int] = []
    gaps: list[hg.Gap] = []

    def subscribe(station: hg.Station, **start: int) -> None:
        def handle(message: hg.Message) -> None:
            got.append(message.offset)

        station.subscribe(CHANNEL, handle, name="worker-1", on_gap=gaps.append, **kind, **start)

    with opened() as station:
        fill(station, range(3))
        subscribe(station, start=6)
        fill(station, range(3, 4))
    for path in root.glob(f"subscriptions/{CHANNEL}/worker-1/queue.sqlite3*") if rebuilt else ():
        path.unlink()
    with opened() as station:
        assert verify(station).ok, "it stands beyond the end because it was asked to"
        (info,) = station.subscriptions(CHANNEL)
        assert (info.offset, info.lag) == (6, 0)
        subscribe(station)
        fill(station, range(4, 5))
    with opened() as station:
        subscribe(station)
        fill(station, range(5, 9))
        eventually(lambda: len(got) >= 3)
        assert sorted(got) == [6, 7, 8]
    assert not gaps
    assert not audited(root)


@KINDS
def test_in_another_life_of_the_channel_the_offset_means_nothing_and_nothing_new_is_skipped(
    opened: Opener, root: Path, tmp_path: Path, kind: dict[str, Any]
) -> None:
    with opened() as station:
        fill(station, range(3))
        station.subscribe(CHANNEL, lambda _: None, name="worker-1", start=20, **kind).close()
    shutil.copytree(root, tmp_path / "copy")
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)  # restored: a new incarnation
    got: list[int] = []
    gaps: list[hg.Gap] = []
    with opened() as station:
        assert [trouble.what for trouble in verify(station).troubles] == ["stands at offset 20, the log ends at 3"]
        fill(station, range(3, 6))
        station.subscribe(
            CHANNEL, lambda message: got.append(message.offset), name="worker-1", on_gap=gaps.append, **kind
        )
        eventually(lambda: {3, 4, 5} <= set(got))
        eventually(lambda: len(gaps) == 1)
    assert audited(root)


@KINDS
def test_who_handled_what_it_waited_for_is_not_taken_for_one_that_still_waits(
    opened: Opener, root: Path, kind: dict[str, Any]
) -> None:
    got: list[int] = []
    with opened() as station:
        fill(station, range(3))
        station.subscribe(CHANNEL, lambda message: got.append(message.offset), name="worker-1", start=5, **kind)
        fill(station, range(3, 8))
        eventually(lambda: sorted(got) == [5, 6, 7])
    with opened() as station:
        position = station.engine.load_position(CHANNEL, "worker-1", 0)
        assert position is not None
        assert (position.offset, position.awaits) == (8, False)
