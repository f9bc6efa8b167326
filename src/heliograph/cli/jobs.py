"""Pipelines as commands: their options become the command line's, one command for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from heliograph.cli.common import Common
from heliograph.cli.durations import duration
from heliograph.cli.frame import HelioCommand, HelioGroup
from heliograph.cli.names import CHANNELS
from heliograph.errors import ConfigError, HeliographError

if TYPE_CHECKING:
    from heliograph.spark.pipelines import Option, Pipeline

_TYPES: Final[dict[str, Any]] = {
    "text": str, "number": int, "decimal": float, "channel": CHANNELS, "duration": str, "size": str,
    "path": str,
}  # fmt: skip
_NAMES: Final = {
    "text": "TEXT", "number": "N", "decimal": "N", "channel": "CHANNEL", "duration": "TIME", "size": "BYTES",
    "path": "PATH",
}  # fmt: skip

ROWS: Final = 1000
"""How many rows of a table are printed, unless somebody says otherwise."""


def files(common: Common, given: Iterable[str]) -> list[str]:
    """The files of pipelines that were named, or are configured."""
    said = list(given)
    said += [one.strip() for one in common.config().pipelines.files.split(",") if one.strip()]
    return list(dict.fromkeys(said))


class PipelineName(click.types.StringParamType):
    """The name of a pipeline, completed by the shell."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The pipelines there are; whatever goes wrong, it is silent."""
        del param
        try:
            from heliograph.spark.pipelines.finding import declared

            names = list(declared(files(ctx.ensure_object(Common), ctx.params.get("file") or ())))
        except Exception:  # noqa: BLE001 - nobody could read an error
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


PIPELINE: Final = PipelineName()
file_option: Final = click.option(
    "--file", "-f", "file", multiple=True, metavar="FILE",
    help="A file (.py, .yaml, .toml) or module in which pipelines are declared. May be given several times.",
)  # fmt: skip


