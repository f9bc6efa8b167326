"""Writes those parts of the documents that the code knows better: ``python docs/generate.py``.

A part stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``. ``--check`` only says whether something is out of
step, which ``tests/test_generated.py`` does on every run.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from heliograph import config, errors
from heliograph.cli.frame import COMMON, without_range
from heliograph.cli.main import cli
from heliograph.config import items
from heliograph.delivery import statistics
from heliograph.station import info, links, stats

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "latest.json"

SECTIONS = {
    "": "The station",
    "storage": "`storage`: where and how logs are kept",
    "messages": "`messages`: what may be published",
    "publishing": "`publishing`: how publishers wait",
    "subscribers": "`subscribers`: how handlers are called",
    "audit": "`audit`: the file that says who did what",
    "pipelines": "`pipelines`: what `helio pipeline` knows besides the built-in ones",
    "hub": "`hub`: letting other stations connect to this one",
    "tls": "`tls`: who this station is to others, and whom it believes",
}
ITEMS = {
    "links": "`links`: each hub that this station connects to",
    "hub.peers": "`hub.peers`: each station that may connect",
}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    titles = list(header)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- settings -----------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting, by section."""
    parts = []
    for section, title in SECTIONS.items():
        rows = [_setting(one) for one in config.describe() if one.key.rpartition(".")[0] == section]
        parts.append(f"### {title}\n\n{table(('setting', 'default', 'values', ''), rows)}")
    for key, title in ITEMS.items():
        (one,) = (one for one in config.describe() if one.key == key)
        item = items.item_of(one.annotation)
        assert item is not None
        rows = [_field(*field) for field in items.fields(item)]
        parts.append(f"### {title}\n\n{table(('setting', 'default', ''), rows)}")
    return "\n\n".join(parts)


def _setting(one: config.Setting) -> tuple[str, str, str, str]:
    default = config.to_human(one, one.default)
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    shown = "(none)" if one.default in (None, "") else f"`{shown}`"
    also = f" In arguments: `{one.keyword}`." if one.keyword != one.key.rpartition(".")[2] else ""
    return f"`{one.key}`", shown, _values(one), one.doc + also


def _field(name: str, annotation: Any, default: Any) -> tuple[str, str, str]:
    if default is msgspec.NODEFAULT:
        shown = "(needed)"
    else:
        shown = (
            f"`{str(default).lower() if isinstance(default, bool) else list(default) if default == () else default}`"
        )
    return f"`{name}`", shown, annotation.__metadata__[0].description


def _values(one: config.Setting) -> str:
    meta = one.annotation.__metadata__[0]
    low, high = meta.ge, meta.le
    kind = one.kind
    if kind == "duration":
        kind = f"duration ({one.key.rpartition('_')[2]})"
    limits = [text for text, limit in ((f"≥ {low}", low), (f"≤ {_size(one, high)}", high)) if limit is not None]
    return ", ".join([kind, *limits])


def _size(one: config.Setting, limit: Any) -> Any:
    return config.to_human(one, limit) if limit is not None and one.kind in ("size", "duration") else limit


# -- statistics ---------------------------------------------------------------------------------------------

PLAIN = {  # fields whose names say it all have no docstring
    "name": "The station's name.",
    "path": "Its directory.",
    "channel": "Its channel.",
    "partition": "Its number.",
    "count": "How many samples.",
    "mean_ms": "Their mean, in milliseconds.",
    "p50_ms": "Half of them were no slower.",
    "p90_ms": "Nine of ten were no slower.",
    "p99_ms": "99 of 100 were no slower.",
    "max_ms": "The slowest.",
}


def statistics_of(cls: type[msgspec.Struct]) -> Callable[[], str]:
    """The fields of a struct with their docstrings, which are found in its source."""

    def make() -> str:
        body = ast.parse(inspect.getsource(cls)).body[0]
        assert isinstance(body, ast.ClassDef)
        docs: dict[str, str] = {}
        for node, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                said = after.value.value if isinstance(after, ast.Expr) and _is_text(after.value) else None
                docs[node.target.id] = str(said or PLAIN[node.target.id]).replace("``", "`")
        names = [field.name for field in msgspec.structs.fields(cls)]
        return table(("field", ""), ((f"`{name}`", docs[name]) for name in names))

    return make


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# -- errors -------------------------------------------------------------------------------------------------


