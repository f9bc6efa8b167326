"""Where a station's links come from: the configuration file, watched while they run, and the certificate."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.errors import ConfigError, HeliographError

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.config.sections import Tls
    from heliograph.federation.tlsfiles import TlsFiles
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")


class Source:
    """A file, and how to load it again; or none."""

    def __init__(self, source: tuple[Path, Callable[[], Config]] | None) -> None:
        self._source = source
        self._known = self._signature()

    def _signature(self) -> tuple[int, ...]:
        """Differs when the file was replaced or written to."""
        if self._source is None:
            return ()
        try:
            found = os.stat(self._source[0])
        except OSError:
            return (0,)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def changed(self) -> bool:
        """Whether it did since this was asked last."""
        before, self._known = self._known, self._signature()
        return before != self._known

    def load(self) -> Config | None:
        """What it says now; None, and a warning, if that cannot be used."""
        if self._source is None:
            return None
        try:
            return self._source[1]()
        except Exception as error:  # noqa: BLE001 - whatever somebody wrote there, links go on
            why = error if isinstance(error, HeliographError) else f"{type(error).__name__}: {error}"
            logger.warning("the new configuration is not used, the old one stays in use: %s", why)
            return None


class Fixed:
    """Settings that are not taken into use while links run. (The files that ``tls`` names are, when they change.)"""

    def __init__(self, listen: str, tls: Tls) -> None:
        self._used = {"hub.listen": listen, "tls": tls}
        self._told: list[str] = []

    def look(self, config: Config) -> None:
        """Say what has changed, once: whoever changed it would take it for done."""
        now = {"hub.listen": config.hub.listen, "tls": config.tls}
        told, self._told = self._told, [name for name, used in self._used.items() if now[name] != used]
        if self._told and told != self._told:
            logger.warning("%s changed; that counts after a restart, everything else now", " and ".join(self._told))


def tls_files(station: Station) -> TlsFiles:
    """The certificate that a station shows; ConfigError if it is another one's, or a package is missing."""
    try:
        from heliograph.federation.tlsfiles import TlsFiles
    except ImportError as error:
        raise ConfigError(f"links need {error.name}, which is missing: pip install 'heliograph[hub]'") from None
    tls = station.config.tls
    files = TlsFiles(tls.cert, tls.key, tls.ca, tls.crl or None, clock=station.engine.clock)
    if files.name != station.name:
        raise ConfigError(
            f"the certificate {tls.cert} is '{files.name}' and the station '{station.name}': they must have one name"
        )
    return files
