"""What is told of an error: not where the station is."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.errors import Damaged, NotFound, StorageError
from heliograph.federation.discreet import discreet


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("there is no channel 'x' in /srv/hub", "there is no channel 'x' in DATA"),
        ("cannot read '/srv/hub/station.json': gone", "cannot read 'DATA/station.json': gone"),
        ("/srv/hub2 and /mnt/srv/hub are others", "/srv/hub2 and /mnt/srv/hub are others"),
        ("cannot open /srv/hub. See /srv/hub.old", "cannot open DATA. See /srv/hub.old"),
    ],
)
def test_the_data_directory_is_called_data(text: str, told: str) -> None:
    assert discreet(Damaged(text), Path("/srv/hub")) == told


def test_a_relative_directory_is_hidden_and_the_word_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = NotFound(f"no data in data/channels/a, that is {tmp_path}/data/channels/a")
    assert discreet(error, Path("data")) == "no data in DATA/channels/a, that is DATA/channels/a"
    assert discreet(NotFound("a.b. is no name."), Path(".")) == "a.b. is no name."


def test_where_a_link_leads_to_is_hidden_too(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    error = StorageError(f"{tmp_path}/link/a and {tmp_path}/real/a")
    assert discreet(error, tmp_path / "link") == "DATA/a and DATA/a"


def test_files_elsewhere_are_left_out() -> None:
    error = StorageError("cannot copy (/mnt/other/file): no space left")
    error.__cause__ = OSError(28, "no space left", "/mnt/other/file")
    assert discreet(error, Path("/srv/hub")) == "cannot copy ((a file of the hub)): no space left"
