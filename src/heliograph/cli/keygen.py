"""``helio keygen``: the certificates that stations know one another by."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.durations import Number
from heliograph.cli.frame import Function, command, group
from heliograph.cli.names import STATION
from heliograph.limits import CERTIFICATE_DAYS_MAX

if TYPE_CHECKING:
    from heliograph.federation.authority import Authority, Made
    from heliograph.federation.inspection import Inspected

_MISSING = "helio keygen needs cryptography: pip install 'heliograph[hub]'"
_REASONS = ("unspecified", "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation")
_FILE = click.Path(path_type=Path)


def _authority_module() -> Any:
    try:
        from heliograph.federation import authority
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        raise click.ClickException(_MISSING) from None
    return authority


def _days(default: str) -> Callable[[Function], Function]:
    return click.option(
        "--days", type=Number(min=0, min_open=True, max=CERTIFICATE_DAYS_MAX), metavar="N",
        help=f"For how long it is valid.  [default: {default}]",
    )  # fmt: skip


ca_option = click.option(
    "--ca", type=_FILE, default=Path("ca.crt"), show_default=True, metavar="FILE", help="The CA's certificate."
)
ca_key_option = click.option(
    "--ca-key", type=_FILE, metavar="FILE", help="The CA's key.  [default: beside its certificate, ca.key]"
)
passphrase_option = click.option(
    "--passphrase-file", type=_FILE, metavar="FILE",
    help="The first line is the passphrase of the CA's key; '-' is stdin.  [default: ask, if it has one]",
)  # fmt: skip
out_option = click.option(
    "--out", type=_FILE, default=Path(), metavar="DIR", help="Where the files are written.  [default: here]"
)
force_option = click.option("--force", is_flag=True, help="Replace files that are there already.")


@group(
    "keygen",
    examples="""
helio keygen ca
helio keygen instance hub --san hub.example --san 10.0.0.7
helio keygen instance host1
helio keygen inspect hub.crt
""",
)
def keygen() -> None:
    """Certificates for stations that talk to one another.

    Make one CA, keep its key in a safe place, and let it sign a certificate for every station. Both ends of a link show
    theirs; a station is who its certificate says it is.
    """


# -- making -------------------------------------------------------------------------------------------------


@command(
    "ca",
    examples="""
helio keygen ca                          # ca.crt, ca.key, ca.crl
helio keygen ca ca-2027 --out /mnt/safe --encrypt
helio keygen ca --days 1825
""",
)
@click.argument("name", type=STATION, default="ca")
@_days("3650")
@out_option
@click.option("--encrypt", is_flag=True, help="Ask for a passphrase and encrypt the key with it.")
@passphrase_option
@force_option
@click.pass_obj
def ca(
    common: Common, name: str, days: float | None, out: Path, encrypt: bool, passphrase_file: Path | None, force: bool
) -> None:
    """Make a CA: the one that signs the certificates of your stations.

    Writes NAME.crt (its certificate, for every station), NAME.key (keep it safe: whoever has it can be any station)
    and NAME.crl (the list of what it revoked, empty for now).
    """
    authority = _authority_module()
    passphrase = _passphrase(passphrase_file)
    if encrypt and passphrase is None:
        passphrase = _ask_passphrase("a passphrase for the new key", confirm=True)
    made = authority.create_ca(out, name, days=days or 3650, passphrase=passphrase, force=force)
    _show_made(common, made, "made the CA")
    if not common.json and not common.quiet:
        print(f"keep {made.key} in a safe place: whoever has it can be any station")
        print(f"next: helio keygen instance host1 --ca {made.cert}")


@command(
    "instance",
    examples="""
helio keygen instance host1                # host1.crt and host1.key
helio keygen instance hub --san hub.example --san 10.0.0.7
helio keygen instance host2 --days 90 --out /etc/heliograph
""",
)
@click.argument("name", type=STATION)
@click.option(
    "--san", "names", multiple=True, metavar="NAME",
    help="A DNS name or IP address others dial it by. May be repeated. Its own name always is one.",
)  # fmt: skip
@_days("365, or until its CA ends")
@ca_option
@ca_key_option
@out_option
@passphrase_option
@force_option
@click.pass_obj
def instance(
    common: Common, name: str, names: tuple[str, ...], days: float | None, ca: Path, ca_key: Path | None, out: Path,
    passphrase_file: Path | None, force: bool,
) -> None:  # fmt: skip
    """Make a station's key and certificate.

    NAME is the station's name. A hub needs the names and addresses it is dialled by (--san); a station that only
    dials needs none. Take NAME.crt, NAME.key and the CA's certificate to the station, and nothing else.
    """
    made = _open_ca(ca, ca_key, passphrase_file).issue(out, name, names, days=days or 365, force=force)
    _show_made(common, made, "made the certificate of")


@command(
    "renew",
    examples="""
