"""``helio serve``: a station with its hub and links, in the foreground."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click

from heliograph.cli import output
from heliograph.cli.common import Common, describe, station_in
from heliograph.cli.frame import command
from heliograph.cli.logs import Lines
from heliograph.cli.signals import Stop
from heliograph.errors import HeliographError

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.federation.service import Federation
    from heliograph.federation.tls import TlsMaterial
    from heliograph.station import Station

_LOOK_S: Final = 0.25
"""How soon a signal or the end of the links is noticed."""
_EXTRA: Final = ("picows", "cryptography")
_NOTHING: Final = (
    'nothing to serve: neither hub.listen nor links are set. Put hub: {listen: ":7740", peers: [{name: host1, '
    'publish: [alerts]}]}, or links: [{hub: "hub.example:7740", publish: [alerts]}], and tls: {cert: …, key: …, '
    "ca: …} into heliograph.yaml and say --config heliograph.yaml"
)


@command(
    "serve",
    short_help="Run a station with its hub and links.",
    examples="""
helio serve --config heliograph.yaml
helio serve --config heliograph.yaml --json >> serve.jsonl
kill -HUP 4711                    # its process: new certificates, new rules

# heliograph.yaml of a station that sends alerts to a hub and gets commands:
name: host1
storage: {data_dir: /var/lib/heliograph}
links:
  - {hub: "hub.example:7740", publish: [alerts], subscribe: [commands.host1]}
tls: {cert: host1.crt, key: host1.key, ca: ca.crt, crl: ca.crl}

# heliograph.yaml of that hub; a peer may do nothing that is not said here:
name: hub
storage: {data_dir: /var/lib/heliograph}
hub:
  listen: ":7740"
  peers: [{name: host1, publish: [alerts], subscribe: [commands.host1]}]