def tree_of_errors() -> str:
    """As it is drawn in errors.py."""
    drawn = (errors.__doc__ or "").partition("::\n\n")[2]
    return f"```\n{textwrap.dedent(drawn).strip()}\n```"


# -- commands -----------------------------------------------------------------------------------------------


def commands(command: click.Command | None = None, path: str = "helio") -> str:
    """Every command of ``helio``: how it is called, what it does, its options, examples."""
    command = command or cli
    parts = []
    if command is not cli:
        depth = "###" if isinstance(command, click.Group) or path.count(" ") == 1 else "####"
        parts.append(f"{depth} {path}\n\n{_paragraphs(command)}")
        if not isinstance(command, click.Group):
            parts += _usage(command, path)
    if isinstance(command, click.Group):
        parts += [commands(inner, f"{path} {name}") for name, inner in command.commands.items()]
    return "\n\n".join(parts)


def _paragraphs(command: click.Command) -> str:
    found = [" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    return "\n\n".join(found)


def _usage(command: click.Command, path: str) -> list[str]:
    ctx = click.Context(command, info_name=path)
    parts = [f"```\n{path} {' '.join(command.collect_usage_pieces(ctx))}\n```"]
    own = [option for option in command.params if isinstance(option, click.Option) and option.name not in COMMON]
    records = [option.get_help_record(ctx) for option in own]
    rows = [
        (f"`{names}`".replace("|", "\\|"), without_range(said).replace("|", "\\|"))
        for names, said in filter(None, records)
    ]
    if rows:
        parts.append(table(("option", ""), rows))
    return [*parts, f"```sh\n{(command.epilog or '').strip()}\n```"]


# -- numbers ------------------------------------------------------------------------------------------------


def numbers() -> str | None:
    """What the last whole run of the benchmark measured; None where there was none."""
    if not RESULTS.exists():
        return None
    found = json.loads(RESULTS.read_text("utf-8"))
    machine = found["machine"]
    about = (
        f"Measured on {found['when'][:10]} by `make bench`: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['system']}, {machine['python']}."
    )
    rows = [
        (
            row["subject"],
            row["what"],
            _number(row.get("raw")),
            _number(row["ours"]),
            row["unit"],
            _number(row.get("ratio")),
        )
        for row in found["rows"]
    ]
    return f"{about}\n\n{table(('subject', 'what', 'raw limit', 'Heliograph', 'unit', 'ratio'), rows)}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# -- writing ------------------------------------------------------------------------------------------------

PARTS: dict[str, dict[str, Callable[[], str | None]]] = {
    "docs/configuration.md": {"settings": settings},
    "docs/cli.md": {"commands": commands},
    "docs/api.md": {"errors": tree_of_errors},
    "docs/operations.md": {
        "station statistics": statistics_of(stats.StationStats),
        "channel statistics": statistics_of(stats.ChannelStats),
        "partition statistics": statistics_of(stats.PartitionStats),
        "subscription statistics": statistics_of(statistics.SubscriptionStats),
        "queue statistics": statistics_of(info.QueueInfo),
        "worker statistics": statistics_of(info.WorkerInfo),
        "lease statistics": statistics_of(info.LeaseInfo),
        "latency statistics": statistics_of(statistics.LatencyStats),
        "certificate statistics": statistics_of(links.LifetimeInfo),
    },
    "README.md": {"numbers": numbers},
}


def fill(text: str, name: str, content: str) -> str:
    """The text with the part of that name replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    filled, count = pattern.subn(lambda match: f"{match[1]}{content.strip()}\n{match[2]}", text)
    if count != 1:
        raise SystemExit(f"the part {name!r} must be there once, not {count} times")
    return filled


def documents(*, measured: bool) -> dict[Path, str]:
    """Every document with its parts filled in; ``measured`` includes what differs from machine to machine."""
    filled = {}
    for path, parts in PARTS.items():
        text = (ROOT / path).read_text("utf-8")
        for name, make in parts.items():
            content = make() if measured or make is not numbers else None
            if content is not None:
                text = fill(text, name, content)
        filled[ROOT / path] = text
    return filled


def main(arguments: list[str]) -> int:
    """Write, or check."""
    check = "--check" in arguments
    changed = [(path, text) for path, text in documents(measured=not check).items() if text != path.read_text("utf-8")]
    for path, text in changed:
        sys.stdout.write(f"{path.relative_to(ROOT)} {'is out of step' if check else 'written'}\n")
        if not check:
            path.write_text(text, "utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
