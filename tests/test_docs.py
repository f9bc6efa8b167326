"""Undocumented settings, commands and statistics fail here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import msgspec
import pytest

from heliograph import config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def text(path: str) -> str:
    file = ROOT / path
    assert file.is_file(), f"{path} is missing"
    return file.read_text("utf-8")


# -- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", config.describe(), ids=lambda setting: setting.key)
def test_every_setting_is_documented_with_its_default(setting: config.Setting) -> None:
    lines = [line for line in text("docs/configuration.md").splitlines() if f"`{setting.key}`" in line]
    assert lines, f"docs/configuration.md does not mention `{setting.key}`"
    shown = config.to_human(setting, setting.default)
    shown = "" if shown is None else str(shown).lower() if isinstance(shown, bool) else str(shown)
    assert any(shown in line for line in lines), f"`{setting.key}` is documented without its default, {shown}"


def test_no_document_names_a_setting_that_does_not_exist() -> None:
    known = {setting.key for setting in config.describe()}
    sections = {key.partition(".")[0] for key in known if "." in key}
    named = re.compile(rf"`((?:{'|'.join(sections)})\.[a-z_]+)`")
    for path in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        for key in named.findall(text(path.relative_to(ROOT).as_posix())):
            assert key in known or key == "audit.jsonl", f"{path.name} names {key}"


def test_the_documented_variables_exist() -> None:
    known = {setting.env for setting in config.describe()} | {config.ENV_FILE} | config.ENV_MESSAGE
    for path in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        for variable in re.findall(r"\bHELIOGRAPH_[A-Z_]*[A-Z]\b", text(path.relative_to(ROOT).as_posix())):
            assert variable in known, f"{path.name} names {variable}"


# -- commands -----------------------------------------------------------------------------------------------


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            if not inner.hidden:
                yield from commands(inner, f"{path} {name}")


def test_every_command_and_option_is_documented() -> None:
    from heliograph.cli.main import cli

    page = text("docs/cli.md")
    missing: list[str] = []
    for path, command in commands(cli, "helio"):
        if not re.search(rf"\b{re.escape(path)}\b", page):
            missing.append(path)
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                longest = max(option.opts, key=len)
                if not re.search(rf"(?<![\w-]){re.escape(longest)}(?![\w-])", page):
                    missing.append(f"{path} {longest}")
    assert not missing, f"docs/cli.md does not mention: {', '.join(missing)}"


def test_every_command_helps_with_an_example() -> None:
    from heliograph.cli.main import cli

    for path, command in commands(cli, "helio"):
        help_text = f"{command.help or ''}{command.epilog or ''}"
        assert help_text, f"{path} has no help"
        assert isinstance(command, click.Group) or "helio " in help_text, f"the help of {path} has no example"


# -- statistics ---------------------------------------------------------------------------------------------


def structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for inner in get_args(annotation):
        yield from structs(inner)


def fields(struct: type[msgspec.Struct], seen: set[type]) -> Iterator[tuple[str, str]]:
    seen.add(struct)
    hints = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        yield struct.__name__, field.name
        for inner in structs(hints[field.name]):
            if inner not in seen:
                yield from fields(inner, seen)


def test_every_statistic_is_documented() -> None:
    from heliograph import StationStats

    page = text("docs/operations.md")
    missing = [f"{owner}.{name}" for owner, name in fields(StationStats, set()) if f"`{name}`" not in page]
    assert not missing, f"docs/operations.md does not mention: {', '.join(missing)}"


# -- the documents themselves -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/start.md", "docs/concepts.md",
        "docs/format.md", "docs/protocol.md", "docs/configuration.md", "docs/cli.md", "docs/operations.md",
        "docs/federation.md",
    ],
)  # fmt: skip
def test_the_document_is_there(path: str) -> None:
    assert text(path).strip()


def test_the_readme_gives_the_two_commands() -> None:
    for command in ("make demo", "make test"):
        assert command in text("README.md")


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which is not there"


def test_every_make_target_is_listed_by_make_help() -> None:
    makefile = text("Makefile")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), f"make {target} has no description"


def test_the_changelog_knows_this_version() -> None:
    version = re.search(r'^version = "(.*)"$', text("pyproject.toml"), re.MULTILINE)
    assert version
    assert version[1] in text("CHANGELOG.md")
