"""Certificates in a temporary directory, good and bad, and handshakes over loopback."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from heliograph.clock import Clock
from heliograph.federation.authority import Authority, create_ca
from heliograph.federation.certificates import Key, Signer, make_ca, new_key
from heliograph.federation.tlsfiles import TlsFiles

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


class SetClock(Clock):
    """A wall clock that stands where it is put."""

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def time_ns(self) -> int:  # type: ignore[override]
        return round(self.now.timestamp() * 1_000_000) * 1000


def ago(days: float) -> Clock:
    """The real time, some days back."""
    return SetClock(datetime.now(UTC) - timedelta(days=days))


class Pki:
    """A CA and its stations in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.ca = directory / f"{name}.crt"
        self.crl = directory / f"{name}.crl"
        create_ca(directory, name)

    def authority(self, clock: Clock | None = None) -> Authority:
        return Authority(self.ca, clock=clock) if clock else Authority(self.ca)

    def issue(self, name: str, *names: str, days: float = 365, clock: Clock | None = None, force: bool = False) -> Path:
        return Path(self.authority(clock).issue(self.directory, name, names, days=days, force=force).cert)

    def files(self, name: str, *, ca: Path | None = None, crl: bool = True, **extra: Any) -> TlsFiles:
        cert = self.directory / f"{name}.crt"
        return TlsFiles(cert, cert.with_suffix(".key"), ca or self.ca, self.crl if crl else None, **extra)

    def revoke(self, name: str) -> None:
        authority = self.authority()
        authority.revoke(authority.serials_of(name))

    def odd(self, file: str, *, common_names: list[str], names: list[str]) -> Path:
        """A certificate that ``helio keygen`` would not make, signed by the right CA all the same."""
        key = new_key()
        signer = self.authority().signer
        write_key(self.directory / f"{file}.key", key)
        path = self.directory / f"{file}.crt"
        path.write_bytes(sign_odd(signer, key, common_names, names).public_bytes(Encoding.PEM))
        return path


def sign_odd(signer: Signer, key: Key, common_names: list[str], names: list[str]) -> x509.Certificate:
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(signer.certificate.subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=10))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
    return builder.sign(signer.key, SHA256())


def write_key(path: Path, key: Any) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)


def old_ca(directory: Path, name: str, *, days: float, made: datetime) -> Path:
    """A CA as it was made some time ago, with the files of one that is."""
    create_ca(directory, name)
    signer = make_ca(name, days=days, now=made)
    path = directory / f"{name}.crt"
    path.write_bytes(signer.certificate.public_bytes(Encoding.PEM))
    write_key(path.with_suffix(".key"), signer.key)
    path.with_suffix(".crl").unlink()
    Authority(path, clock=SetClock(made)).revoke([])
    return path


def lapse(signer: Signer, path: Path) -> None:
    """Replace a CA's revocation list by one that has expired."""
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(signer.certificate.subject)
    builder = builder.last_update(now - timedelta(days=9)).next_update(now - timedelta(days=2))
    path.write_bytes(builder.sign(signer.key, SHA256()).public_bytes(Encoding.PEM))


# -- handshakes ---------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What both ends met: None is a handshake and an exchange of bytes that went well."""

    server: BaseException | None
    client: BaseException | None
    server_peer: bytes | None
    client_peer: bytes | None

    @property
    def ok(self) -> bool:
        return self.server is None and self.client is None


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost") -> Outcome:
    """A handshake over loopback, and a byte each way: in TLS 1.3 a client hears of its refusal only then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        found: dict[str, Any] = {}

        def serve() -> None:
            raw, _ = listener.accept()
            found["server"], found["server_peer"] = _talk(server, raw, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        raw = socket.create_connection(listener.getsockname(), timeout=20)
        client_error, client_peer = _talk(client, raw, server_hostname=name)
        thread.join()
    return Outcome(found["server"], client_error, found["server_peer"], client_peer)


def _talk(context: ssl.SSLContext, raw: socket.socket, **options: Any) -> tuple[BaseException | None, bytes | None]:
    raw.settimeout(20)
    try:
        with context.wrap_socket(raw, **options) as connection:
            peer = connection.getpeercert(True)
            if "server_side" in options:
                connection.sendall(b"x")
            if not connection.recv(1):  # a client that writes first may lose the alert that says why it is refused
                return ConnectionError("closed without a word"), peer
            if "server_side" not in options:
                connection.sendall(b"x")
            return None, peer
    except OSError as error:
        return error, None
    finally:
        raw.close()


class Live:
    """A connection that stays up between a server of its own and a client."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            found: list[ssl.SSLSocket] = []
            accept = threading.Thread(
                target=lambda: found.append(server.wrap_socket(listener.accept()[0], server_side=True)), daemon=True
            )
            accept.start()
            self.client = client.wrap_socket(
                socket.create_connection(listener.getsockname(), timeout=20), server_hostname=name
            )
            accept.join()
        self.server = found[0]
        self.server.settimeout(20)

    def works(self) -> bool:
        self.client.sendall(b"ping")
        self.server.sendall(self.server.recv(4))
        return self.client.recv(4) == b"ping"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.client.close()
        self.server.close()


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
