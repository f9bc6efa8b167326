"""``helio config``: show, validate, describe."""

from __future__ import annotations

from typing import Any

import click

from heliograph import config as configs
from heliograph.cli import exits, output
from heliograph.cli.common import Common, one_line
from heliograph.cli.frame import command, group


@group(
    "config",
    examples="""
helio config show
helio config validate /etc/heliograph.yaml
helio config describe storage.durability
""",
)
def config() -> None:
    """Settings: what applies here, and what there is to set."""


@command(
    "show",
    examples="""
helio config show                    # as a file that says the same
helio config show > heliograph.yaml  # a file to begin with
HELIOGRAPH_STORAGE_DURABILITY=interval helio config show --json
""",
)
@click.pass_obj
def show(common: Common) -> None:
    """Print the settings that apply: options, environment, file and defaults put together."""
    found = common.config()
    if common.json:
        output.document(found.to_dict())
        return
    import yaml

    print(yaml.safe_dump(found.to_dict(human=True), sort_keys=False, default_flow_style=False), end="")


@command(
    "validate",
    examples="""
helio config validate heliograph.yaml
helio config validate  # the file that --config or HELIOGRAPH_CONFIG names
""",
)
@click.argument("file", required=False)
@click.pass_obj
def validate(common: Common, file: str | None) -> int:
    """Check a configuration file together with the environment.

    Unknown and misspelt settings are errors, with a suggestion. Exit code 1 if anything is wrong.
    """
    from heliograph.errors import ConfigError, InvalidName
    from heliograph.names import check_name

    common.config_file = file or common.config_file
    try:
        name = common.config().name
        if name:
            check_name(name, "station")
    except (ConfigError, InvalidName) as error:
        if common.json:
            output.document({"valid": False, "error": str(error)})
        else:
            print(f"{common.config_file or 'the environment'}: not valid: {one_line(str(error))}")
        return exits.BAD
    if common.json:
        output.document({"valid": True, "error": None})
    elif not common.quiet:
        print(f"{common.config_file or 'the environment'}: valid")
    return exits.OK


@command(
    "describe",
    examples="""
helio config describe          # every setting
helio config describe storage  # one section
helio config describe storage.durability --json
""",
)
@click.argument("key", required=False)
@click.pass_obj
def describe(common: Common, key: str | None) -> None:
    """Explain settings: what each means, its default, and its environment variable."""
    from heliograph.errors import NotFound

    found = [
        setting for setting in configs.describe() if key is None or key in (setting.key, setting.key.partition(".")[0])
    ]
    if not found:
        raise NotFound(f"there is no setting {key!r}; 'helio config describe' lists them all")
    if common.json:
        output.document([
            {"key": one.key, "env": one.env, "keyword": one.keyword, "kind": one.kind.replace("`", ""),
             "default": one.default, "doc": one.doc}
            for one in found
        ])  # fmt: skip
        return
    for at, one in enumerate(found):
        print() if at else None
        _explain(one)


def human(setting: configs.Setting, value: Any) -> str:
    """A setting's value as a person would write it."""
    value = configs.to_human(setting, value)
    if value is None or isinstance(value, str):
        return value or ""
    return output.cell(value) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _explain(setting: configs.Setting) -> None:
    shown = human(setting, setting.default) or "unset"
    output.heading(setting.key)
    print(click.wrap_text(setting.doc.replace("`", ""), 80, "  ", "  "))
    print(f"  default {shown}; {setting.kind.replace('`', '')}; {setting.env}")


for _command in (show, validate, describe):
    config.add_command(_command)
