"""How the links of a station are, and the TLS files that they need: for ``helio doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from heliograph.admin import linked
from heliograph.clock import from_us
from heliograph.config.units import MIB
from heliograph.errors import HeliographError
from heliograph.federation.lifetimes import Lifetime, Status

if TYPE_CHECKING:
    from heliograph.station import Station


class Health(NamedTuple):
    """How it is, and what to do."""

    status: Status
    value: str
    advice: str = ""


def links_health(station: Station) -> Health:
    """Links that are down, and what retention keeps for those that are away."""
    view = linked.look(station)
    if not view.links:
        return Health("ok", "none")
    value = f"{len(view.links)}, {sum(link.state == 'up' for link in view.links)} up"
    held = [link for link in view.links if link.held_bytes and link.state != "up"]
    if held:
        worst = max(held, key=lambda link: link.held_bytes)
        size = sum(link.held_bytes for link in held)
        advice = (
            f"{size / MIB:.1f} MiB are past their retention and kept for links that are away, most of it for "
            f"'{worst.name or worst.address}'. The disk may get full of it: see to that link, take it out of the "
            "configuration, or set storage.holdback_bytes."
        )
        return Health("warn", value, advice)
    down = [link.name or link.address for link in view.links if linked.is_down(link)]
    if down:
        return Health("warn", f"{value}; down: {', '.join(down)}", "'helio links' says why.")
    return Health("ok", value)


def certificates_health(station: Station) -> Health:
    """How long the files of ``tls`` are good."""
    tls = station.config.tls
    if not (tls.cert and tls.key and tls.ca):
        return Health("ok", "none")
    try:
        from heliograph.federation.tls import TlsPaths, load

        found = load(TlsPaths(Path(tls.cert), Path(tls.key), Path(tls.ca), Path(tls.crl) if tls.crl else None))
    except ImportError as error:
        return Health("warn", f"cannot be looked at: {error.name} is missing", "pip install 'heliograph[hub]'")
    except (HeliographError, OSError) as error:
        return Health("bad", str(error), "Links need them: 'helio keygen inspect' says what does not fit.")
    now = from_us(station.engine.clock.time_ns() // 1000)
    statuses = {one.status(now) for one in found.lifetimes}
    status: Status = "bad" if "bad" in statuses else "warn" if "warn" in statuses else "ok"
    first: Lifetime = min(found.lifetimes, key=lambda one: one.ends)
    if status == "ok":
        return Health("ok", f"'{found.name}', {first.days_left(now):.0f} days left")
    ending = [one for one in found.lifetimes if one.status(now) != "ok"]
    return Health(status, "; ".join(one.says(now) for one in ending), "'helio keygen renew', and copy it to its place.")
