from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.harness import Helio, error_without, one_line_error

HOSTILE = ["..", "../x", "a/b", "/etc/x", "a\x00b", "", "x" * 201, "x" * 65, ".hidden", "naïve", "a\nb", "\x1b[31m"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_from_nothing_to_two_stations(helio: Helio, here: Path, data: Path) -> None:
    ca = document(helio("keygen", "ca", "--json"))
    assert (ca["name"], ca["cert"], ca["key"], ca["crl"]) == ("ca", "ca.crt", "ca.key", "ca.crl")
    assert round(ca["days_left"]) == 3650
    hub = document(helio("keygen", "instance", "hub", "--san", "hub.example", "--san", "10.0.0.7", "--json"))
    assert hub["names"] == ["hub", "hub.example", "10.0.0.7"]
    assert round(hub["days_left"]) == 365
    assert len(hub["fingerprint"].split(":")) == 32
    shown = helio("keygen", "instance", "host1", "--days", "7")
    assert shown.exit_code == 0
    assert "made the certificate of 'host1': host1.crt, host1.key" in shown.stdout
    assert "(7 days)" in shown.stdout
    assert sorted(path.name for path in here.iterdir()) == [
        "ca.crl", "ca.crt", "ca.history.jsonl", "ca.key", "host1.crt", "host1.key", "hub.crt", "hub.key",
    ]  # fmt: skip
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in here.glob("*.key"))
    assert not data.exists(), "certificates have nothing to do with a station's directory"


def test_the_fingerprint_is_the_one_openssl_prints(helio: Helio, here: Path) -> None:
    ca = document(helio("keygen", "ca", "--json"))
    try:
        command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-serial", "-in", "ca.crt"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("there is no openssl here")
    assert ca["fingerprint"] in said
    assert f"serial={ca['serial']}" in said