class Jobs(HelioGroup):
    """A command for every pipeline: the built-in ones, and those of ``--file``, before or after the name."""

    def __init__(
        self, *args: Any, make: Callable[[Pipeline], click.Command], procedures: bool = True, **attributes: Any
    ) -> None:
        self._make = make
        self._procedures = procedures
        self._builtin: dict[str, click.Command] | None = None
        super().__init__(*args, **attributes)

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        """The built-in ones."""
        if self._builtin is None:
            from heliograph.spark.pipelines.finding import builtin

            self._builtin = {name: self._make(one) for name, one in self._meant(builtin()).items()}
        return self._builtin

    @commands.setter
    def commands(self, _: Any) -> None:
        """They are looked for when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Those that can be named now."""
        return list(self._all(ctx, ctx.params.get("file") or ()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a pipeline."""
        found = self._all(ctx, ctx.params.get("file") or ()).get(cmd_name)
        return None if found is None else self._made(cmd_name, found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, when its file may be named only behind it."""
        from heliograph.spark.pipelines.finding import find

        given = [*(ctx.params.get("file") or ()), *_named(args)]
        found = find(args[0], files(ctx.ensure_object(Common), given))
        return args[0], self._made(args[0], found), args[1:]

    def _made(self, name: str, found: Pipeline) -> click.Command:
        return self.commands[name] if name in self.commands else self._make(found)

    def _all(self, ctx: click.Context, given: Iterable[str]) -> dict[str, Pipeline]:
        from heliograph.spark.pipelines.finding import builtin, declared

        try:
            return self._meant(declared(files(ctx.ensure_object(Common), given)))
        except (HeliographError, OSError):
            return self._meant(builtin())

    def _meant(self, found: dict[str, Pipeline]) -> dict[str, Pipeline]:
        return {name: one for name, one in found.items() if self._procedures or not one.procedural}


def _named(args: list[str]) -> list[str]:
    """What ``--file`` says among arguments that are not parsed yet."""
    found = [word.partition("=")[2] for word in args if word.startswith("--file=")]
    found += [word[2:] for word in args if word.startswith("-f") and len(word) > 2]  # -forders.py
    return found + [args[at + 1] for at, word in enumerate(args[:-1]) if word in {"--file", "-f"}]


def command_of(one: Pipeline, run: Callable[..., Any], further: Iterable[click.Parameter]) -> click.Command:
    """The command that runs a pipeline."""
    params = list(further)
    taken = {"help", *(param.name for param in params)}
    for option in one.options:
        if option.name in taken:
            raise ConfigError(
                f"pipeline '{one.name}' has an option '{option.name}', which means something else on the command line; "
                "choose another name"
            )
    examples = one.examples or f"helio pipeline run {one.name}"
    return HelioCommand(
        one.name, params=[*map(_option, one.options), *params], callback=click.pass_obj(run), help=one.help,
        epilog=examples, short_help=one.help.partition("\n")[0],
    )  # fmt: skip


def session_options() -> list[click.Parameter]:
    """Which Spark a pipeline runs in."""

    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, **attributes)

    return [
        option(
            "--file", "-f", "file", multiple=True, metavar="FILE", expose_value=False,
            help="The file (.py, .yaml, .toml) or module that declares it.",
        ),
        option("--master", metavar="URL", help="Where Spark runs: local[4], spark://HOST:7077, yarn, k8s://…"
                                               "  [default: local[*]]"),
        option("--remote", metavar="URL", help="A Spark Connect server: sc://HOST."),
        option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
    ]  # fmt: skip


def run_options(one: Pipeline) -> list[click.Parameter]:
    """How a pipeline is run."""
    found: list[click.Parameter] = [
        *session_options(),
        click.Option(
            ["--trigger"], metavar="WHEN",
            help=f"batch, once, available-now, or a time such as '10 seconds'.  [default: {one.trigger}]",
        ),
    ]  # fmt: skip
    if not one.procedural:
        found += [
            click.Option(
                ["--to", "target"], metavar="OUTPUT",
                help=f"table, console, channel:NAME, parquet:DIR, delta:DIR.  [default: {one.output}]",
            ),
            click.Option(
                ["--checkpoint"], metavar="DIR", help="Where a stream keeps its place.  [default: in the station's]"
            ),
            click.Option(["--reset"], is_flag=True, help="Set the checkpoint aside and begin anew."),
        ]  # fmt: skip
    if not limits(one):
        found.append(
            click.Option(
                ["--limit"], type=click.IntRange(min=1), default=ROWS, show_default=True, metavar="N",
                help="How many rows of a table are printed.",
            )
        )  # fmt: skip
    return found


def limits(one: Pipeline) -> bool:
    """Whether a procedure has an option of that name itself."""
    return one.procedural and any(option.name == "limit" for option in one.options)


def _option(one: Option) -> click.Option:
    names = [f"--{one.name.replace('_', '-')}", one.name]
    if one.kind == "flag":
        return click.Option(names, is_flag=True, default=bool(one.default), help=one.help)
    kind = click.Choice(one.choices) if one.choices else _TYPES[one.kind]
    callback = {"duration": _each(duration), "size": _each(_size)}.get(one.kind)
    return click.Option(
        names, type=kind, multiple=one.several, help=one.help, required=one.needed, callback=callback,
        default=str(one.default) if one.kind in {"size", "duration"} and one.default is not None else one.default,
        metavar=None if one.choices else _NAMES[one.kind],
    )  # fmt: skip


def _each(read: Callable[[click.Context, click.Parameter, str | None], Any]) -> Callable[..., Any]:
    def several(ctx: click.Context, param: click.Parameter, given: Any) -> Any:
        return tuple(read(ctx, param, one) for one in given) if isinstance(given, tuple) else read(ctx, param, given)

    return several


def _size(_: click.Context, __: click.Parameter, given: str | None) -> int | None:
    from heliograph.config.units import parse_size

    if given is None:
        return None
    try:
        return int(parse_size(given))
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is {error}") from None