helio keygen renew host1.crt            # same name, same key, as long again
helio keygen renew host1.crt --new-key  # and a new host1.key
helio keygen renew host1.crt --ca ca-2027.crt --old-ca ca.crt
helio keygen renew ca.crt               # the CA itself, same key
""",
)
@click.argument("cert", type=_FILE)
@_days("as long as before")
@click.option("--new-key", is_flag=True, help="Make a new key, too.  [default: keep the old one]")
@click.option("--key", type=_FILE, metavar="FILE", help="Where the new key goes.  [default: beside CERT, NAME.key]")
@ca_option
@ca_key_option
@click.option("--old-ca", type=_FILE, metavar="FILE", help="The CA that signed CERT, if it was another one.")
@passphrase_option
@click.pass_obj
def renew(
    common: Common, cert: Path, days: float | None, new_key: bool, key: Path | None, ca: Path, ca_key: Path | None,
    old_ca: Path | None, passphrase_file: Path | None,
) -> None:  # fmt: skip
    """Renew a certificate: the same names, for longer.

    The file is replaced in one step, and a running station takes it into use by itself. Without --new-key the key
    is not needed, so it can stay on its station. Renewing the CA's own certificate leaves everything it signed good.
    """
    if key is not None and not new_key:
        raise click.UsageError("--key says where a new key goes: it goes with --new-key")
    where = (key or cert.with_suffix(".key")) if new_key else None
    made = _open_ca(ca, ca_key, passphrase_file).renew(cert, days=days, key=where, old_ca=old_ca)
    _show_made(common, made, "renewed the CA" if made.crl else "renewed the certificate of")


def _show_made(common: Common, made: Made, what: str) -> None:
    from datetime import UTC, datetime

    days = round((made.not_after - datetime.now(UTC)).total_seconds() / 86_400, 2)
    if common.json:
        output.document({**plain(made), "days_left": days})
        return
    if made.shortened:
        common.warn(f"it ends with its CA, on {output.moment(made.not_after, 'seconds')}: earlier than asked for")
    if common.quiet:
        return
    print(f"{what} '{made.name}': {', '.join(filter(None, [made.cert, made.key, made.crl]))}")
    output.facts(
        [
            ("names", ", ".join(made.names)),
            ("valid until", f"{output.moment(made.not_after, 'seconds')} ({days:.0f} days)"),
            ("serial", made.serial),
            ("SHA-256", made.fingerprint),
        ]
    )


# -- revoking -----------------------------------------------------------------------------------------------


@command(
    "revoke",
    examples="""
helio keygen revoke host2.crt --reason key-compromise
helio keygen revoke --name host2     # every live certificate of host2
helio keygen revoke --serial 5F3A09C1
""",
)
@click.argument("certs", nargs=-1, type=_FILE, metavar="[CERT]...")
@click.option(
    "--name", "names", multiple=True, type=STATION, metavar="NAME", help="All live certificates of a station."
)
@click.option("--serial", "serials", multiple=True, metavar="HEX", help="A certificate by its serial number.")
@click.option(
    "--reason", type=click.Choice(_REASONS), default="unspecified", metavar="WHY",
    help=f"It is said on the list: {', '.join(_REASONS)}.  [default: unspecified]",
)  # fmt: skip
@ca_option
@ca_key_option
@passphrase_option
@click.pass_obj
def revoke(
    common: Common, certs: tuple[Path, ...], names: tuple[str, ...], serials: tuple[str, ...], reason: str, ca: Path,
    ca_key: Path | None, passphrase_file: Path | None,
) -> None:  # fmt: skip
    """Revoke certificates: nobody who has the new list talks to them any more.

    The CA's list (ca.crl, beside its certificate) is signed anew. Copy it to every station: those that check it take
    it into use by themselves and end links to what is on it. With a certificate go all others of the same key. It
    cannot be undone; make a new certificate.
    """
    numbers = [_serial(text) for text in serials]
    if not (certs or names or numbers):
        raise click.UsageError("which certificate? Name a file, --name or --serial")
    authority = _open_ca(ca, ca_key, passphrase_file)
    numbers += [serial for cert in certs for serial in authority.serials_of_file(cert)]
    numbers += [serial for name in names for serial in authority.serials_of(name)]
    done = authority.revoke(numbers, reason)
    if common.json:
        output.document(plain(done))
    elif not common.quiet:
        for serial in done.revoked:
            print(f"revoked {serial}")
        for serial in done.already:
            print(f"{serial} was revoked already")
        print(f"{done.crl} is list number {done.number}, with {output.several(done.total, 'certificate')} on it")
        print("next: copy it to every station; those that check it take it into use by themselves")


def _serial(text: str) -> int:
    try:
        number = int(text.replace(":", ""), 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 160:
        raise click.BadParameter(f"{text!r} is no serial number in hexadecimal", param_hint="'--serial'")
    return number


# -- inspecting ---------------------------------------------------------------------------------------------


@command(
    "inspect",
    examples="""
