"""What the sections ``hub``, ``links`` and ``tls`` have to say together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from heliograph.config.sections import Hub, Link, Peer, Tls
from heliograph.errors import ConfigError, InvalidName
from heliograph.names import check_name
from heliograph.patterns import Pattern, is_pattern

_LISTEN: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):([0-9]{1,5})")
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def check(hub: Hub, links: Iterable[Link], tls: Tls) -> None:
    """Raise ConfigError, naming the setting, if something cannot work."""
    links = list(links)
    if hub.listen and not _port(_LISTEN, hub.listen):
        raise ConfigError(f"hub.listen = {hub.listen!r}: write HOST:PORT, or :PORT for every address")
    for at, peer in enumerate(hub.peers):
        _check_peer(peer, f"hub.peers[{at}]")
    _check_once("hub.peers", "name", [peer.name for peer in hub.peers])
    for at, link in enumerate(links):
        _check_link(link, f"links[{at}]")
    _check_once("links", "hub", [link.hub for link in links])
    unset = [f"tls.{name}" for name in ("cert", "key", "ca") if not getattr(tls, name)]
    if (hub.listen or links) and unset:
        who = "hub.listen needs" if hub.listen else "links need"
        raise ConfigError(f"{who} {', '.join(unset)}: `helio keygen` makes a CA, keys and certificates")


def _check_peer(peer: Peer, where: str) -> None:
    _check_names([peer.name], f"{where}.name", "station", patterns=False)
    _check_names(peer.relay, f"{where}.relay", "station")
    for name in ("publish", "subscribe", "reply"):
        _check_names(getattr(peer, name), f"{where}.{name}")


def _check_link(link: Link, where: str) -> None:
    if not is_address(link.hub):
        raise ConfigError(f"{where}.hub = {link.hub!r}: write HOST:PORT, as in hub.example:7740")
    for name in ("publish", "subscribe", "sync"):
        _check_names(getattr(link, name), f"{where}.{name}")
    if not is_start(link.start):
        raise ConfigError(f"{where}.start = {link.start!r}: write first, new, or a time as 2026-11-15T20:30:00Z")


def _check_names(texts: Iterable[str], where: str, what: str = "channel", *, patterns: bool = True) -> None:
    for text in texts:
        try:
            if patterns and is_pattern(text):
                Pattern(text)
            else:
                check_name(text, what)
        except InvalidName as error:
            raise ConfigError(f"{where}: {error}") from error


def _check_once(where: str, what: str, said: list[str]) -> None:
    twice = [text for text, count in Counter(said).items() if count > 1]
    if twice:
        raise ConfigError(f"{where}: {what} {twice[0]!r} is there twice; write it once, with everything it may do")


def is_address(text: str) -> bool:
    """Whether a hub may be there.

    >>> is_address("hub.example:7740"), is_address("hub.example"), is_address("hub.example:77400")
    (True, False, False)
    """
    return _port(_ADDRESS, text)


def _port(form: re.Pattern[str], text: str) -> bool:
    match = form.fullmatch(text)
    return match is not None and int(match[1]) <= 65_535


def is_start(text: str) -> bool:
    """Whether a link can start with it, here or as a peer says it.

    >>> is_start("new"), is_start("2026-11-15T20:30:00Z"), is_start("2026-11-15T20:30"), is_start("tomorrow")
    (True, True, False, False)
    """
    try:
        return text in ("first", "new") or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
