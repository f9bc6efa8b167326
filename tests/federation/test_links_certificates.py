"""Certificates that end or are revoked while links are up, on either side; and who is told before."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import heliograph as hg
from heliograph.admin.linkhealth import certificates_health
from heliograph.cli.main import cli
from tests.federation.stations import Net, audited, lines, payloads, up, wait_for

SECOND = 1 / 86_400


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    monkeypatch.setattr("heliograph.federation.service.CERTIFICATES_S", 1.0)
    monkeypatch.setattr("heliograph.federation.backoff.MAX_S", 2.0)
    return Net(tmp_path)


def helio(net: Net, name: str, *arguments: str) -> str:
    return CliRunner().invoke(cli, ["--config", str(net.directory / f"{name}.yaml"), *arguments]).output


def star(net: Net) -> None:
    net.station("hub", peers=[{"name": name, "publish": ["alerts"]} for name in ("host1", "host2")])
    for name in ("host1", "host2"):
        net.station(name, links=[{"hub": "hub", "publish": ["alerts"]}])


def test_a_peer_whose_certificate_ends_while_it_is_linked_is_sent_away_and_comes_back_renewed(net: Net) -> None:
    net.pki.issue("host1", "localhost", days=8 * SECOND)
    star(net)
    with net.open("hub") as hub, net.open("host1") as host1, net.open("host2") as host2:
        wait_for(lambda: up(hub, "host1") and up(hub, "host2"))
        left = {link.name: link.certificate_days_left for link in hub.links()}
        assert abs(left["host1"]) < 0.01 and left["host2"] > 300
        wait_for(lambda: not up(hub, "host1"))
        host1.publish("alerts", "kept until then")
        (gone,) = wait_for(lambda: [it for it in audited(net.path("hub"), "link-down") if it["peer"] == "host1"])
        assert "expired" in gone["why"]
        link = wait_for(lambda: host1.links()[0].state in ("refused", "waiting") and host1.links()[0])
        assert "expired" in link.error
        wait_for(lambda: "peers refuse this station 'host1'" in host1.links()[0].error)  # after the next attempt, too
        assert "expired" in host1.links()[0].error
        host2.publish("alerts", "still here")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["still here"])
        assert host2.links()[0].reconnects == 0

        (own, *_) = wait_for(lambda: [one for one in host1.stats().certificates if one.status == "bad"])
        assert (own.what, own.name) == ("certificate", "host1") and own.days_left <= 0
        assert certificates_health(host1).status == "bad"
        assert "host1.crt has expired" in helio(net, "host1", "links")
        assert "host1.crt has expired" in helio(net, "host1", "stats")
        assert "expired on" in helio(net, "host1", "doctor")

        net.pki.issue("host1", "localhost", force=True)
        wait_for(lambda: "kept until then" in payloads(net.path("hub"), "alerts"))
        wait_for(lambda: {one.status for one in host1.stats().certificates} == {"ok"})
        assert certificates_health(host1).status == "ok"


def test_a_hub_whose_certificate_ends_while_it_is_linked_is_left(net: Net) -> None:
    net.pki.issue("hub", "localhost", "127.0.0.1", days=8 * SECOND)
    star(net)
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub"))
        wait_for(lambda: not up(host1, "hub"))
        wait_for(lambda: "expired" in host1.links()[0].error)
        host1.publish("alerts", "kept until then")
        net.pki.issue("hub", "localhost", "127.0.0.1", force=True)
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["kept until then"])


def test_a_hub_that_was_revoked_is_left(net: Net) -> None:
    star(net)
    with net.open("hub") as hub, net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub") and up(hub, "host1"))
        net.pki.revoke("hub")
        wait_for(lambda: not up(host1, "hub"))
        wait_for(lambda: "revoked" in host1.links()[0].error)
        host1.publish("alerts", "not for that one")
        assert lines(net.path("hub"), "alerts") == []
        wait_for(lambda: any("revoked" in record["why"] for record in audited(net.path("host1"), "link-down")))


def test_what_ends_soon_is_said_while_everything_still_works(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    from tests.federation.pki import ago

    net.pki.issue("host1", "localhost", days=366, clock=ago(360))
    star(net)
    with net.open("hub") as hub, net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub") and up(hub, "host1"))
        (own,) = wait_for(lambda: [one for one in host1.stats().certificates if one.status == "warn"])
        assert own.what == "certificate" and 5 < own.days_left < 6.1
        assert certificates_health(host1).status == "warn"
        assert "host1.crt expires in 6 days" in helio(net, "host1", "links")
        assert "expires in 6" in helio(net, "host1", "stats")
        wait_for(lambda: "6 d" in helio(net, "hub", "links"))  # and the other side sees it
        assert any("expires in 6 days" in record.message for record in caplog.records)
    with hg.open(net.path("host1"), read_only=True) as host1:
        assert [one.status for one in host1.stats().certificates if one.what == "certificate"] == ["warn"]
