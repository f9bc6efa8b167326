"""verify finds exactly what is wrong; repair makes it right and costs nothing more."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import google_crc32c
import msgspec
import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.disk import SYSTEM_DISK
from heliograph.log import compress, index
from heliograph.log.head import FENCED
from heliograph.log.lines import origin_place, stamp
from heliograph.log.repair import set_aside
from tests.admin.helpers import (
    CHANNEL,
    MESSAGES,
    by_offset,
    damaged,
    fill,
    kinds,
    numbers,
    open_station,
    overwrite,
    partition,
    segments,
)
from tests.faults import FaultyDisk


def test_a_sound_station_is_ok_and_everything_is_counted(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_station(tmp_path) as station:
        fill(station)
        station.publish_many(CHANNEL, [{"n": number} for number in range(50)])
        station.publish("other", b"bytes")
        report = verify(station, progress=lambda done, total: seen.append((done, total)))
    assert report.ok
    assert report.lines == MESSAGES + 51
    assert report.bytes == sum(
        path.stat().st_size for name in (CHANNEL, "other") for path in segments(tmp_path, channel=name)
    )
    assert [channel.name for channel in report.channels] == [CHANNEL, "other"]
    assert seen[-1] == (report.bytes, report.bytes)
    assert seen == sorted(seen)
    assert msgspec.json.encode(report)


@pytest.mark.parametrize("repair", [False, True])
def test_progress_never_goes_back_though_damage_is_looked_at_again(tmp_path: Path, repair: bool) -> None:
    seen: list[tuple[int, int]] = []
    with open_station(tmp_path, segment_bytes=65_536) as station:
        station.publish_many(CHANNEL, [{"n": number, "text": "x" * 60} for number in range(200)])
        for number in range(200, 800):
            station.publish(CHANNEL, {"n": number, "text": "x" * 60})
        for path in segments(tmp_path)[:3]:
            overwrite(path, 1000, b"?")
        report = verify(station, repair=repair, progress=lambda done, total: seen.append((done, total)))
    assert report.damaged == 3
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_one_channel_can_be_verified_alone_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station, 3)
        fill(station, 3, "other")
        assert [channel.name for channel in verify(station, "other").channels] == ["other"]
        with pytest.raises(hg.NotFound):
            verify(station, "nothing")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("damage", [b"?", b"\n", b"\n\n\n", b"\0" * 300], ids=["byte", "newline", "newlines", "zeros"])
def test_damage_in_a_sealed_segment_costs_only_the_damaged_lines(
    tmp_path: Path, damage: bytes, compressed: bool
) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        before = by_offset(station)
        victim = segments(tmp_path)[2]
        text = victim.read_bytes()
        at = text.index(b"\n") + 40
        overwrite(victim, at, damage)
        hit = {int(victim.stem) + text[:place].count(b"\n") for place in range(at, at + len(damage))}
        if compressed:
            _compress(tmp_path, victim)
        report = verify(station)
        assert damaged(report) == sorted(hit)
        assert not report.ok
        assert report.lines == MESSAGES - len(hit)
        assert by_offset(station) == {offset: n for offset, n in before.items() if offset not in hit}

        repaired = verify(station, repair=True)
        assert repaired.ok
        assert damaged(repaired) == sorted(hit)
        clean = verify(station)
        assert clean.ok
        assert not damaged(clean)
        assert by_offset(station) == {offset: n for offset, n in before.items() if offset not in hit}
        station.publish(CHANNEL, {"n": -1})
        assert by_offset(station)[MESSAGES] == -1
    aside = b"".join(path.read_bytes() for path in (tmp_path / "quarantine" / CHANNEL / "0").iterdir())
    assert damage.strip(b"\n") in aside
    assert bool(segments(tmp_path, ".zst")) == compressed
    with open_station(tmp_path) as station:
        assert len(numbers(station)) == MESSAGES - len(hit) + 1


def _compress(path: Path, victim: Path) -> None:
    """Compress a segment whose lines are damaged, as bit rot before the compression would leave it."""
    base = int(victim.stem)
    entries = index.chain(victim.with_suffix(".index").read_bytes(), base)
    compress.compress_segment(partition(path), base, entries, SYSTEM_DISK)


def test_a_damaged_zstd_frame_costs_its_lines_and_no_others(tmp_path: Path) -> None:
    with open_station(tmp_path, compress=True, segment_bytes=300_000) as station:
        fill(station, 6000)
        before = by_offset(station)
        station.trim()
        zst = segments(tmp_path, ".zst")[1]
        (partition(tmp_path) / f"{zst.name[:20]}.frames").unlink()
        size = zst.stat().st_size
        overwrite(zst, size // 2, bytes(40))
        report = verify(station)
        lost = set(damaged(report))
        base, following = int(zst.name[:20]), int(segments(tmp_path, ".zst")[2].name[:20])
        assert lost
        assert lost <= set(range(base, following))
        assert "frames" in kinds(report)
        assert verify(station, repair=True).ok
        assert verify(station).ok
        assert by_offset(station) == {offset: n for offset, n in before.items() if offset not in lost}
        assert zst.exists()


@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "flipped", "times"])
def test_a_wrong_index_is_reported_as_derived_and_made_again(tmp_path: Path, harm: str) -> None:
    with open_station(tmp_path, segment_bytes=60_000) as station:
        fill(station, 600)
        victim = segments(tmp_path, ".index")[0]
        data = victim.read_bytes()
        if harm == "missing":
            victim.unlink()
        elif harm == "times":
            entry = index.decode(data)
            assert entry is not None
            overwrite(victim, 0, index.encode(entry._replace(max_us=entry.min_us)))
        else:
            victim.write_bytes({"empty": b"", "cut": data[:-64], "flipped": data[:70] + b"!" + data[71:]}[harm])
        report = verify(station)
        assert not report.ok
        assert kinds(report) == ["index"]
        assert all(trouble.derived for trouble in report.troubles)
        assert not damaged(report)
        assert verify(station, repair=True).ok
        assert verify(station).ok
        assert numbers(station) == list(range(600))
        assert index.chain(victim.read_bytes(), 0)[-1].next == int(segments(tmp_path)[1].stem)


def test_a_lost_frames_file_is_derived(tmp_path: Path) -> None:
    with open_station(tmp_path, compress=True) as station:
        fill(station)
        station.trim()
        segments(tmp_path, ".frames")[0].write_bytes(b"\0" * 32)
        report = verify(station)
        assert kinds(report) == ["frames"]
        assert verify(station, repair=True).ok
        assert numbers(station) == list(range(MESSAGES))


def test_an_eaten_newline_shifts_nothing_even_without_an_index(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim = segments(tmp_path)[1]
        at = victim.read_bytes().index(b"\n")
        overwrite(victim, at, b"x")
        victim.with_suffix(".index").unlink()
        first = int(victim.stem)
        assert damaged(verify(station)) == [first, first + 1]
        assert verify(station, repair=True).ok
        assert by_offset(station) == {n: n for n in range(MESSAGES) if n not in (first, first + 1)}


def test_an_index_that_was_made_from_damaged_lines_does_not_mislead_verify(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim = segments(tmp_path)[1]
        overwrite(victim, victim.read_bytes().index(b"\n"), b"x")
        following = int(segments(tmp_path)[2].stem)
        entry = index.chain(victim.with_suffix(".index").read_bytes(), int(victim.stem))[-1]
        data = victim.read_bytes()
        wrong = entry._replace(lines=data.count(b"\n"), crc=google_crc32c.value(data))
        victim.with_suffix(".index").write_bytes(index.encode(wrong))
        first = int(victim.stem)
        report = verify(station)
        assert damaged(report) == [first, first + 1]
        assert "index" in kinds(report)
        assert verify(station, repair=True).ok
        assert by_offset(station) == {n: n for n in range(MESSAGES) if n not in (first, first + 1)}
        assert index.chain(victim.with_suffix(".index").read_bytes(), first)[-1].next == following


def test_a_repaired_segment_keeps_its_length_and_the_times_of_its_index(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim = segments(tmp_path)[1]
        before = (
            victim.stat().st_size,
            [
                (entry.first, entry.position, entry.append_us)
                for entry in index.chain(victim.with_suffix(".index").read_bytes(), int(victim.stem))
            ],
        )
        overwrite(victim, 300, b"\n\nxx")
        assert verify(station, repair=True).ok
        assert before == (
            victim.stat().st_size,
            [
                (entry.first, entry.position, entry.append_us)
                for entry in index.chain(victim.with_suffix(".index").read_bytes(), int(victim.stem))
            ],
        )


def test_an_index_that_does_not_know_of_a_blanked_line_is_reported(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim = segments(tmp_path)[1]
        end = victim.read_bytes().index(b"\n")
        overwrite(victim, 0, b" " * end)
        report = verify(station)
        assert kinds(report) == ["index"]
        assert not damaged(report)
        assert verify(station, repair=True).ok
        assert verify(station).ok


def test_a_sealed_segment_without_a_byte_keeps_its_offsets_taken(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim, following = segments(tmp_path)[1], int(segments(tmp_path)[2].stem)
        victim.write_bytes(b"")
        assert damaged(verify(station)) == list(range(int(victim.stem), following))
        assert verify(station, repair=True).ok
        assert by_offset(station) == {n: n for n in range(MESSAGES) if not int(victim.stem) <= n < following}
        assert verify(station).ok


def test_a_segment_that_vanished_is_reported_and_its_offsets_stay_taken(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        gone, following = (int(path.stem) for path in segments(tmp_path)[3:5])
        segments(tmp_path)[3].unlink()
        assert damaged(verify(station)) == list(range(gone, following))
        assert verify(station, repair=True).ok
        assert verify(station).ok
        assert by_offset(station) == {n: n for n in range(MESSAGES) if not gone <= n < following}


def test_a_truncated_sealed_segment_loses_its_end_only(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim, following = segments(tmp_path)[1], int(segments(tmp_path)[2].stem)
        data = victim.read_bytes()
        victim.write_bytes(data[: len(data) // 2])
        kept = data[: len(data) // 2].count(b"\n") + int(victim.stem)
        assert damaged(verify(station)) == list(range(kept, following))
        assert verify(station, repair=True).ok
        assert by_offset(station) == {n: n for n in range(MESSAGES) if not kept <= n < following}


def test_damage_in_the_active_segment_is_found_and_repaired_while_it_grows(tmp_path: Path) -> None:
    with open_station(tmp_path, segment_bytes=1_000_000) as station:
        fill(station)
        victim = segments(tmp_path)[-1]
        overwrite(victim, victim.read_bytes().index(b'"n":7,'), b"!")
        assert damaged(verify(station)) == [7]
        assert verify(station, repair=True).ok
        fill(station, 10, first=MESSAGES)
        assert by_offset(station) == {n: n for n in range(MESSAGES + 10) if n != 7}
        assert verify(station).ok


def test_a_head_that_does_not_fit_its_segment_is_made_again(tmp_path: Path) -> None:
    with open_station(tmp_path, segment_bytes=1_000_000) as station:
        fill(station)
        log = station.engine.writer(CHANNEL, 0)
        with log.mutex, log.locked():
            log.crc ^= 1
            log.synced_crc ^= 1
        report = verify(station)
        assert kinds(report) == ["head"]
        assert verify(station, repair=True).ok
        assert verify(station).ok
        fill(station, 5, first=MESSAGES)
        assert by_offset(station) == {n: n for n in range(MESSAGES + 5)}


def test_redacted_lines_are_no_damage(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        victim = next(message for message in station.read(CHANNEL) if message.offset == 50)
        station.redact(victim.id)
        report = verify(station)
        assert report.ok
        assert report.channels[0].partitions[0].blank == 1


def test_a_batch_that_is_not_whole_is_reported(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        station.publish_many(CHANNEL, [{"n": number} for number in range(4)])
        fill(station)
        path = segments(tmp_path)[0]
        text = path.read_bytes()
        body = text.split(b"\n")[2].rsplit(b',"batch":', 1)[0]
        origin = f"host1.{station.channel(CHANNEL).incarnation}".encode()
        line = stamp([body], [google_crc32c.value(body)], origin_place(origin, 0), 2)
        lines = text.split(b"\n")
        lines[2] = line[:-1]
        path.write_bytes(b"\n".join(lines))
        report = verify(station)
        assert "batch" in kinds(report)


def test_an_unreadable_channel_description_is_set_aside_and_written_again(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station, 30)
        path = tmp_path / "channels" / CHANNEL / "channel.json"
        path.write_bytes(b"{ not json")
    with open_station(tmp_path) as station:
        report = verify(station)
        assert not report.ok
        assert kinds(report) == ["channel"]
        assert report.lines == 30
        assert verify(station, repair=True).ok
        fill(station, 5, first=30)
        assert numbers(station) == list(range(35))
        assert verify(station).ok
    assert b"{ not json" in [path.read_bytes() for path in (tmp_path / "quarantine" / CHANNEL).iterdir()]


def test_an_unreadable_position_delivers_again_instead_of_skipping(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station, 20)
        _read_all(station, 20)
        path = tmp_path / "subscriptions" / CHANNEL / "worker-1" / "0.json"
        path.write_bytes(b"\0\0\0")
        report = verify(station)
        assert kinds(report) == ["position"]
        assert verify(station, repair=True).ok
        assert verify(station).ok
        assert _read_all(station, 20) == list(range(20))


def test_a_position_beyond_the_log_is_reported_and_moved_back(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station, 20)
        _read_all(station, 20)
        path = tmp_path / "subscriptions" / CHANNEL / "worker-1" / "0.json"
        position = json.loads(path.read_bytes())
        path.write_text(json.dumps(position | {"offset": 500}))
        report = verify(station)
        assert [trouble.path for trouble in report.troubles] == [f"subscriptions/{CHANNEL}/worker-1/0.json"]
        assert verify(station, repair=True).ok
        assert station.subscriptions(CHANNEL)[0].offset <= 20


def _read_all(station: hg.Station, count: int) -> list[int]:
    got: list[int] = []
    enough = threading.Event()

    def handle(message: hg.Message) -> None:
        got.append(message.data["n"])
        if len(got) >= count:
            enough.set()

    with station.subscribe(CHANNEL, handle, name="worker-1", start="first"):
        assert enough.wait(10)
    return got


# -- the fence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [0, 5, 100])
def test_a_fenced_log_is_repaired_at_what_was_synced_in_a_new_incarnation(tmp_path: Path, synced: int) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk) as station:
        if synced:
            fill(station, synced)
        else:
            station.create_channel(CHANNEL)
        life = station.channel(CHANNEL).incarnation
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, {"n": 999})
        disk.heal()
        with pytest.raises(hg.Fenced):
            station.publish(CHANNEL, {"n": 1000})
        report = verify(station)
        assert report.channels[0].partitions[0].fenced
        assert kinds(report) == ["fence"]

        assert verify(station, repair=True).ok
        assert station.channel(CHANNEL).incarnation != life
        receipt = station.publish(CHANNEL, {"n": synced})
        assert receipt.offset == synced
        assert numbers(station) == list(range(synced + 1))
        assert verify(station).ok
    assert any(b'"n":999' in path.read_bytes() for path in (tmp_path / "quarantine" / CHANNEL / "0").iterdir())
    assert "unfenced" in (tmp_path / "audit" / "audit.jsonl").read_text()
    with open_station(tmp_path) as station:
        assert numbers(station) == list(range(synced + 1))
        assert not station.engine.head_fields(CHANNEL, 0).flags & FENCED


def test_another_process_that_had_the_fenced_log_open_publishes_after_the_repair(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk) as sick, open_station(tmp_path) as other:
        fill(sick, 5)
        fill(other, 5, first=5)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            sick.publish(CHANNEL, {"n": 999})
        with pytest.raises(hg.Fenced):
            other.publish(CHANNEL, {"n": 1000})
        disk.heal()
        assert verify(sick, repair=True).ok
        fill(other, 5, first=10)
        fill(sick, 5, first=15)
        assert numbers(other) == numbers(sick) == list(range(20))
        assert verify(other).ok


def test_a_process_whose_sync_fails_after_the_repair_does_not_fence_the_log_again(tmp_path: Path) -> None:
    sick, late = FaultyDisk(), FaultyDisk()
    with open_station(tmp_path, disk=sick) as station:
        other = open_station(tmp_path, disk=late, durability="os")
        fill(station, 5)
        fill(other, 3, first=5)  # written, not synced: the repair cuts it
        sick.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, {"n": 999})
        sick.heal()
        assert verify(station, repair=True).ok
        late.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            other.sync()
        late.heal()
        fill(station, 5, first=5)
        fill(other, 5, first=10)
        assert numbers(station) == list(range(15))
        other.close()
        assert verify(station).ok


@pytest.mark.parametrize("call", range(1, 16))
def test_a_repair_that_fails_in_the_middle_can_be_run_again(tmp_path: Path, call: int) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk) as station:
        fill(station, 100)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, {"n": 999})
        disk.heal()
        overwrite(segments(tmp_path)[1], 100, b"!")
        lost = int(segments(tmp_path)[1].stem)
        disk.fail_at(call)
        try:
            verify(station, repair=True)
        except (OSError, hg.HeliographError):
            assert disk.fired
        disk.heal()
        assert verify(station, repair=True).ok
        assert verify(station).ok
        fill(station, 1, first=100)
        assert by_offset(station) == {n: n for n in range(101) if n != lost}


# -- with others around --------------------------------------------------------------------------------------------

BUSY = """
import sys, heliograph as hg
with hg.open(sys.argv[1], name="host1", segment_bytes=8192) as station:
    print("ready", flush=True)
    n = 0
    while True:
        station.publish("alerts", {"n": -1, "text": "y" * (n % 200)})
        n += 1
        if n % 20 == 0:
            for message in station.read("alerts", start=max(0, station.channel("alerts").next - 30)):
                station.redact(message.id)
                break