tls: {cert: hub.crt, key: hub.key, ca: ca.crt, crl: ca.crl}
""",
)
@click.pass_obj
def serve(common: Common) -> int:
    """Run the hub and the links of a station, until Ctrl-C or SIGTERM.

    Applications on this host open the same directory meanwhile, to publish and to subscribe; 'helio links' shows how
    the links are. Where an application runs the links itself (hg.open does, if they are configured), this one stands
    by and takes over when that ends.

    Prints a line for each event; with --json as JSON. SIGHUP reads certificates and the configuration again: links,
    peers and what they may do change without dropping those that stay. Exit code 0 after SIGTERM, 130 after Ctrl-C.
    """
    with _hangups() as hangups:  # first: whoever changes something may say so at any time
        return _serve(common, hangups)


def _serve(common: Common, hangups: SimpleQueue[int]) -> int:
    config = common.config()
    if not (config.hub.listen or config.links):
        there = "; there is a heliograph.yaml here" if common.config_file is None and _here() else ""
        raise click.UsageError(_NOTHING + there)
    federation_of = _federation_class()
    certificate = _certificate(config)
    log = Lines(json=common.json, verbose=common.verbose)
    common.log_to(log, logging.WARNING if common.quiet else logging.INFO)
    old = station_in(config)
    if config.name is not None and not old:
        _check_name(config.name, config, certificate)  # before it is made: a station keeps its name for ever
    named: dict[str, Any] = {} if config.name is not None or old else {"name": certificate.name}
    with Stop() as stop, common.open(create=True, announce=False, **named) as station:
        _check_name(station.name, config, certificate)
        _check_port(station)
        _introduce(common, log, station, certificate)
        federation = federation_of(station, _source(common))
        federation.start()
        _wait(common, log, federation, stop, hangups)
        if not common.quiet:
            log.say("ending; what is not acknowledged is sent later")
        station.close()
    if log.error is not None:
        raise log.error
    return stop.exit_code


# -- before -------------------------------------------------------------------------------------------------


def _here() -> bool:
    return Path("heliograph.yaml").exists()


def _federation_class() -> type[Federation]:
    from heliograph.federation.service import Federation

    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise click.ClickException(f"helio serve needs {name}: pip install 'heliograph[hub]'") from None
    return Federation


def _certificate(config: Config) -> TlsMaterial:
    """The certificate and all that belongs to it; or one line that says what is missing."""
    from heliograph.federation.tls import TlsPaths, load

    tls = config.tls
    return load(TlsPaths(Path(tls.cert), Path(tls.key), Path(tls.ca), Path(tls.crl) if tls.crl else None))


def _check_name(name: str, config: Config, certificate: TlsMaterial) -> None:
    from heliograph.errors import WrongStation

    if certificate.name != name:
        raise WrongStation(
            f"the certificate {config.tls.cert} is of '{certificate.name}', but the station is '{name}': make one "
            f"with 'helio keygen instance {name}'"
        )


def _check_port(station: Station) -> None:
    """A port that somebody else has would only be tried again and again; whoever is at the keyboard wants to know."""
    from heliograph.federation import sockets
    from heliograph.station import links

    listen = station.config.hub.listen
    if listen and not links.running(station.path, station.engine.disk):
        sockets.listen(listen).close()


def _introduce(common: Common, log: Lines, station: Station, certificate: TlsMaterial) -> None:
    """What it is, in a few lines."""
    from heliograph.clock import from_us

    config = station.config
    left = certificate.lifetimes[0].days_left(from_us(station.engine.clock.time_ns() // 1000))
    if common.json:
        log.say(
            "serving", station=station.name, path=str(station.path), listen=config.hub.listen or None,
            peers=[peer.name for peer in config.hub.peers], links=[link.hub for link in config.links],
            certificate_days_left=round(left, 2),
        )  # fmt: skip
    elif not common.quiet:
        ends = "has expired" if left < 0 else f"{output.several(round(left), 'day')} left"
        output.facts([
            ("station", f"{station.name} in {station.path}"), ("certificate", f"{config.tls.cert}, {ends}"),
            *([("hub", f"listens on {config.hub.listen}")] if config.hub.listen else []),
            *[(f"  peer {one.name}", _rules(one)) for one in config.hub.peers],
            *[(f"link {one.hub}", _rules(one)) for one in config.links],
        ])  # fmt: skip
        output.flush()


def _rules(one: Any) -> str:
    said = [
        f"{word} {' '.join(names)}"
        for word in ("publish", "subscribe", "sync", "relay")
        if (names := getattr(one, word, ()))
    ]
    return "; ".join(said) or "may do nothing"


def _source(common: Common) -> tuple[Path, Callable[[], Config]] | None:
    """The configuration file, which is watched, and how to read it again."""
    from heliograph.config import ENV_FILE

    file = common.config_file or os.environ.get(ENV_FILE)
    return (Path(file), common.config) if file else None


# -- meanwhile ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _hangups() -> Iterator[SimpleQueue[int]]:
    """Where SIGHUP is noted, which otherwise would end the process. A queue of this kind may be used by a handler."""
    asked: SimpleQueue[int] = SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGHUP, lambda number, _: asked.put(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGHUP, before)


def _wait(common: Common, log: Lines, federation: Federation, stop: Stop, hangups: SimpleQueue[int]) -> None:
    """Until somebody asks for the end, or nobody reads what is printed any more."""
    standing_by = False
    while not stop.signal and log.error is None:
        time.sleep(_LOOK_S)
        if federation.ended:
            raise HeliographError("the links ended; what was logged before says why")
        while not hangups.empty():
            hangups.get()
            _reload(common, log, federation)
        if standing_by is federation.running:
            standing_by = not standing_by
            log.say("standing by: another process runs the links" if standing_by else "this process runs the links")


def _reload(common: Common, log: Lines, federation: Federation) -> None:
    """New rules and certificates; if something is wrong with them, the old ones stay."""
    try:
        config = common.config()
        _certificate(config)
    except (HeliographError, OSError) as error:
        log.say(f"nothing was reloaded, everything stays as it was: {describe(error)}", level="error")
        return
    federation.reload(config)
