"""A hub instead of a directory: what every task needs to find it and to be let in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.errors import ConfigError

if TYPE_CHECKING:
    from heliograph.client.client import Client
    from heliograph.client.inquirer import Inquirer

OPTIONS: Final = ("hub", "tlsCert", "tlsKey", "tlsCa", "tlsCrl")
TIMEOUT_S: Final = 30.0
"""How long a task, or whoever plans, waits for a hub that is not there, or is started again."""
_TLS: Final = {"tlsCert": "cert", "tlsKey": "key", "tlsCa": "ca", "tlsCrl": "crl"}


class Remote(NamedTuple):
    """A hub's address and the files of a certificate, which lie at the same place on every machine that runs tasks.

    No files: each machine takes those of its own configuration (HELIOGRAPH_CONFIG, HELIOGRAPH_TLS_…).
    """

    url: str
    tls: tuple[tuple[str, str], ...] = ()

    def connect(self, patience_s: float = 30.0) -> Client:
        """A client, for the driver or for one task. Close it, or use it as a context manager."""
        from heliograph.client import connect

        return connect(self.url, tls=dict(self.tls) or None, service="spark", timeout=patience_s)

    def inquire(self) -> Inquirer:
        """The same, for whoever brings requests of its own."""
        from heliograph.client.inquirer import Inquirer

        return Inquirer(self.url, dict(self.tls) or None, TIMEOUT_S)


def remote(said: Mapping[str, str]) -> Remote | None:
    """The hub that the options name; None if they name a directory.

    >>> remote({"hub": "wss://hub:7740", "tlsCert": "a.crt", "tlsKey": "a.key", "tlsCa": "ca.crt"}).url
    'wss://hub:7740'
    >>> remote({"hub": "wss://hub:7740", "path": "data"})
    Traceback (most recent call last):
    heliograph.errors.ConfigError: options 'path' and 'hub' are two places: leave out one
    """
    if "hub" not in said:
        for name in _TLS:
            if name in said:
                raise ConfigError(f"option '{name}' is for a hub: say option 'hub' as well, wss://HOST:PORT")
        return None
    if "path" in said:
        raise ConfigError("options 'path' and 'hub' are two places: leave out one")
    return Remote(said["hub"], tuple((name, said[option]) for option, name in _TLS.items() if option in said))
