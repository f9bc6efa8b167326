"""Trust agrees with OpenSSL: whom a handshake accepts stays, whom it refuses would be found."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from heliograph.federation.authority import load_one
from heliograph.federation.certificates import Signer, issue, make_ca, make_crl, new_key
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.federation.trust import Trust
from tests.federation.pki import NOW, Pki, shake, write_key


def test_a_ca_of_the_same_name_is_not_the_same_ca() -> None:
    real, false = make_ca("ca", days=10, now=NOW), make_ca("ca", days=10, now=NOW)
    forged = issue(false, "host1", [], new_key().public_key(), days=1, now=NOW)
    assert "none of the CAs" in (Trust([real.certificate]).why_invalid(forged, NOW) or "")
    copied = issue(Signer(real.certificate, new_key()), "host1", [], new_key().public_key(), days=1, now=NOW)
    assert copied.issuer == real.certificate.subject
    assert "none of the CAs" in (Trust([real.certificate]).why_invalid(copied, NOW) or "")


def test_a_list_forged_in_the_name_of_the_ca_revokes_nothing() -> None:
    real = make_ca("ca", days=10, now=NOW)
    false = Signer(real.certificate, new_key())
    certificate = issue(real, "host1", [], new_key().public_key(), days=1, now=NOW)
    from heliograph.federation.certificates import Revoked

    forged = make_crl(false, [Revoked(certificate.serial_number, NOW, "superseded")], number=9, now=NOW)
    good = make_crl(real, [], number=1, now=NOW)
    assert Trust([real.certificate], [good, forged]).why_invalid(certificate, NOW) is None
    assert "no revocation list" in (Trust([real.certificate], [forged]).why_invalid(certificate, NOW) or "")


def test_a_renewed_ca_beside_its_old_self_is_enough() -> None:
    from heliograph.federation.certificates import renew_ca

    old = make_ca("ca", days=10, now=NOW)
    certificate = issue(old, "host1", [], new_key().public_key(), days=9, now=NOW)
    late = NOW + timedelta(days=8)
    new = renew_ca(old, days=100, now=late)
    after = Trust([old.certificate, new])
    assert after.why_invalid(certificate, late) is None
    young = issue(Signer(new, old.key), "host1", [], new_key().public_key(), days=50, now=late)
    beyond = NOW + timedelta(days=20)
    assert after.why_invalid(young, beyond) is None
    assert "its CA 'ca' expired" in (Trust([old.certificate]).why_invalid(young, beyond) or "")


def test_a_chain_of_cas_in_the_bundle_is_followed(tmp_path: Path) -> None:
    """Certificates from elsewhere: a root, and below it the CA that signs stations."""
    now = datetime.now(UTC)
    root_key, middle_key, leaf_key = new_key(), new_key(), new_key()

    def ca(name: str, key: object, issuer: str, issuer_key: object) -> x509.Certificate:
        from cryptography.x509.oid import NameOID

        def names(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        builder = x509.CertificateBuilder(names(issuer), names(name), key.public_key(), 5)  # type: ignore[attr-defined]
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
        builder = builder.add_extension(x509.BasicConstraints(True, None), True)
        return builder.sign(issuer_key, SHA256())  # type: ignore[arg-type]

    root = ca("root", root_key, "root", root_key)
    middle = ca("middle", middle_key, "root", root_key)
    leaf = issue(
        Signer(middle, middle_key), "host1", [x509.DNSName("localhost")], leaf_key.public_key(), days=5, now=now
    )
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(middle.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM))
    (tmp_path / "host1.crt").write_bytes(leaf.public_bytes(Encoding.PEM))
    write_key(tmp_path / "host1.key", leaf_key)
    files = TlsFiles(tmp_path / "host1.crt", tmp_path / "host1.key", bundle)
    outcome = shake(files.server_context, files.client_context)
    assert outcome.ok
    assert files.still_valid(outcome.server_peer or b"")
    assert "signed by none of the CAs" in (Trust([middle]).why_invalid(leaf, now) or "")


def test_a_handshake_and_a_later_look_agree(pki: Pki, tmp_path: Path) -> None:
    hub = pki.files("hub")
    pki.issue("early", clock=_ahead(3))
    pki.issue("late", days=1, clock=_ahead(-2))
    pki.issue("good")
    pki.issue("gone")
    pki.revoke("gone")
    other = Pki(tmp_path / "other", "other")
    other.issue("stranger")
    hub.reload()
    for directory, name in [(pki.directory, n) for n in ("early", "late", "good", "gone")] + [
        (other.directory, "stranger")
    ]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(pki.ca)
        context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
        der = load_one(directory / f"{name}.crt", "certificate").public_bytes(Encoding.DER)
        assert shake(hub.server_context, context).ok == hub.still_valid(der) == (name == "good"), name


def _ahead(days: float) -> object:
    from tests.federation.pki import SetClock

    return SetClock(datetime.now(UTC) + timedelta(days=days))
