"""``helio doctor``: is this a good place for a station?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command

if TYPE_CHECKING:
    from heliograph.admin.doctor import Finding

_STYLES = {"ok": "green", "warn": "yellow", "bad": "red"}


@command(
    "doctor",
    short_help="Examine disk, clock, permissions, limits, versions.",
    examples="""
helio doctor
helio doctor --data /mnt/usb  # before you make a station there
helio doctor --json | jq '.findings[] | select(.status != "ok")'
""",
)
@click.pass_obj
def doctor(common: Common) -> int:
    """Examine the disk, the clock, permissions, limits and versions.

    The directory need not hold a station yet. Exit code 1 if anything is bad; warnings do not count.
    """
    from heliograph.admin import doctor as admin

    config = common.config()
    findings = admin.examine(config.storage.data_dir, config)
    bad = any(finding.status == "bad" for finding in findings)
    if common.json:
        output.document({"path": config.storage.data_dir, "ok": not bad, "findings": plain(findings)})
    else:
        shown = [finding for finding in findings if finding.status != "ok" or not common.quiet]
        if shown:
            output.table(["CHECK", "STATUS", "~FOUND"], [_row(finding) for finding in shown])
        advice = [(finding.name, finding.advice) for finding in shown if finding.advice]
        if advice:
            print()
            output.facts(advice)
    return exits.BAD if bad else exits.OK


def _row(finding: Finding) -> tuple[str, output.Mark, str]:
    return finding.name, output.Mark(finding.status, _STYLES[finding.status]), finding.value