"""


def test_a_sound_log_stays_sound_in_the_eyes_of_verify_while_others_publish_redact_and_compress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.admin.verify.PAUSE_S", 0.1)
    with open_station(tmp_path, compress=True) as station:
        fill(station, 10)
        with subprocess.Popen([sys.executable, "-c", BUSY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as busy:
            try:
                assert busy.stdout is not None
                assert busy.stdout.readline() == "ready\n"
                deadline_s = time.monotonic() + 2
                while time.monotonic() < deadline_s:
                    report = verify(station)
                    assert report.ok, report
                    station.trim()
                    assert verify(station, repair=True).ok
            finally:
                busy.kill()
        assert verify(station, repair=True).ok  # it may have been killed in the middle of a rotation
        assert verify(station).ok


def test_verify_of_a_read_only_station_leaves_no_trace_and_repair_is_refused(tmp_path: Path) -> None:
    with open_station(tmp_path, compress=True) as station:
        fill(station)
        station.trim()
    segments(tmp_path, ".frames")[0].unlink()
    segments(tmp_path, ".index")[1].unlink()
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with open_station(tmp_path, read_only=True) as station:
        assert kinds(verify(station)) == ["frames", "index"]
        with pytest.raises(hg.ReadOnly):
            verify(station, repair=True)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_an_interrupted_redaction_is_reported_and_finished_by_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.admin.verify.REDACTION_AGE_S", 0.0)
    with open_station(tmp_path) as station:
        fill(station)
        (partition(tmp_path) / "redact.json").write_bytes(b'{"offsets":[3]}')
        assert kinds(verify(station)) == ["redaction"]
        assert verify(station, repair=True).ok
        assert 3 not in by_offset(station)
        assert verify(station).ok


def test_a_rotation_that_was_not_finished_is_cleared_away(tmp_path: Path) -> None:
    with open_station(tmp_path, segment_bytes=1_000_000) as station:
        fill(station, 10)
        (partition(tmp_path) / f"{8:020d}.jsonl").touch()
        assert kinds(verify(station)) == ["names"]
        assert verify(station, repair=True).ok
        assert verify(station).ok
        assert numbers(station) == list(range(10))


def test_quarantine_is_never_overwritten(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        place = station.engine.directory.place(CHANNEL, 0, "host1")
        names = {set_aside(place, "same", data, station.engine.disk) for data in (b"one", b"two", b"one")}
        assert sorted(path.read_bytes() for path in names) == [b"one", b"two"]