helio keygen inspect host1.crt      # with host1.key and ca.crt beside it
helio keygen inspect *.crt *.key *.crl
helio keygen inspect host1.crt --ca bundle.crt --crl bundle.crl
helio keygen inspect ca.crl --json
""",
)
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--ca", type=_FILE, metavar="FILE", help="Did one of these CAs sign it?  [default: ca.crt beside it]")
@click.option("--crl", type=_FILE, metavar="FILE", help="Is it on this list?  [default: the list beside the CA]")
@click.option("--key", type=_FILE, metavar="FILE", help="Does this key fit?  [default: FILE.key beside it]")
@click.pass_obj
def inspect(common: Common, files: tuple[Path, ...], ca: Path | None, crl: Path | None, key: Path | None) -> int:
    """Show certificates, keys, bundles and revocation lists, and whether they fit.

    Names, validity and days left, serial, fingerprint; does the key fit, did the CA sign it, was it revoked. Exit code
    1 if something is wrong with one of them.
    """
    _authority_module()
    from heliograph.federation import inspection

    found = inspection.inspect(files, inspection.Beside(ca, crl, key))
    if common.json:
        output.document([plain(one) for one in found])
    else:
        for at, one in enumerate(found):
            if at:
                print()
            _show(one)
    return exits.BAD if any(one.status == "bad" for one in found) else exits.OK


_KINDS = {
    "ca": "CA certificate",
    "certificate": "certificate",
    "key": "private key",
    "crl": "revocation list",
    "unknown": "unusable",
}


def _show(one: Inspected) -> None:
    output.heading(f"{one.path}: {_KINDS[one.kind]}{f' of {one.name!r}' if one.name else ''}")
    left = f" ({one.days_left:.0f} days left)" if one.days_left is not None else ""
    fits = {True: f"fits {one.key_file}".strip(), False: "DOES NOT FIT", None: ""}[one.key_fits]
    if one.key_file and one.key_fits is None:
        fits = f"{one.key_file} is encrypted, so it was not compared"
    signed = {True: "yes", False: "NO", None: ""}[one.signed_by_ca]
    output.facts(
        [
            ("names", ", ".join(one.names)),
            ("signed by", one.issuer),
            ("serial", one.serial),
            ("number", one.number),
            ("valid from", one.not_before),
            ("valid until", f"{output.moment(one.not_after, 'seconds')}{left}" if one.not_after else ""),
            ("key", ", ".join(filter(None, [one.key_type, "encrypted" if one.encrypted else "", fits]))),
            ("signed by CA", f"{signed} ({one.ca_file})" if signed else ""),
            ("SHA-256", one.fingerprint),
            ("revoked", len(one.revoked) if one.kind == "crl" else None),
        ]
    )
    for entry in one.revoked:
        print(f"  {entry.serial}  {output.moment(entry.time, 'seconds')}  {entry.reason}")
    for note in one.notes:
        print(f"note: {output.cell(note)}")
    for trouble in one.troubles:
        print(f"BAD: {output.cell(trouble)}")


# -- the CA's key -------------------------------------------------------------------------------------------


def _open_ca(cert: Path, key: Path | None, passphrase_file: Path | None) -> Authority:
    module = _authority_module()
    passphrase = _passphrase(passphrase_file)
    if passphrase is None and module.key_is_encrypted(cert, key):
        passphrase = _ask_passphrase("the passphrase of the CA's key")
    opened: Authority = module.Authority(cert, key, passphrase=passphrase)
    return opened


def _passphrase(file: Path | None) -> bytes | None:
    if file is None:
        return None
    line = sys.stdin.buffer.readline() if str(file) == "-" else file.read_bytes().partition(b"\n")[0]
    passphrase = line.rstrip(b"\r\n")
    if not passphrase:
        raise click.UsageError(f"there is no passphrase in {file}")
    return passphrase


def _ask_passphrase(what: str, *, confirm: bool = False) -> bytes:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what} is needed and there is no terminal to ask on; use --passphrase-file")
    return str(click.prompt(what, hide_input=True, confirmation_prompt=confirm, err=True)).encode()


for _command in (ca, instance, inspect, renew, revoke):
    keygen.add_command(_command)
