"""Where a client's certificates are: said by the caller, or taken from a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from heliograph import config as configs
from heliograph.config import Config
from heliograph.errors import ConfigError, InvalidArgument
from heliograph.federation.tlsfiles import TlsFiles

TlsLike = Mapping[str, str | os.PathLike[str]] | configs.Tls | Config | str | os.PathLike[str]
_MEMBERS = ("cert", "key", "ca", "crl")


def tls_files(tls: TlsLike | None) -> TlsFiles:
    """The files of a mapping, of a section ``tls``, of a configuration or its file; by default those of the default."""
    said = _said(tls)
    missing = [name for name in _MEMBERS[:3] if not said.get(name)]
    if missing:
        raise ConfigError(
            f"tls lacks {', '.join(missing)}: a client shows a certificate as every station does; "
            'say tls={"cert": …, "key": …, "ca": …}, or name a configuration that has a section tls'
        )
    return TlsFiles(said["cert"], said["key"], said["ca"], said.get("crl") or None)


def _said(tls: TlsLike | None) -> dict[str, str]:
    if isinstance(tls, Mapping):
        unknown = [name for name in tls if name not in _MEMBERS]
        if unknown:
            raise ConfigError(f"tls.{unknown[0]} is unknown here: use {', '.join(_MEMBERS)}")
        for name, path in tls.items():
            if not isinstance(path, str | os.PathLike):
                raise InvalidArgument(f"tls.{name} is {path!r}; use the path of a file")
        return {name: os.fspath(path) for name, path in tls.items()}
    if tls is None or isinstance(tls, str | os.PathLike):
        tls = configs.load(tls)
    if not isinstance(tls, Config | configs.Tls):
        raise InvalidArgument(
            f'tls is {tls!r}; use {{"cert": …, "key": …, "ca": …}}, or a configuration that has a section tls'
        )
    return files_of(tls)


def files_of(tls: Config | configs.Tls) -> dict[str, str]:
    """The files that a configuration names."""
    section = tls.tls if isinstance(tls, Config) else tls
    said = msgspec.structs.asdict(section)
    return {name: said[name] for name in _MEMBERS if said.get(name)}
