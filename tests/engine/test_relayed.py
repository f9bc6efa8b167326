"""Lines of other stations: stored byte for byte, each once, and nothing acknowledged that is not on disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from heliograph.admin.backup import backup, restore
from heliograph.admin.transfer import export_messages
from heliograph.admin.verify import verify
from heliograph.engine.foreign import piece_of
from heliograph.engine.knowledge import Outdated
from heliograph.engine.relayed import Relayed
from heliograph.errors import Busy, Fenced, InvalidName, NotFound, OutcomeUnknown, ReadOnly, StationClosed
from heliograph.limits import RENEWALS_MAX
from heliograph.seen import SeenSet
from heliograph.station import Station
from tests.arrivals import (
    HOST2,
    doubled,
    foreign,
    identities,
    keyed,
    line,
    lines,
    members,
    sealed,
    stored,
)
from tests.faults import FaultyDisk, QuickDisk
from tests.opening import Opener
from tests.proof.tools import Child, eventually

CHANNEL = "alerts"


def relayed(station: Station) -> Relayed:
    return station.engine.relayed


def held(root: Path) -> set[tuple[str, int, int]]:
    assert not doubled(root)
    return set(identities(root))


def own(station: Station) -> str:
    return f"{station.name}.{station.channel(CHANNEL).incarnation}"


def checkpoint(root: Path) -> Path:
    return root / "seen" / f"{CHANNEL}.json"


# -- appending ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
@pytest.mark.parametrize("body", [False, True])
def test_lines_are_stored_byte_for_byte_in_order(opened: Opener, root: Path, durability: str, body: bool) -> None:
    station = opened(durability=durability)
    sent = lines(0, 50)
    arrival = relayed(station).arrive(CHANNEL, b"".join(one + b"\n" for one in sent) if body else sent)
    assert (arrival.appended, arrival.duplicates, arrival.refused) == (50, 0, [])
    assert stored(root) == sent
    read = list(station.read(CHANNEL))
    assert [message.raw for message in read] == sent
    assert [message.offset for message in read] == list(range(50))
    assert read[7].origin == HOST2
    assert read[7].originseq == "0/7"


@pytest.mark.parametrize(("durability", "before_the_sync"), [("always", False), ("interval", True), ("os", True)])
def test_readers_are_woken_when_there_is_something_for_them(
    opened: Opener, durability: str, before_the_sync: bool
) -> None:
    station = opened(durability=durability)
    station.create_channel(CHANNEL)
    news = station.engine.writer(CHANNEL, 0).news
    woken = news.arm()
    arrival = relayed(station).append(CHANNEL, [piece_of(lines(0, 1))])
    assert woken.locked() != before_the_sync
    woken = news.arm() if before_the_sync else woken
    relayed(station).confirm(arrival)
    assert not woken.locked()


def test_what_arrives_again_is_not_stored_again(opened: Opener, root: Path) -> None:
    station = opened()
    relayed(station).arrive(CHANNEL, lines(0, 10))
    arrival = relayed(station).arrive(CHANNEL, [*lines(5, 15), *lines(0, 3), line(14), line(20)])
    assert (arrival.appended, arrival.duplicates) == (6, 9)
    assert identities(root) == [(HOST2, 0, seq) for seq in [*range(15), 20]]


def test_one_batch_may_hold_lines_of_many_origins(opened: Opener, root: Path) -> None:
    station = opened()
    sent = [line(seq, f"host{2 + seq % 3}.bbbbbb", seq % 2) for seq in range(40)]
    assert relayed(station).arrive(CHANNEL, [*sent, *reversed(sent)]).appended == 40
    assert stored(root) == sent


def test_sequences_of_one_origin_in_two_partitions_are_different(opened: Opener, root: Path) -> None:
    station = opened()
    assert relayed(station).arrive(CHANNEL, [line(3, HOST2, 0), line(3, HOST2, 1)]).appended == 2
    assert relayed(station).seen(CHANNEL) == seen_of([(HOST2, 0, 3), (HOST2, 1, 3)])


def seen_of(found: list[tuple[str, int, int]]) -> SeenSet:
    seen = SeenSet()
    for origin, partition, sequence in found:
        seen.add(origin, partition, sequence, sequence + 1)
    return seen


def test_digits_of_sequences_may_change_within_a_batch(opened: Opener, root: Path) -> None:
    station = opened()
    assert relayed(station).arrive(CHANNEL, lines(95, 1205)).appended == 1110
    assert relayed(station).seen(CHANNEL).to_json() == {HOST2: {"0": [[95, 1205]]}}


def test_own_messages_and_arrivals_share_a_log(opened: Opener, root: Path) -> None:
    station = opened()
    for number in range(6):
        station.publish(CHANNEL, number)
        relayed(station).arrive(CHANNEL, [line(number)])
    mine = own(station)
    assert identities(root) == [pair for seq in range(6) for pair in ((mine, 0, 2 * seq), (HOST2, 0, seq))]
    seen = relayed(station).seen(CHANNEL).to_json()
    assert seen[HOST2] == {"0": [[0, 6]]}
    assert seen[mine] == {"0": [[0, 11]]}, "sequences that will never be: one interval all the same"


def test_nothing_arrives_in_an_empty_batch(opened: Opener, root: Path) -> None:
    station = opened()
    assert relayed(station).arrive(CHANNEL, []).appended == 0
    assert relayed(station).arrive(CHANNEL, b"").appended == 0
    assert not (root / "channels" / CHANNEL).exists()


def test_ten_megabytes_in_one_line(opened: Opener, root: Path) -> None:
    station = opened(max_bytes=11_000_000)
    sent = [line(0), line(1, data=b'"%b"' % (b"x" * 10_000_000)), line(2)]
    assert relayed(station).arrive(CHANNEL, sent).appended == 3
    assert [len(message.raw) for message in station.read(CHANNEL)] == [len(one) for one in sent]


# -- partitions ---------------------------------------------------------------------------------------------------


def test_a_key_chooses_the_partition_as_it_does_for_publishers(opened: Opener, root: Path) -> None:
    station = opened()
    station.create_channel(CHANNEL, partitions=4)
    keys = [f"key-{number}" for number in range(20)]
    relayed(station).arrive(CHANNEL, [keyed(seq, key) for seq, key in enumerate(keys)])
    here = {message.key: message.partition for message in station.read(CHANNEL)}
    assert here == {key: station.publish(CHANNEL, 1, key=key).partition for key in keys}
    assert len(set(here.values())) == 4


def test_without_a_key_an_origins_partition_stays_together(opened: Opener, root: Path) -> None:
    station = opened()
    station.create_channel(CHANNEL, partitions=4)
    for part in range(8):
        relayed(station).arrive(CHANNEL, lines(0, 5, HOST2, part))
        relayed(station).arrive(CHANNEL, lines(5, 9, HOST2, part))
    places: dict[str, set[int]] = {}
    for message in station.read(CHANNEL):
        places.setdefault(message.originseq.partition("/")[0], set()).add(message.partition)
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) > 1
    assert len(held(root)) == 72


def test_a_channel_that_grows_recognises_what_it_had(opened: Opener, root: Path) -> None:
    station, other = opened(), opened()
    sent = [keyed(seq, f"key-{seq}") for seq in range(30)]
    relayed(station).arrive(CHANNEL, sent[:20])
    other.alter_channel(CHANNEL, partitions=3)
    assert relayed(station).arrive(CHANNEL, sent).appended == 10
    assert relayed(other).arrive(CHANNEL, sent).duplicates == 30
    assert len(held(root)) == 30
    assert {message.partition for message in station.read(CHANNEL)} == {0, 1, 2}


# -- what cannot be stored ------------------------------------------------------------------------------------------

BAD: dict[str, bytes] = {
    "empty": b"",
    "blank": b"   ",
    "no json": b"hello",
    "bad crc": line(1)[:-4] + b'0"}',
    "crc of another": line(1).replace(b'"data":1', b'"data":2'),
    "no checksum": line(1)[:-18] + b"}",
    "half": line(1)[:100],
    "wrong channel": line(1, channel="other"),
    "no channel": sealed(line(1)[:-18].replace(b'"channel":"alerts",', b"")),
    "no id": sealed(b'{"specversion":"1.0","source":"a","channel":"alerts","origin":"host2.aaaaaa","originseq":"0/1"'),
    "no origin": sealed(line(1)[:-18].partition(b',"origin"')[0]),
    "origin not at the end": sealed(line(1)[:-18] + b',"more":1'),
    "sequence no number": sealed(line(1)[:-18].replace(b'"originseq":"0/1"', b'"originseq":"0/x"')),
    "sequence too long": sealed(line(1)[:-18].replace(b'"originseq":"0/1"', b'"originseq":"0/' + b"9" * 30 + b'"')),
    "sequence with zeros": sealed(line(1)[:-18].replace(b'"originseq":"0/1"', b'"originseq":"0/01"')),
    "origin without life": line(1, "host2"),
    "origin a path": line(1, "../../x.aaaaaa"),
    "origin empty": line(1, ".aaaaaa"),
    "newline before": sealed(b"\n" + line(1)[:-18]),
    "newline inside": sealed(line(1)[:-18].replace(b'"data":1', b'"data":\n1')),
    "two lines": line(1) + b"\n" + line(2),
    "no utf-8": sealed(line(1)[:-18].replace(b'"data":1', b'"data":"\xff"')),
    "time no time": sealed(line(1)[:-18].replace(b"2026-11-15T", b"yesterday")),
    "time without zone": sealed(line(1)[:-18].replace(b'Z","channel', b'","channel')),
    "time before 1970": sealed(line(1)[:-18].replace(b"2026-11-15T", b"1926-11-15T")),
    "key a number": sealed(line(1)[:-18].replace(b'"data":1', b'"partitionkey":7,"data":1')),
    "too deep": sealed(line(1)[:-18].replace(b'"data":1', b'"data":' + b"[" * 20_000 + b"]" * 20_000)),
    "too large": line(1, data=b'"%b"' % (b"x" * 100_000)),
    "json array": sealed(b'["a"')[:-1] + b"]",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_line_that_cannot_be_stored_is_refused_and_the_rest_goes_on(opened: Opener, root: Path, bad: bytes) -> None:
    station = opened(max_bytes=50_000)
    sent = [line(0), bad, line(5)]
    arrival = relayed(station).arrive(CHANNEL, sent)
    assert arrival.appended == 2
    assert [at for at, _ in arrival.refused] == [1]
    assert arrival.refused[0][1]
    assert stored(root) == [line(0), line(5)]
    assert relayed(station).arrive(CHANNEL, [bad]).refused[0][0] == 0
    assert len(list(station.read(CHANNEL))) == 2
    assert verify(station).ok


def test_a_refusal_says_why(opened: Opener) -> None:
    arrival = relayed(opened()).arrive(CHANNEL, [BAD["wrong channel"], BAD["bad crc"], BAD["origin a path"]])
    reasons = [why for _, why in arrival.refused]
    assert "'other'" in reasons[0]
    assert "checksum" in reasons[1]
    assert "origin" in reasons[2]


@pytest.mark.parametrize("name", ["../../x", "", "a/b", ".", "a..b"])
def test_a_channel_whose_name_is_no_name_is_refused_before_a_path_is_made(
    opened: Opener, root: Path, name: str
) -> None:
    station = opened()
    with pytest.raises(InvalidName):
        relayed(station).arrive(name, [line(0, channel=name)])
    with pytest.raises(InvalidName):
        relayed(station).seen(name)
    assert not (root / "seen").exists()


def test_a_channel_that_must_not_be_made_is_not(opened: Opener, root: Path) -> None:
    station = opened(auto_create=False)
    with pytest.raises(NotFound):
        relayed(station).arrive(CHANNEL, [line(0)])
    station.create_channel(CHANNEL)
    assert relayed(station).arrive(CHANNEL, [line(0)]).appended == 1


def test_a_read_only_station_takes_nothing_and_says_what_it_has(opened: Opener, root: Path) -> None:
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 9))
    reader = opened(read_only=True)
    with pytest.raises(ReadOnly):
        relayed(reader).arrive(CHANNEL, [line(9)])
    assert relayed(reader).seen(CHANNEL).to_json() == {HOST2: {"0": [[0, 9]]}}
    assert relayed(reader).ends(CHANNEL) == {(HOST2, 0): (8, f"{HOST2}-0-8")}


def test_a_closed_station_takes_nothing(opened: Opener) -> None:
    station = opened()
    relayed(station).arrive(CHANNEL, [line(0)])
    station.close()
    with pytest.raises(StationClosed):
        relayed(station).arrive(CHANNEL, [line(1)])


# -- after a restart ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["none", "lost", "stale", "garbage", "ahead", "half"])
def test_duplicates_are_recognised_after_a_restart(opened: Opener, root: Path, loss: str) -> None:
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 10))
        relayed(station).cover(CHANNEL)
        old = checkpoint(root).read_bytes()
        station.publish(CHANNEL, "own")
        relayed(station).arrive(CHANNEL, lines(15, 25))
    kept = checkpoint(root).read_bytes()
    assert json.loads(kept)["covered"] == [21]
    content = {
        "none": kept, "stale": old, "garbage": b"\0" * 50, "half": kept[: len(kept) // 2],
        "ahead": kept.replace(b'"covered":[21]', b'"covered":[22]').replace(b"[15,25]", b"[15,26]"),
    }  # fmt: skip
    if loss == "lost":
        checkpoint(root).unlink()
    else:
        checkpoint(root).write_bytes(content[loss])
    station = opened()
    assert relayed(station).arrive(CHANNEL, lines(0, 30)).appended == 10
    assert len(held(root)) == 31
    assert foreign(members(relayed(station).seen(CHANNEL))) != []


def test_only_what_the_checkpoint_does_not_cover_is_read(opened: Opener, root: Path) -> None:
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 500))
    disk = FaultyDisk()
    station = opened(disk=disk)
    disk.recording = True
    relayed(station).arrive(CHANNEL, [line(500)])
    assert not [path for kind, path in disk.journal if kind == "pread" and path.endswith(".jsonl")]


def test_what_was_trimmed_is_not_stored_again(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        station.create_channel(CHANNEL, retention_bytes=6000)
        for first in range(0, 100, 10):
            relayed(station).arrive(CHANNEL, lines(first, first + 10))
        assert station.trim()
        assert station.channel(CHANNEL).first > 0
        assert relayed(station).arrive(CHANNEL, lines(0, 100)).duplicates == 100
        left = len(stored(root))
    for _ in range(2):
        station = opened()
        assert relayed(station).arrive(CHANNEL, lines(0, 101)).duplicates >= 100
        assert len(stored(root)) == left + 1
        assert relayed(station).seen(CHANNEL).to_json() == {HOST2: {"0": [[0, 101]]}}
        station.close()


def test_another_process_trims(opened: Opener, root: Path) -> None:
    """Who deletes has to write down what it deletes, though it never received anything itself."""
    with opened(segment_bytes=4096) as receiver, opened(segment_bytes=4096) as trimmer:
        receiver.create_channel(CHANNEL, retention_bytes=6000)
        for first in range(0, 100, 10):
            relayed(receiver).arrive(CHANNEL, lines(first, first + 10))
        assert trimmer.trim()
        os.truncate(root / "seen" / f"{CHANNEL}.lock", 0)
    station = opened()
    assert relayed(station).arrive(CHANNEL, lines(0, 100)).duplicates == 100


def test_a_checkpoint_is_on_disk_before_a_segment_goes(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk, segment_bytes=4096)
    station.create_channel(CHANNEL, retention_bytes=6000)
    for first in range(0, 100, 10):
        relayed(station).arrive(CHANNEL, lines(first, first + 10))
    disk.recording = True
    station.trim()
    kinds = [(kind, Path(path).name.split(".tmp")[0]) for kind, path in disk.journal]
    gone = kinds.index(("unlink", "00000000000000000000.jsonl"))
    assert ("fdatasync", f"{CHANNEL}.json") in kinds[:gone]
    assert ("sync_directory", "seen") in kinds[:gone]


def test_a_checkpoint_is_written_after_what_it_covers_is_synced(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk, durability="interval", sync_interval_ms=60_000)
    relayed(station).append(CHANNEL, [piece_of(lines(0, 10))])
    disk.recording = True
    relayed(station).cover(CHANNEL)
    kinds = [(kind, Path(path).name.split(".tmp")[0]) for kind, path in disk.journal]
    assert ("fdatasync", "00000000000000000000.jsonl") in kinds[: kinds.index(("rename", f"{CHANNEL}.json"))]


def test_who_compacts_writes_down_what_a_dead_process_had_received(opened: Opener, root: Path) -> None:
    received = opened(segment_bytes=4096)
    received.create_channel(CHANNEL, retention_compact=True)
    for first in range(0, 60, 10):
        relayed(received).arrive(CHANNEL, [keyed(seq, "same") for seq in range(first, first + 10)])
    received._upkeep.close()
    received.engine.abandon()
    with opened() as station:
        station.trim(CHANNEL)
    left = stored(root)
    assert len(left) < 30
    assert relayed(opened()).arrive(CHANNEL, [keyed(seq, "same") for seq in range(60)]).duplicates == 60
    assert stored(root) == left


def test_what_was_compacted_or_redacted_is_not_stored_again(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        station.create_channel(CHANNEL, retention_compact=True)
        for first in range(0, 60, 10):
            relayed(station).arrive(CHANNEL, [keyed(seq, "same") for seq in range(first, first + 10)])
        station.trim(CHANNEL)
        relayed(station).arrive(CHANNEL, [line(60, data=b'"secret-word"')])
        station.redact(f"{HOST2}-0-60", channel=CHANNEL)
    left = stored(root)
    assert len(left) < 50
    assert not any(b"secret-word" in one for one in left)
    checkpoint(root).touch()
    station = opened()
    again = [*[keyed(seq, "same") for seq in range(60)], line(60, data=b'"secret-word"')]
    assert relayed(station).arrive(CHANNEL, again).duplicates == 61
    assert stored(root) == left


# -- lives ------------------------------------------------------------------------------------------------------------


def test_own_lines_that_come_back_are_known(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish_many(CHANNEL, list(range(5)))
    relayed(station).arrive(CHANNEL, [line(0)])
    station.publish(CHANNEL, 5)
    mine = [one for one in stored(root) if b"host1" in one]
    life = station.channel(CHANNEL).incarnation
    assert relayed(station).arrive(CHANNEL, mine).duplicates == 6
    station.publish(CHANNEL, 6)
    assert relayed(station).arrive(CHANNEL, stored(root)[-1:]).duplicates == 1
    assert station.channel(CHANNEL).incarnation == life
    assert len(held(root)) == 8


def test_own_lines_of_an_earlier_life_are_known_if_they_are_here(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, list(range(5)))
    mine = stored(root)
    shutil.copytree(root, tmp_path / "copy")
    copy = opened(tmp_path / "copy")
    assert relayed(copy).arrive(CHANNEL, mine).duplicates == 5
    copy.publish(CHANNEL, "new life")
    before = identities(root)[0][0]
    assert relayed(copy).seen(CHANNEL).to_json() == {before: {"0": [[0, 5]]}, own(copy): {"0": [[5, 6]]}}


def test_own_lines_that_were_lost_are_taken_back(opened: Opener, root: Path, tmp_path: Path) -> None:
    """The directory is restored from a copy; what it had since comes back from whoever got it."""
    with opened() as station:
        station.publish(CHANNEL, 0)
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        station.publish_many(CHANNEL, [1, 2, 3])
        station.publish(CHANNEL, 4)
    everything = stored(root)
    with opened(tmp_path / "copy") as copy:
        copy.publish(CHANNEL, "since")
        assert relayed(copy).arrive(CHANNEL, everything[:3]).appended == 2
        assert relayed(copy).arrive(CHANNEL, everything).appended == 2
        copy.publish_many(CHANNEL, ["more", "and more"])
    found = [message.data for message in opened(tmp_path / "copy").read(CHANNEL)]
    assert found == [0, "since", 1, 2, 3, 4, "more", "and more"]
    assert verify(opened(tmp_path / "copy")).ok
    assert relayed(opened(tmp_path / "copy")).arrive(CHANNEL, everything).duplicates == 5
    assert not doubled(tmp_path / "copy")


def test_our_own_origin_beyond_our_end_begins_a_new_life(opened: Opener, root: Path) -> None:
    station, other = opened(), opened()
    for number in range(3):
        station.publish(CHANNEL, number)
    mine = own(station)
    arrival = relayed(station).arrive(CHANNEL, [line(2, mine), line(7, mine), line(8, mine)])
    assert (arrival.appended, arrival.duplicates) == (2, 1)
    assert own(station) != mine
    assert own(other) == own(station)
    audited = (root / "audit" / "audit.jsonl").read_text()
    assert "beyond the end" in audited
    for publisher in (station, other):
        publisher.publish(CHANNEL, "later")
    assert [one[0] for one in identities(root)] == [mine] * 5 + [own(station)] * 2
    assert relayed(other).arrive(CHANNEL, [line(7, mine), line(6, mine)]).appended == 1
    assert len(held(root)) == 8


def test_own_lines_of_a_partition_that_is_not_here_begin_a_new_life(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish(CHANNEL, 0)
    mine = own(station)
    assert relayed(station).arrive(CHANNEL, [line(0, mine, 5)]).appended == 1
    assert own(station) != mine


def test_our_own_origin_beyond_our_end_is_not_believed_for_ever(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish(CHANNEL, "mine")
    lives = []
    for number in range(RENEWALS_MAX):
        lives.append(station.engine.incarnation(CHANNEL))
        station.engine.relayed.arrive(CHANNEL, [line(100, f"{station.name}.{lives[-1]}", data=b"%d" % number)])
    life = station.engine.incarnation(CHANNEL)
    assert len({*lives, life}) == RENEWALS_MAX + 1
    with pytest.raises(Busy, match="began 2 new lives for that within 1 h"):
        station.engine.relayed.arrive(CHANNEL, [line(100, f"{station.name}.{life}")])
    assert station.engine.incarnation(CHANNEL) == life
    assert station.engine.relayed.arrive(CHANNEL, [line(0)]).appended == 1, "others are not held up"


def test_a_restored_directory_does_not_claim_what_it_has_not(opened: Opener, root: Path, tmp_path: Path) -> None:
    """The seen-set is newer than the log: whoever copied took one after the other."""
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 10))
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(10, 20))
    shutil.copy(checkpoint(root), checkpoint(tmp_path / "copy"))
    copy = opened(tmp_path / "copy")
    assert members(relayed(copy).seen(CHANNEL)) == set(identities(tmp_path / "copy"))
    assert relayed(copy).arrive(CHANNEL, lines(0, 20)).appended == 10


def test_a_log_that_lost_its_end_and_grew_again_is_read_anew(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 10))
    segment = root / "channels" / CHANNEL / "0" / "00000000000000000000.jsonl"
    os.truncate(segment, sum(len(one) + 1 for one in stored(root)[:5]))
    with opened() as station:
        for number in range(9):
            station.publish(CHANNEL, number)
    station = opened()
    assert relayed(station).arrive(CHANNEL, lines(0, 10)).appended == 5
    assert len(foreign(held(root))) == 10


def test_backups_remember_what_was_seen(opened: Opener, root: Path, tmp_path: Path) -> None:
    station = opened(segment_bytes=4096)
    station.create_channel(CHANNEL, retention_bytes=6000)
    for first in range(0, 100, 10):
        relayed(station).arrive(CHANNEL, lines(first, first + 10))
    station.trim()
    station.publish(CHANNEL, "own")
    backup(station, tmp_path / "backup")
    relayed(station).arrive(CHANNEL, lines(100, 110))
    restore(tmp_path / "backup", tmp_path / "again")
    again = opened(tmp_path / "again")
    assert relayed(again).arrive(CHANNEL, lines(0, 110)).appended == 10
    assert not doubled(tmp_path / "again")


def test_a_channel_that_is_made_anew_takes_everything_again(opened: Opener, root: Path) -> None:
    station, other = opened(), opened()
    relayed(station).arrive(CHANNEL, lines(0, 10))
    relayed(other).arrive(CHANNEL, lines(0, 12))
    relayed(other).gap(CHANNEL, HOST2, 0, 12, 15)
    station.delete_channel(CHANNEL)
    assert not checkpoint(root).exists()
    assert relayed(other).arrive(CHANNEL, lines(0, 5)).appended == 5
    assert relayed(station).arrive(CHANNEL, lines(0, 15)).appended == 10
    assert not relayed(other).gaps(CHANNEL)
    assert len(held(root)) == 15


def test_what_a_killed_deletion_left_is_not_believed(opened: Opener, root: Path) -> None:
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 10))
        left = checkpoint_of(station)
        station.delete_channel(CHANNEL)
    checkpoint(root).write_bytes(left)
    station = opened()
    assert not checkpoint(root).exists()
    relayed(station).arrive(CHANNEL, lines(5, 10))
    checkpoint(root).write_bytes(left)  # a process of another channel's life was slow
    station.close()
    checkpoint(root).write_bytes(left)
    assert relayed(opened()).arrive(CHANNEL, lines(0, 20)).appended == 15


def test_a_checkpoint_of_an_earlier_channel_of_that_name_is_not_believed(opened: Opener, root: Path) -> None:
    """Though the line by which it could be told apart is redacted."""
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 3))
        left = checkpoint_of(station)
        station.delete_channel(CHANNEL)
        receipts = [station.publish(CHANNEL, number) for number in range(5)]
        station.redact(receipts[2].id)
    (root / "seen" / f"{CHANNEL}.lock").touch()
    checkpoint(root).write_bytes(left)
    assert relayed(opened()).arrive(CHANNEL, lines(0, 3)).appended == 3


def test_lines_are_not_counted_to_a_life_that_is_over(opened: Opener, root: Path) -> None:
    station, other = opened(), opened()
    relayed(station).arrive(CHANNEL, lines(0, 10))
    other.delete_channel(CHANNEL)
    other.create_channel(CHANNEL)
    arrival = relayed(station).arrive(CHANNEL, lines(10, 12))
    assert (arrival.appended, arrival.incarnation) == (2, station.channel(CHANNEL).incarnation)
    assert relayed(station).seen(CHANNEL).to_json() == {HOST2: {"0": [[10, 12]]}}


def checkpoint_of(station: Station) -> bytes:
    relayed(station).cover(CHANNEL)
    return checkpoint(station.path).read_bytes()


# -- ends and gaps ----------------------------------------------------------------------------------------------------


def test_ends_name_the_last_message_of_each_origin(opened: Opener, root: Path) -> None:
    station = opened()
    relayed(station).arrive(CHANNEL, [*lines(0, 5), *lines(3, 9, "host3.cccccc", 2), line(2, "host3.cccccc", 2)])
    receipt = station.publish(CHANNEL, "own")
    relayed(station).arrive(CHANNEL, lines(5, 300))
    expected = {
        (HOST2, 0): (299, f"{HOST2}-0-299"),
        ("host3.cccccc", 2): (8, "host3.cccccc-2-8"),
        (own(station), 0): (receipt.offset, receipt.id),
    }
    assert relayed(station).ends(CHANNEL) == expected
    station.close()
    assert relayed(opened()).ends(CHANNEL) == expected


def test_the_ends_of_a_log_without_own_messages_are_known_without_reading_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = opened()
    relayed(station).arrive(CHANNEL, lines(0, 5))
    monkeypatch.delattr("heliograph.engine.lastown.LogCursor")
    assert relayed(station).ends(CHANNEL) == {(HOST2, 0): (4, f"{HOST2}-0-4")}


def test_a_gap_is_kept_apart_and_may_be_filled(opened: Opener, root: Path) -> None:
    with opened() as station:
        relayed(station).arrive(CHANNEL, lines(0, 5))
        relayed(station).gap(CHANNEL, HOST2, 0, 5, 20)
        assert relayed(station).seen(CHANNEL).to_json() == {HOST2: {"0": [[0, 5]]}}
    station, other = opened(), opened()
    assert relayed(station).gaps(CHANNEL).to_json() == {HOST2: {"0": [[5, 20]]}}
    assert relayed(station).arrive(CHANNEL, lines(10, 12)).appended == 2
    assert relayed(other).gaps(CHANNEL).to_json() == {HOST2: {"0": [[5, 10], [12, 20]]}}


def test_sequences_that_their_origin_never_gave_are_as_good_as_seen(opened: Opener) -> None:
    station = opened()
    relayed(station).arrive(CHANNEL, [line(0), line(2)])
    relayed(station).gap(CHANNEL, HOST2, 0, 1, 2, never=True)
    assert relayed(station).never(CHANNEL).to_json() == {HOST2: {"0": [[1, 2]]}}
    assert relayed(station).seen(CHANNEL).to_json() == {HOST2: {"0": [[0, 3]]}}


# -- others at the same time ------------------------------------------------------------------------------------------


def test_stations_of_one_directory_take_turns(opened: Opener, root: Path) -> None:
    first, second = opened(durability="interval"), opened()
    for turn in range(0, 60, 3):
        assert relayed(first).arrive(CHANNEL, lines(turn, turn + 2)).appended == (2 if turn == 0 else 1)
        assert relayed(second).arrive(CHANNEL, lines(turn, turn + 4)).appended == 2
        first.publish(CHANNEL, turn)
    assert identities_without_own(root) == [(HOST2, 0, seq) for seq in range(61)]


def identities_without_own(root: Path) -> list[tuple[str, int, int]]:
    return foreign(identities(root))


def test_threads_bring_the_same_lines_at_once(opened: Opener, root: Path) -> None:
    station = opened(durability="interval")
    station.create_channel(CHANNEL)
    sent = lines(0, 400)
    appended: list[int] = []

    def bring(shift: int) -> None:
        for first in range(0, 400, 10):
            at = (first + shift) % 400
            appended.append(relayed(station).arrive(CHANNEL, sent[at : at + 10]).appended)

    threads = [threading.Thread(target=bring, args=(shift,)) for shift in (0, 5, 100, 205)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(appended) == 400
    assert len(held(root)) == 400


RECEIVER = """
    import sys
    from heliograph.station import open_station
    from tests.arrivals import lines
    station = open_station(sys.argv[1], name="host1", durability=sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    appended = 0
    for first in range(0, 3000, 50):
        appended += station.engine.relayed.arrive("alerts", lines(first, first + 70)).appended
        station.publish("alerts", first)
    print(appended, flush=True)
    station.close()
"""


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_processes_bring_the_same_lines_at_once(root: Path, durability: str) -> None:
    with Child(RECEIVER, root, durability) as one, Child(RECEIVER, root, durability) as two:
        for child in (one, two):
            child.line()
        for child in (one, two):
            child.tell()
        appended = [int(child.line()) for child in (one, two)]
        for child in (one, two):
            child.finish()
    found = foreign(held(root))
    assert len(found) == 3020 == sum(appended)


def test_a_process_that_cannot_sign_appends_nothing(opened: Opener, root: Path) -> None:
    """It would be overlooked by the one whose name is there."""
    disk = FaultyDisk()
    first, second = opened(), opened(disk=disk)
    relayed(first).arrive(CHANNEL, lines(0, 5))
    disk.fail("ftruncate", errno.EIO, path=".lock", times=9)
    with pytest.raises(Exception, match="cannot be written"):
        relayed(second).arrive(CHANNEL, lines(5, 6))
    disk.heal()
    assert relayed(first).arrive(CHANNEL, lines(5, 6)).appended == 1
    assert relayed(second).arrive(CHANNEL, lines(5, 7)).appended == 1
    assert len(held(root)) == 7


# -- failing disks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_nothing_counts_as_stored_whose_sync_failed(opened: Opener, root: Path, durability: str) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk, durability=durability, sync_interval_ms=60_000)
    relayed(station).arrive(CHANNEL, lines(0, 5))
    disk.fail("fdatasync", path=".jsonl")
    with pytest.raises(OutcomeUnknown):
        relayed(station).arrive(CHANNEL, lines(5, 10))
    with pytest.raises(Fenced):
        relayed(station).arrive(CHANNEL, lines(5, 10))  # nothing but duplicates: not acknowledged, either
    with pytest.raises(Fenced):
        relayed(station).seen(CHANNEL)
    disk.heal()
    verify(station, repair=True)
    assert relayed(station).arrive(CHANNEL, lines(0, 10)).appended == 5
    assert len(held(root)) == 10


def test_duplicates_are_not_acknowledged_when_the_sync_of_their_first_copy_failed(opened: Opener, root: Path) -> None:
    """One link brought them and has not confirmed yet; another brings them again."""
    disk = FaultyDisk()
    station = opened(disk=disk)
    first = relayed(station).append(CHANNEL, [piece_of(lines(0, 5))])
    assert first.appended == 5
    disk.fail("fdatasync", path=".jsonl")
    with pytest.raises(OutcomeUnknown):
        relayed(station).arrive(CHANNEL, lines(0, 5))
    disk.heal()
    verify(station, repair=True)
    with pytest.raises(Outdated):
        relayed(station).confirm(first)
    assert relayed(station).arrive(CHANNEL, lines(0, 5)).appended == 5
    assert len(held(root)) == 5


def test_what_is_synced_at_once_waits_for_the_first_copies_of_duplicates_all_the_same(opened: Opener) -> None:
    """One link brought a message to another partition, and has not confirmed it yet."""
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.create_channel(CHANNEL, partitions=2)
    sent = [keyed(0, "a"), keyed(1, "d")]
    assert crc32(b"a") % 2 != crc32(b"d") % 2
    relayed(station).append(CHANNEL, [piece_of(sent[:1])])
    both = relayed(station).append(CHANNEL, [piece_of(sent)], durable=True)
    assert (both.appended, both.duplicates) == (1, 1)
    disk.fail("fdatasync", path=".jsonl")
    with pytest.raises(OutcomeUnknown):
        relayed(station).confirm(both)


def test_a_log_repaired_by_another_process_is_looked_at_again(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station, other = opened(disk=disk), opened()
    relayed(station).arrive(CHANNEL, lines(0, 5))
    written = relayed(station).append(CHANNEL, [piece_of(lines(5, 10))])
    disk.fail("fdatasync", path=".jsonl")
    with pytest.raises(OutcomeUnknown):
        station.publish(CHANNEL, "fails")
    disk.heal()
    verify(other, repair=True)
    for number in range(8):
        other.publish(CHANNEL, number)
    with pytest.raises(Outdated):
        relayed(station).confirm(written)
    assert relayed(station).arrive(CHANNEL, lines(0, 10)).appended == 5
    assert len(foreign(held(root))) == 10


def test_a_full_disk_is_an_error_and_nothing_is_doubled_afterwards(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    relayed(station).arrive(CHANNEL, lines(0, 5))
    for short in (None, 100, 3000):
        disk.fail("pwrite", errno.ENOSPC, path=".jsonl", short=short)
        disk.fail("pwrite", errno.ENOSPC, path=".jsonl", at=2)
        with pytest.raises(Exception, match="space"):
            relayed(station).arrive(CHANNEL, lines(5, 25))
        disk.heal()
    assert len(held(root)) == 5
    disk.fail("pwrite", errno.ENOSPC, path=".jsonl", short=3000)
    disk.fail("pwrite", errno.ENOSPC, path=".jsonl", at=2)
    disk.fail("ftruncate", path=".jsonl")
    with pytest.raises(OutcomeUnknown):
        relayed(station).arrive(CHANNEL, lines(5, 25))
    disk.heal()
    arrival = relayed(station).arrive(CHANNEL, lines(5, 25))
    assert arrival.duplicates > 0, "what could not be undone was kept"
    assert arrival.appended + arrival.duplicates == 20
    assert len(held(root)) == 25


def test_one_partition_fails_and_the_other_is_not_doubled(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.create_channel(CHANNEL, partitions=2)
    sent = [keyed(seq, f"key-{seq}") for seq in range(20)]
    disk.fail("pwrite", errno.ENOSPC, path="/1/0")
    with pytest.raises(Exception, match="space"):
        relayed(station).arrive(CHANNEL, sent)
    disk.heal()
    arrival = relayed(station).arrive(CHANNEL, sent)
    assert arrival.appended > 0
    assert arrival.duplicates > 0
    assert len(held(root)) == 20


def test_a_checkpoint_that_cannot_be_written_costs_no_arrival(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.limits.SEEN_SAVE_BYTES", 1000)
    disk = FaultyDisk()
    station = opened(disk=disk)
    disk.fail("rename", errno.ENOSPC, path="seen", times=100)
    for first in range(0, 50, 5):
        assert relayed(station).arrive(CHANNEL, lines(first, first + 5)).appended == 5
    assert not checkpoint(root).exists()
    disk.heal()
    relayed(station).arrive(CHANNEL, lines(50, 60))
    assert json.loads(checkpoint(root).read_bytes())["covered"] == [60]


def test_trimming_waits_until_what_was_seen_can_be_written_down(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk, segment_bytes=4096)
    station.create_channel(CHANNEL, retention_bytes=6000)
    for first in range(0, 100, 10):
        relayed(station).arrive(CHANNEL, lines(first, first + 10))
    disk.fail("rename", errno.ENOSPC, path="seen", times=100)
    with pytest.raises(Exception, match="space"):
        station.trim()
    assert station.channel(CHANNEL).first == 0
    disk.heal()
    assert station.trim()


# -- everything else that looks at lines ------------------------------------------------------------------------------


def test_lines_from_elsewhere_are_found_verified_and_exported(opened: Opener, root: Path, tmp_path: Path) -> None:
    station = opened(segment_bytes=4096)
    for first in range(0, 60, 10):
        marked = [line(seq, extra=b"", data=b'{"n":%d}' % seq) for seq in range(first, first + 10)]
        relayed(station).arrive(CHANNEL, marked)
        station.publish_many(CHANNEL, [first, first + 1])
    found = station.get(f"{HOST2}-0-37", channel=CHANNEL)
    assert found is not None
    assert found.data == {"n": 37}
    assert verify(station).ok
    with (tmp_path / "out.jsonl").open("wb") as out:
        export_messages(station, CHANNEL, out)
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 72


def test_a_batch_of_another_station_may_arrive_in_parts(opened: Opener, root: Path) -> None:
    """Its mark is about the offsets there: here half of it is no damage."""
    half = [sealed(line(seq)[:-18].replace(b',"origin"', b',"batch":"0/5","origin"', 1)) for seq in (0, 1, 2)]
    with opened() as station:
        relayed(station).arrive(CHANNEL, half)
        assert verify(station).ok
    (root / "channels" / CHANNEL / "0" / "head").unlink()
    station = opened()
    assert stored(root) == half
    assert verify(station).ok
    assert [message.offset for message in station.read(CHANNEL)] == [0, 1, 2]


def test_a_producer_of_another_station_does_not_use_up_our_numbers(opened: Opener, root: Path) -> None:
    station = opened()
    numbered = sealed(line(0)[:-18].replace(b',"origin"', b',"producer":"importer","producerseq":"1/17","origin"', 1))
    relayed(station).arrive(CHANNEL, [numbered])
    with station.producer("importer") as producer:
        receipt = producer.publish(CHANNEL, "first")
        assert not receipt.duplicate
    assert len(held(root)) == 2
    with station.producer("importer") as producer:
        assert producer.last(CHANNEL) == 1


def test_a_subscriber_hears_what_arrives(opened: Opener) -> None:
    station = opened(disk=QuickDisk())
    got: list[Any] = []
    station.subscribe(CHANNEL, lambda message: got.append((message.offset, message.origin)), name="s", start="first")
    relayed(station).arrive(CHANNEL, lines(0, 3))
    eventually(lambda: len(got) == 3)
    assert got == [(0, HOST2), (1, HOST2), (2, HOST2)]