def test_nothing_is_overwritten_unasked(helio: Helio, here: Path) -> None:
    helio("keygen", "ca")
    helio("keygen", "instance", "host1")
    before = {path: path.read_bytes() for path in here.iterdir()}
    assert "--force" in one_line_error(helio("keygen", "ca"), 1)
    assert "--force" in one_line_error(helio("keygen", "instance", "host1"), 1)
    assert {path: path.read_bytes() for path in here.iterdir()} == before
    assert helio("keygen", "instance", "host1", "--force").exit_code == 0
    assert (here / "host1.key").read_bytes() != before[here / "host1.key"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize(
    "args", [["ca", "--", "NAME"], ["instance", "--", "NAME"], ["revoke", "--name", "NAME"]], ids=lambda args: args[0]
)
def test_a_hostile_name_is_refused_with_one_line(helio: Helio, here: Path, name: str, args: list[str]) -> None:
    helio("keygen", "ca")
    before = sorted(here.parent.rglob("*"))
    error = one_line_error(helio("keygen", *(name if arg == "NAME" else arg for arg in args)), 2)
    assert "\x1b" not in error
    assert sorted(here.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "san", ["naïve", "a b", "*.example", "https://hub", "hub:7740", "", "../x", "a\x00b"], ids=ascii
)
def test_an_impossible_address_is_refused_with_one_line(helio: Helio, here: Path, san: str) -> None:
    helio("keygen", "ca")
    assert "DNS name" in one_line_error(helio("keygen", "instance", "hub", "--san", san), 2)
    assert not (here / "hub.key").exists()


@pytest.mark.parametrize(
    ("args", "code", "hint"),
    [
        (["instance", "hub"], 3, "ca.crt"),
        (["renew", "hub.crt"], 3, "ca.crt"),
        (["revoke", "hub.crt"], 3, "ca.crt"),
        (["revoke"], 2, "--name"),
        (["revoke", "--serial", "xyz"], 2, "hexadecimal"),
        (["revoke", "--serial", "0"], 2, "hexadecimal"),
        (["inspect"], 2, "FILES"),
        (["inspect", "hub.crt"], 3, "hub.crt"),
        (["renew", "hub.crt", "--key", "x"], 2, "--new-key"),
        (["ca", "--days", "0"], 2, "--days"),
        (["ca", "--days", "99999999"], 2, "--days"),
        (["ca", "--out", "nowhere"], 3, "nowhere"),
        (["ca", "--passphrase-file", "nowhere"], 3, "nowhere"),
    ],
)
def test_wrong_use_is_one_line_that_helps(helio: Helio, here: Path, args: list[str], code: int, hint: str) -> None:
    assert hint in one_line_error(helio("keygen", *args), code)
    assert not list(here.iterdir())


def test_inspect_tells_everything_and_ends_with_1_if_something_is_wrong(helio: Helio, here: Path) -> None:
    helio("keygen", "ca")
    helio("keygen", "instance", "hub", "--san", "10.0.0.7")
    shown = helio("keygen", "inspect", "ca.crt", "hub.crt", "hub.key", "ca.crl")
    assert shown.exit_code == 0
    for text in ("certificate of 'hub'", "hub, 10.0.0.7", "365 days left", "fits hub.key", "yes (ca.crt)", "P-256"):
        assert text in shown.stdout, text
    serial = document(helio("keygen", "inspect", "hub.crt", "--json"))[0]["serial"]
    assert "revoked " + serial in helio("keygen", "revoke", "--serial", serial, "--reason", "superseded").stdout
    result = helio("keygen", "inspect", "hub.crt", "ca.crl")
    assert result.exit_code == 1
    assert "BAD: the certificate was revoked" in result.stdout
    assert f"  {serial}  " in result.stdout
    found = json.loads(helio("keygen", "inspect", "hub.crt", "ca.crl", "--json").stdout)
    assert [one["status"] for one in found] == ["bad", "ok"]
    assert found[1]["revoked"][0]["reason"] == "superseded"


def test_inspect_shows_a_hostile_name_and_does_not_send_it_to_the_terminal(helio: Helio, here: Path) -> None:
    from tests.federation.pki import Pki

    pki = Pki(here / "pki")
    path = pki.odd("odd", common_names=["\x1b[31mred\n"], names=["x"])
    result = helio("keygen", "inspect", path)
    assert result.exit_code == 1
    assert "\x1b" not in result.output


def test_renew_keeps_the_key_unless_a_new_one_is_wanted(helio: Helio, here: Path) -> None:
    helio("keygen", "ca")
    helio("keygen", "instance", "host1", "--san", "host1.example", "--days", "30")
    key, cert = here / "host1.key", here / "host1.crt"
    old_key, old_cert = key.read_bytes(), cert.read_bytes()
    renewed = document(helio("keygen", "renew", "host1.crt", "--json"))
    assert renewed["names"] == ["host1", "host1.example"]
    assert round(renewed["days_left"]) == 30
    assert renewed["key"] is None
    assert key.read_bytes() == old_key
    assert cert.read_bytes() != old_cert
    assert document(helio("keygen", "renew", "host1.crt", "--new-key", "--days", "9", "--json"))["key"] == "host1.key"
    assert key.read_bytes() != old_key
    assert helio("keygen", "inspect", "host1.crt").exit_code == 0


def test_revoke_by_file_name_and_again(helio: Helio, here: Path) -> None:
    helio("keygen", "ca")
    helio("keygen", "instance", "host1")
    helio("keygen", "instance", "host2")
    done = document(helio("keygen", "revoke", "host1.crt", "--json"))
    assert (done["number"], len(done["revoked"]), done["already"], done["total"]) == (2, 1, [], 1)
    (here / "host2.crt").unlink()
    assert document(helio("keygen", "revoke", "--name", "host2", "--name", "host1", "--json"))["total"] == 2
    assert "was revoked already" in helio("keygen", "revoke", "--name", "host2").stdout
    assert "knows no live certificate of 'host3'" in one_line_error(helio("keygen", "revoke", "--name", "host3"), 3)


def test_a_certificate_that_ends_with_its_ca_is_said_to(helio: Helio, here: Path) -> None:
    helio("keygen", "ca", "--days", "10")
    result = helio("keygen", "instance", "host1")
    assert "it ends with its CA" in result.stderr
    assert document(helio("keygen", "instance", "host2", "--json"))["shortened"] is True


def test_a_passphrase_from_a_file_and_from_stdin(helio: Helio, here: Path) -> None:
    (here / "secret").write_text("correct horse\n")
    helio("keygen", "ca", "--passphrase-file", "secret")
    assert "ENCRYPTED" in (here / "ca.key").read_text()
    assert helio("keygen", "instance", "a", "--passphrase-file", "secret").exit_code == 0
    assert helio("keygen", "instance", "b", "--passphrase-file", "-", input="correct horse\n").exit_code == 0
    assert "is wrong" in one_line_error(helio("keygen", "instance", "c", "--passphrase-file", "-", input="cow\n"), 1)
    assert "no passphrase in" in one_line_error(helio("keygen", "instance", "c", "--passphrase-file", "-", input=""), 2)
    assert "--passphrase-file" in one_line_error(helio("keygen", "instance", "c"), 2)
    assert "--passphrase-file" in one_line_error(helio("keygen", "ca", "other", "--encrypt"), 2)


def test_a_passphrase_is_bytes_of_any_kind(helio: Helio, here: Path) -> None:
    (here / "secret").write_bytes(b"caf\xe9 \xff\r\n")
    document(helio("keygen", "ca", "--passphrase-file", "secret", "--json"))
    document(helio("keygen", "instance", "a", "--passphrase-file", "secret", "--json"))
    document(helio("keygen", "instance", "b", "--passphrase-file", "-", "--json", input=b"caf\xe9 \xff\n"))


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(helio: Helio, here: Path) -> None:
    assert one_line_error(helio("keygen", "ca", "--out", "nowhere"), 3).startswith("error: nowhere/ca.key: ")
    helio("keygen", "ca")
    (here / "out" / "host1.key").mkdir(parents=True)
    result = helio("keygen", "instance", "host1", "--out", "out", "--force")
    assert one_line_error(result, result.exit_code).startswith("error: out/host1.key: ")


def test_on_a_terminal_the_passphrase_is_asked_for_and_not_shown(here: Path) -> None:
    def ask(*args: str, typed: list[str]) -> tuple[int, str]:
        parent, child = pty.openpty()
        command = [sys.executable, "-m", "heliograph.cli", "keygen", *args]
        process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, start_new_session=True)
        os.close(child)
        said = b""
        for line in typed:
            while not said.rstrip().endswith(b":") and process.poll() is None:
                said += os.read(parent, 1000)
            said += b"|"
            os.write(parent, line.encode() + b"\n")
        code = process.wait(60)
        os.set_blocking(parent, False)
        try:
            while more := os.read(parent, 10_000):
                said += more
        except OSError:
            pass
        os.close(parent)
        return code, said.decode()

    code, said = ask("ca", "--encrypt", typed=["horse", "horse"])
    assert code == 0, said
    assert "horse" not in said
    code, said = ask("instance", "host1", typed=["horse"])
    assert code == 0, said
    assert (here / "host1.crt").exists()


@pytest.mark.parametrize(
    "args", [["ca"], ["instance", "x"], ["inspect", "x"], ["renew", "x"], ["revoke", "x"]], ids=lambda args: args[0]
)
def test_without_the_extra_one_line_says_what_to_install(here: Path, args: list[str]) -> None:
    assert "pip install 'heliograph[hub]'" in error_without("cryptography", "keygen", *args)


def test_help_works_without_the_extra(helio: Helio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert "helio keygen instance" in helio("keygen", "--help").stdout


def test_files_and_choices_are_completed(here: Path) -> None:
    from click.shell_completion import ShellComplete

    from heliograph.cli.main import cli

    def complete(*words: str) -> list[tuple[str, str]]:
        found = ShellComplete(cli, {}, "helio", "_HELIO_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return [(item.type, item.value) for item in found]

    assert complete("keygen", "in") == [("plain", "inspect"), ("plain", "instance")]
    assert complete("keygen", "revoke", "--reason", "key") == [("plain", "key-compromise")]
    assert complete("keygen", "renew", "--new") == [("plain", "--new-key")]
    assert complete("keygen", "inspect", "ho") == [("file", "ho")]
    assert complete("keygen", "instance", "x", "--ca", "ho") == [("file", "ho")]
