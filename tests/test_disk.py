"""The door to files: all or nothing, and errors that say what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from heliograph import disk as disks
from heliograph.disk import Disk, explain, explaining
from heliograph.errors import DiskFull, NotAllowed, ReadOnly, StorageError
from tests.faults import Died, FaultyDisk


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail("write", short=3, times=4)
    fd = disk.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    disk.write_all(fd, b"0123456789abcdefghij")
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123456789abcdefghij"


def test_a_range_is_read_whole_however_little_a_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stingy(Disk):
        @staticmethod
        def pread(fd: int, length: int, position: int, /) -> bytes:
            return os.pread(fd, min(length, 3), position)

    (tmp_path / "file").write_bytes(b"0123456789")
    assert Stingy().read_file(tmp_path / "file") == b"0123456789"
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    assert Stingy().read_range(fd, 100, 4) == b"456789"
    os.close(fd)


@pytest.mark.parametrize("kind", ["open", "write", "fdatasync", "rename", "sync_directory"])
def test_a_replaced_file_is_the_old_or_the_new_one_whatever_fails(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    disk = FaultyDisk()
    disk.fail(kind, errno.EIO)
    with pytest.raises(OSError):
        disk.replace_file(path, b"new")
    assert path.read_bytes() in (b"old", b"new")
    assert kind == "sync_directory" or path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"], "a temporary file was left behind"


def test_a_replaced_file_is_the_old_or_the_new_one_whenever_the_process_dies(tmp_path: Path) -> None:
    for number in range(1, 20):
        path = tmp_path / str(number)
        path.write_bytes(b"old")
        disk = FaultyDisk()
        disk.kill_at(number)
        try:
            disk.replace_file(path, b"new")
        except Died:
            disk.bury()
            assert path.read_bytes() in (b"old", b"new")
        else:
            assert path.read_bytes() == b"new"
            break
    assert number > 4


def test_a_replaced_file_is_synced_before_its_name_changes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.recording = True
    disk.replace_file(tmp_path / "file", b"new")
    kinds = [kind for kind, _ in disk.journal if kind in ("write", "fdatasync", "rename", "sync_directory")]
    assert kinds == ["write", "fdatasync", "rename", "sync_directory"]


def test_descriptors_are_not_inherited_by_other_programs(tmp_path: Path) -> None:
    fd = Disk().open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("!")
    doomed = tmp_path / "doomed"
    (doomed / "deep").mkdir(parents=True)
    (doomed / "deep" / "file").write_text("x")
    (doomed / "link").symlink_to(outside)
    Disk().remove_tree(doomed)
    assert not doomed.exists()
    assert (outside / "precious").exists()


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.ENOSPC, DiskFull, "Free space"),
        (errno.EDQUOT, DiskFull, "quota"),
        (errno.EROFS, ReadOnly, "read_only=True"),
        (errno.EACCES, ReadOnly, "owner and mode"),
        (errno.EMFILE, StorageError, "ulimit -n"),
        (errno.EIO, StorageError, "helio doctor"),
    ],
)
def test_an_error_says_what_happened_and_what_to_do(code: int, kind: type[Exception], advice: str) -> None:
    error = explain(OSError(code, os.strerror(code)), "cannot append to data/channels/alerts")
    assert type(error) is kind
    assert "cannot append to data/channels/alerts" in str(error)
    assert advice in str(error)


def test_explaining_leaves_our_own_errors_alone() -> None:
    with pytest.raises(NotAllowed, match=r"^the rules say no$"), explaining("cannot look"):
        raise NotAllowed("the rules say no")  # a PermissionError, too


def test_explaining_names_the_file_and_keeps_the_cause() -> None:
    with pytest.raises(StorageError, match=r"cannot look \(/nowhere/at/all\)") as caught, explaining("cannot look"):
        os.open("/nowhere/at/all", os.O_RDONLY)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_network_file_systems_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/with\\040space nfs4 rw 0 0\nserver:/y /mnt nfs rw 0 0\n"
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: mounts if str(self) == "/proc/mounts" else real(self, *a, **k)
    )
    (tmp_path / "with space" / "data").mkdir(parents=True)
    assert disks.file_system(tmp_path / "with space" / "data") == "nfs4"
    assert not disks.over_network(disks.file_system(tmp_path))
    assert disks.over_network(disks.file_system(Path("/mnt")))
    assert not disks.over_network(disks.file_system(Path("/mntx")))


def test_a_boot_has_an_id_and_a_machine_a_name() -> None:
    assert len(disks.boot_id()) == 16
    assert disks.boot_id() == disks.boot_id()
    assert disks.machine_id() == disks.machine_id()


@pytest.mark.parametrize("way", ["statx", "a look at /proc", "fstat"])
def test_a_file_that_lost_its_name_is_told_in_whichever_way_the_system_has(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "statx":
        monkeypatch.setattr(disks, "_statx", lambda: None)
    if way == "fstat":
        monkeypatch.setattr(os, "readlink", lambda _: os.stat("/nowhere"))
    disk, path = Disk(), tmp_path / "file"
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        assert disk.linked(fd)
        path.rename(tmp_path / "elsewhere")
        assert disk.linked(fd)
        (tmp_path / "elsewhere").unlink()
        assert not disk.linked(fd)
    finally:
        disk.close(fd)


def test_asking_for_names_of_what_is_no_file_any_more_is_an_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    os.close(fd)
    with pytest.raises(OSError, match="descriptor"):
        Disk().linked(fd)
