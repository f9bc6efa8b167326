"""Redaction: the bytes are gone for good, everything else stays where it is, and nobody is disturbed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.log import compress
from heliograph.station import Station
from tests.faults import FaultyDisk
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"
COUNT = 60
SECRET = "the-password-is-swordfish"
HIT = 7


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


def fill(station: Station) -> str:
    """Messages of which one holds a secret; its id."""
    for number in range(COUNT):
        receipt = station.publish(CHANNEL, {"n": number, "text": SECRET if number == HIT else "x" * 100})
        if number == HIT:
            secret = receipt.id
    return secret


def traces(root: Path) -> list[str]:
    """Files that hold the secret, compressed or not."""
    found = []
    for directory, _, names in os.walk(root):
        for name in names:
            data = Path(directory, name).read_bytes()
            if ".zst" in name:
                data = compress._zstd().decompress(data)
            if SECRET.encode() in data:
                found.append(name)
    return found


@pytest.fixture(params=["active", "sealed", "compressed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepared(opened: Opener, root: Path, kind: str) -> tuple[Station, str]:
    station = opened(segment_bytes=1_000_000 if kind == "active" else 4096, compress=kind == "compressed")
    secret = fill(station)
    station.trim()
    assert bool(list(partition(root).glob("*.zst"))) == (kind == "compressed")
    assert traces(root), "or its absence proves nothing"
    return station, secret


def check(station: Station, root: Path, secret: str) -> None:
    assert traces(root) == []
    gaps: list[hg.Gap] = []
    messages = list(station.read(CHANNEL, on_gap=gaps.append))
    assert [(one.offset, one.data["n"]) for one in messages] == [(n, n) for n in range(COUNT) if n != HIT]
    assert gaps == [], "what was redacted on purpose is not reported as lost"
    assert station.get(secret, CHANNEL) is None
    report = verify(station)
    assert report.ok, report.troubles
    for one in messages[:: COUNT // 10]:
        found = station.get(one.id, CHANNEL)
        assert found is not None
        assert found.offset == one.offset
        assert next(iter(station.read(CHANNEL, start=one.time))).time == one.time
        assert next(iter(station.read(CHANNEL, start=one.offset))).id == one.id


def test_the_bytes_are_gone_and_every_offset_stays(opened: Opener, root: Path, kind: str) -> None:
    station, secret = prepared(opened, root, kind)
    receipt = station.redact(secret, channel=CHANNEL, reason="asked for by the customer")
    assert (receipt.id, receipt.offset) == (secret, HIT)
    check(station, root, secret)
    assert bool(list(partition(root).glob("*.zst"))) == (kind == "compressed"), "it stays as compressed as it was"
    assert station.publish(CHANNEL, {"n": COUNT}).offset == COUNT
    station.close()
    with opened() as again:
        assert [one.offset for one in again.read(CHANNEL)] == [n for n in range(COUNT + 1) if n != HIT]
        assert verify(again).ok


def test_a_segment_of_many_frames_loses_one_line_and_no_other(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compress, "FRAME_BYTES_MAX", 40_000)
    with opened(segment_bytes=150_000, compress=True) as station:
        ids = [station.publish(CHANNEL, {"n": number, "text": "x" * 500}).id for number in range(400)]
        station.trim()
        frames = min(partition(root).glob("*.frames"))
        assert frames.stat().st_size > 2 * 32
        before = {message.offset: message.raw for message in station.read(CHANNEL)}
        for offset in (100, 101, 7):
            station.redact(ids[offset])
            del before[offset]
            assert {message.offset: message.raw for message in station.read(CHANNEL)} == before
        assert frames.stat().st_size > 2 * 32
        assert verify(station).ok


def test_a_redaction_is_audited_without_repeating_what_was_redacted(opened: Opener, root: Path) -> None:
    station, secret = prepared(opened, root, "sealed")
    station.redact(secret, reason="asked for")
    lines = (root / "audit" / "audit.jsonl").read_text().splitlines()
    (record,) = [found for line in lines if (found := json.loads(line))["event"] == "redacted"]
    assert (record["channel"], record["offset"], record["id"], record["reason"]) == (CHANNEL, HIT, secret, "asked for")
    assert SECRET not in json.dumps(record)


def test_what_is_not_there_cannot_be_redacted(opened: Opener) -> None:
    with opened() as station:
        secret = fill(station)
        station.redact(secret)
        with pytest.raises(hg.NotFound):
            station.redact(secret)
        with pytest.raises(hg.NotFound):
            station.redact("nobody", channel=CHANNEL)
    with opened(read_only=True) as station, pytest.raises(hg.ReadOnly):
        station.redact(next(iter(station.read(CHANNEL))).id)


def test_a_redaction_that_was_interrupted_is_finished_by_the_next_to_open(
    opened: Opener, root: Path, kind: str
) -> None:
    if kind == "active":
        pytest.skip("the active segment is sealed before the intent is written down")
    station, secret = prepared(opened, root, kind)
    station.close()
    (partition(root) / "redact.json").write_bytes(b'{"offsets":[%d]}' % HIT)
    station = opened()
    assert not (partition(root) / "redact.json").exists()
    check(station, root, secret)


@pytest.mark.parametrize("blanked", [1, 50, 300])
def test_a_line_that_was_half_blanked_when_the_power_failed_is_blanked_whole(
    opened: Opener, root: Path, blanked: int
) -> None:
    station, secret = prepared(opened, root, "sealed")
    station.close()
    path = partition(root) / f"{0:020d}.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[HIT] = b" " * blanked + lines[HIT][blanked:]
    path.write_bytes(b"\n".join(lines))
    (partition(root) / "redact.json").write_bytes(b'{"offsets":[%d]}' % HIT)
    check(opened(), root, secret)


def test_a_damaged_line_is_blanked_where_it_lies_and_not_where_its_bytes_occur_before(
    opened: Opener, root: Path
) -> None:
    with opened() as station:
        for data in ("z" * 1000, "damaged", "after"):
            station.publish(CHANNEL, data)
        path = root / "channels" / CHANNEL / "0" / f"{0:020d}.jsonl"
        first, second, *_ = path.read_bytes().split(b"\n")
        with path.open("r+b") as file:
            file.seek(len(first) + 1)
            file.write(b"z" * len(second))
        station.engine.redact(CHANNEL, 0, [1])
        assert [message.data for message in station.read(CHANNEL)] == ["z" * 1000, "after"]
        assert path.read_bytes().split(b"\n")[1].strip() == b""


def test_what_is_redacted_does_not_come_back_with_the_atomic_step_of_a_dead_process(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened() as station:
        dead = opened(disk=disk)
        disk.fail("unlink", errno.EIO, path="atomic")  # it dies after its messages are there
        with pytest.raises(hg.OutcomeUnknown), dead.atomic() as step:
            step.publish(CHANNEL, "secret", id="secret")
            step.publish("other", "stays")
        dead.engine.abandon()
        station.redact("secret")
        station.trim()
        assert list(station.read(CHANNEL)) == []
        assert [message.data for message in station.read("other")] == ["stays"]
        assert list((root / "atomic").iterdir()) == []


def test_what_an_interrupted_compression_left_does_not_keep_the_bytes(opened: Opener, root: Path) -> None:
    station, secret = prepared(opened, root, "sealed")
    data = (partition(root) / f"{0:020d}.jsonl").read_bytes()
    (partition(root) / f"{0:020d}.jsonl.zst.tmp-99999").write_bytes(compress._zstd().compress(data))
    station.redact(secret)
    check(station, root, secret)


def test_both_files_of_a_segment_lose_the_bytes(opened: Opener, root: Path) -> None:
    station, secret = prepared(opened, root, "sealed")
    plain = partition(root) / f"{0:020d}.jsonl"
    data = plain.read_bytes()
    station.alter_channel(CHANNEL, compress=True)
    station.trim()
    plain.write_bytes(data)  # as if the crash had come before it was removed
    station.redact(secret)
    check(station, root, secret)


def test_a_subscriber_and_a_reader_in_the_middle_are_not_disturbed(opened: Opener, root: Path, kind: str) -> None:
    station, secret = prepared(opened, root, kind)
    got: list[int] = []
    gaps: list[hg.Gap] = []
    live = station.subscribe(
        CHANNEL,
        lambda message: (got.append(message.offset), live.pause() if message.offset == 3 else None),
        name="worker-1",
        start="first",
        on_gap=gaps.append,
        paused=True,  # until the handler knows what ``live`` is
    )
    live.resume()
    reader = station.read(CHANNEL, start=2)
    read = [next(reader).offset]
    eventually(lambda: live.state == "paused" and got)
    station.redact(secret)
    live.resume()
    read += [one.offset for one in reader]
    eventually(lambda: got[-1] == COUNT - 1)
    # What was in memory already may still come; nothing else is missing, doubled or out of order.
    assert [offset for offset in got if offset != HIT] == [offset for offset in range(COUNT) if offset != HIT]
    assert [offset for offset in read if offset != HIT] == [offset for offset in range(2, COUNT) if offset != HIT]
    assert gaps == []
    assert live.stats().missing == 0
    assert live.stats().dead_letters == 0


def test_a_subscription_that_stopped_behind_the_redacted_message_resumes_there(opened: Opener, root: Path) -> None:
    station, secret = prepared(opened, root, "active")
    station.subscribe(CHANNEL, lambda _: None, name="worker-1", paused=True).close()
    station.seek(CHANNEL, "worker-1", HIT + 1)
    station.redact(secret)
    got: list[int] = []
    gaps: list[hg.Gap] = []
    station.subscribe(CHANNEL, lambda message: got.append(message.offset), name="worker-1", on_gap=gaps.append)
    eventually(lambda: got and got[-1] == COUNT - 1)
    assert got == list(range(HIT + 1, COUNT))
    assert gaps == []
