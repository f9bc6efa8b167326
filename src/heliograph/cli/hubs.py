"""``--hub``: a command that works at a hub instead of a data directory, and the certificates for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from heliograph.cli.common import Common

if TYPE_CHECKING:
    from heliograph.client import Client

_F = TypeVar("_F", bound=Callable[..., Any])
_SAID: Final = "heliograph.hub"
_SILENT_S: Final = 1.0
"""How long a connection may take before it is said what is waited for."""
_FILES: Final = {"cert": "cert", "cert_key": "key", "ca": "ca", "crl": "crl"}


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None and option.name is not None:
        context.meta.setdefault(_SAID, {})[option.name] = value


def _option(name: str, help: str, metavar: str = "FILE") -> Callable[[_F], _F]:
    return click.option(name, metavar=metavar, help=help, expose_value=False, callback=_remember)


_OPTIONS: Final = (
    _option("--hub", "Do it at this hub, HOST:PORT, without a data directory.", "ADDRESS"),
    _option("--cert", "With --hub: the certificate to show.  [default: setting tls.cert]"),
    _option("--cert-key", "With --hub: the certificate's key.  [default: setting tls.key]"),
    _option("--ca", "With --hub: the CAs that are believed.  [default: setting tls.ca]"),
    _option("--crl", "With --hub: their revocation lists.  [default: as the settings tls say]"),
)


def hub_options(function: _F) -> _F:
    """Adds --hub and its certificates to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def hub_client(common: Common) -> Client | None:
    """The client of the hub that was named; None if none was."""
    said: dict[str, str] = click.get_current_context().meta.get(_SAID, {})
    address = said.get("hub")
    if address is None:
        if said:
            raise click.UsageError(f"--{next(iter(said)).replace('_', '-')} is for --hub, and no hub is named")
        return None
    from heliograph.client import connect
    from heliograph.client.awaited import TIMEOUT_S
    from heliograph.client.settings import files_of

    common.log()
    config = common.config()
    named = {_FILES[name]: value for name, value in said.items() if name in _FILES}
    said_then = f"waiting for the hub {address}, {TIMEOUT_S:.0f} s at most; Ctrl-C ends"
    waiting = threading.Timer(_SILENT_S, common.note, [said_then])
    waiting.daemon = True
    waiting.start()
    try:
        return connect(address, tls=files_of(config) | named, service=config.service, timeout=TIMEOUT_S)
    finally:
        waiting.cancel()
