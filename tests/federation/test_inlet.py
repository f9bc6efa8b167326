"""What arrives, put together and taken apart again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.disk import Disk
from heliograph.errors import Busy, Fenced, NotFound, OutcomeUnknown, ProtocolError
from heliograph.federation.events import Arrived
from heliograph.federation.inlet import Inlet
from heliograph.federation.packing import pack
from heliograph.federation.rules import Rules
from heliograph.limits import RENEWALS_MAX
from tests.arrivals import lines as foreign_lines
from tests.faults import FaultyDisk


def arrived(lines: list[bytes], first: int, *, count: int | None = None, packed: bool = False) -> Arrived:
    data = b"".join(line + b"\n" for line in lines)
    return Arrived(
        stream=1, channel="alerts", partition=0, first=first, count=len(lines) if count is None else count,
        size=len(data), packed=packed, body=pack(data) if packed else data,
    )  # fmt: skip


def test_batches_are_stored_together_and_what_is_refused_keeps_its_offset(tmp_path: Path) -> None:
    lines = foreign_lines(0, 6, "host1.aaaaaa")
    with hg.open(tmp_path, name="hub") as hub:
        stored = Inlet(hub, "alerts", "host1").store(
            [
                arrived([lines[0], b"bad", lines[1]], 10),
                arrived([b"", lines[2], b"worse"], 20, packed=True),
                arrived([lines[3]], 40),
            ],
            Rules("host1"),
        )
        ((place, (following, refused)),) = stored.acks.items()
        assert (place, following) == ((1, 0), 41)
        assert [offset for offset, _ in refused] == [11, 22]
        assert [message.raw for message in hub.read("alerts")] == lines[:4]


def test_a_quota_counts_messages_and_not_what_was_left_out(tmp_path: Path) -> None:
    one, other = foreign_lines(0, 2, "host1.aaaaaa")
    with hg.open(tmp_path, name="hub") as hub:
        batch = arrived([b"", one, *[b""] * 100, other, b""], 10)
        assert Inlet(hub, "alerts", "host1").store([batch], Rules("host1")).messages == 2


def test_the_next_may_be_appended_once_nothing_is_left_to_do_but_to_sync(tmp_path: Path) -> None:
    happened: list[str] = []

    class Watched(Disk):
        @staticmethod
        def fdatasync(fd: int) -> None:
            happened.append("sync")
            os.fdatasync(fd)

    def written(life: str) -> None:
        assert life == hub.engine.incarnation("alerts")
        happened.append(f"written {hub.engine.limit('alerts', 0, synced=False).next}")

    lines = foreign_lines(0, 6, "host1.aaaaaa")
    with hg.open(tmp_path, name="hub", disk=Watched()) as hub:
        inlet = Inlet(hub, "alerts", "host1")
        inlet.store([arrived(lines[:2], 0)], Rules("host1"))
        happened.clear()
        inlet.store([arrived(lines[2:4], 2), arrived(lines[4:], 4)], Rules("host1"), written)
        assert happened == ["written 6", "sync"]
        inlet.store([arrived(lines, 0)], Rules("host1"), written)
        assert happened == ["written 6", "sync", "written 6"], "they are on disk already"


def test_a_batch_of_another_number_of_lines_breaks_the_protocol(tmp_path: Path) -> None:
    lines = foreign_lines(0, 2, "host1.aaaaaa")
    with hg.open(tmp_path, name="hub") as hub, pytest.raises(ProtocolError, match="another number"):
        Inlet(hub, "alerts", "host1").store([arrived(lines, 0, count=3)], Rules("host1"))


@pytest.mark.parametrize("data", [b"", b"x", b"x\ny"])
def test_lines_that_do_not_end_break_the_protocol(tmp_path: Path, data: bytes) -> None:
    packed = Arrived(
        stream=1, channel="alerts", partition=0, first=0, count=max(1, data.count(b"x") + data.count(b"y")),
        size=len(data), packed=True, body=pack(data),
    )  # fmt: skip
    with hg.open(tmp_path, name="hub") as hub, pytest.raises(ProtocolError, match="another number"):
        Inlet(hub, "alerts", "host1").store([packed], Rules("host1"))


def test_a_peer_is_told_of_those_origins_that_it_may_send(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="hub") as hub:
        inlet = Inlet(hub, "alerts", "host1")
        for name in ("host1", "host2", "host3"):
            inlet.store([arrived(foreign_lines(0, 2, f"{name}.aaaaaa"), 0)], Rules(name))
        for rules, told in ((Rules("host1"), ["host1"]), (Rules("host1", relay=["host3"]), ["host1", "host3"])):
            standing = inlet.standing({}, rules)
            assert [origin for (origin, _), _ in standing.seen] == [f"{name}.aaaaaa" for name in told]
            assert sorted(origin for origin, _ in standing.ends) == [f"{name}.aaaaaa" for name in told]


def test_a_peer_that_says_again_and_again_that_this_station_was_restored_is_not_believed_for_ever(
    tmp_path: Path,
) -> None:
    with hg.open(tmp_path, name="hub") as hub:
        for number in range(3):
            hub.publish("alerts", number)

        def lie(peer: str) -> str:
            own = f"hub.{hub.engine.incarnation('alerts')}"
            return Inlet(hub, "alerts", peer).standing({(own, 0): (10**6, "another")}, Rules(peer)).origin

        before = Inlet(hub, "alerts", "host1").standing({}, Rules("host1")).origin
        lives = [before, *(lie("host1") for _ in range(RENEWALS_MAX))]
        assert len(set(lives)) == 1 + RENEWALS_MAX
        stored = len(list(hub.read("alerts")))
        for _ in range(3):
            with pytest.raises(Busy, match="'host1' says once more"):
                lie("host1")
        assert f"hub.{hub.engine.incarnation('alerts')}" == lives[-1]
        assert len(list(hub.read("alerts"))) == stored, "nothing was appended again"
        assert lie("host2") not in lives, "another peer may be right"


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_what_comes_alone_is_stored_once_though_its_sync_failed(tmp_path: Path, durability: str) -> None:
    lines = foreign_lines(0, 3, "host1.aaaaaa")
    disk = FaultyDisk()
    with hg.open(tmp_path, name="hub", disk=disk, durability=durability) as hub:
        inlet, rules = Inlet(hub, "alerts", "host1"), Rules("host1")
        inlet.store([arrived(lines[:1], 0)], rules)
        disk.fail("fdatasync", path=".jsonl")
        with pytest.raises(OutcomeUnknown):
            inlet.store([arrived(lines[1:2], 1)], rules)
        with pytest.raises(Fenced):
            inlet.store([arrived(lines[1:2], 1)], rules)
        disk.heal()
        verify(hub, repair=True)
        for first in (0, 1, 2, 1):
            stored = inlet.store([arrived(lines[first : first + 1], first)], rules)
            assert stored.acks == {(1, 0): (first + 1, [])}
        assert [message.raw for message in hub.read("alerts")] == lines


def test_what_comes_alone_is_synced_as_soon_as_it_is_written(tmp_path: Path) -> None:
    lines = foreign_lines(0, 5, "host1.aaaaaa")
    with hg.open(tmp_path, name="hub") as hub:
        inlet, rules = Inlet(hub, "alerts", "host1"), Rules("host1")
        relayed, synced = hub.engine.relayed, list[int]()
        confirm = relayed.confirm
        relayed.confirm = lambda *told: (synced.append(hub.engine.limit("alerts").next), confirm(*told))[1]  # type: ignore[method-assign]
        inlet.store([arrived(lines[:1], 0)], rules)
        inlet.store([arrived(lines[1:2], 1), arrived(lines[2:3], 2)], rules)
        inlet.store([arrived(lines[3:4], 3)], rules, life=hub.engine.incarnation("alerts"))
        assert synced == [1, 1, 3], "and what others wait for is synced while they append"


@pytest.mark.parametrize("auto_create", [True, False])
def test_a_channel_that_is_deleted_in_that_moment_is_not_said_to_be_none_of_those_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_create: bool
) -> None:
    def gone(*_: object) -> None:
        raise NotFound("there is no channel 'alerts'")

    (line,) = foreign_lines(0, 1, "host1.aaaaaa")
    with hg.open(tmp_path, name="hub", config={"storage": {"auto_create": auto_create}}) as hub:
        inlet = Inlet(hub, "alerts", "host1")
        with monkeypatch.context() as patched:
            patched.setattr(Inlet, "_append", gone)
            with pytest.raises(Busy if auto_create else NotFound):  # what is busy is tried again
                inlet.store([arrived([line], 0)], Rules("host1"))
        if auto_create:
            assert inlet.store([arrived([line], 0)], Rules("host1")).messages == 1
