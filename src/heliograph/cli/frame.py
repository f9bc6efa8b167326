"""The frame every command stands in: common options, help with examples, one line for every failure."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, one_line, report
from heliograph.cli.signals import Terminated, raising

Function = Callable[..., Any]


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Common), param.name, value)


def _common_options() -> list[click.Parameter]:
    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, **attributes)

    return [
        option(
            "-d", "--data", "data", metavar="DIR",
            help="The station's directory.  [default: ./data; setting storage.data_dir]",
        ),
        option("-c", "--config", "config_file", metavar="FILE", help="A configuration file, YAML or TOML."),
        option("--json", "json", is_flag=True, help="Print JSON: one document, or one line for each message."),
        option("-q", "--quiet", "quiet", is_flag=True, help="Print results and errors only."),
        option("-v", "--verbose", "verbose", is_flag=True, help="Print what happens, and tracebacks."),
    ]  # fmt: skip


COMMON = frozenset(option.name for option in _common_options())


@contextlib.contextmanager
def _of(ctx: click.Context) -> Iterator[None]:
    """An option that lacks its value is an error of this command: click does not say of which, nor what is lacking."""
    try:
        yield
    except click.BadOptionUsage as error:
        name, text = error.option_name, error.message
        for option in ctx.command.params:
            record = option.get_help_record(ctx) if isinstance(option, click.Option) and name in option.opts else None
            if record is not None and "requires an argument" in text:
                value = re.sub(r"^(?:-\S+ +)+", "", record[0])  # behind its names
                text = f"option '{name}' needs a value: {name} {value}"
        raise click.BadOptionUsage(name, text, ctx) from error


class HelioCommand(click.Command):
    """A command that takes the common options, too, and shows examples."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["params"] = [*(attributes.get("params") or []), *_common_options()]
        super().__init__(*args, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Errors name the command."""
        with _of(ctx):
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Only its own: the common ones would fill every screen."""
        _write_options(self, ctx, formatter)

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they were written, not wrapped."""
        _write_examples(self, formatter)


class HelioGroup(click.Group):
    """A group of commands."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **attributes: Any):
        attributes["params"] = [*(attributes.get("params") or []), *_common_options()]
        super().__init__(*args, **attributes)
        self.sections = sections

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As a command's."""
        with _of(ctx):
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first, they are what one looks for."""
        for title, names in (self.sections or {"Commands": list(self.commands)}).items():
            commands = [self.commands[name] for name in names]
            width = formatter.width - 6 - max([len(name) for name in self.commands], default=0)
            with formatter.section(title):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(width)) for command in commands],
                    col_spacing=2,
                )
        _write_options(self, ctx, formatter)

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """As a command's."""
        _write_examples(self, formatter)


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    root = ctx.parent is None
    found = [
        record
        for option in command.get_params(ctx)
        if isinstance(option, click.Option)
        and (root or option.name not in COMMON)
        and (record := option.get_help_record(ctx))
    ]
    with formatter.section("Options"):
        formatter.write_dl([(names, without_range(text)) for names, text in found])
    if not root:
        formatter.write_paragraph()
        formatter.write_text("Also --data, --config, --json, --quiet, --verbose: see 'helio --help'.")


def without_range(text: str) -> str:
    """The help says what a number means; that it must not be negative goes without saying.

    >>> without_range("End after N messages.  [x>=1]"), without_range("At once.  [default: 1; 1<=x<=9]")
    ('End after N messages.', 'At once.  [default: 1]')
    """
    text = re.sub(r"\s*\[[\d.<=]*x[\d.<>=]*\]", "", text)
    return re.sub(r"; [\d.<=]*x[\d.<>=]*\]", "]", text)


def _write_examples(command: click.Command, formatter: click.HelpFormatter) -> None:
    if command.epilog:
        with formatter.section("Examples"):
            for line in command.epilog.strip("\n").splitlines():
                formatter.write(f"  {line}\n" if line else "\n")


class Root(HelioGroup):
    """``helio`` itself: whatever happens below ends as an exit code and at most one line."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line and exit."""
        output.prepare()
        common = Common()
        extra |= {"standalone_mode": False, "obj": common}
        extra["prog_name"] = "helio"
        try:
            code = self._run(*args, **extra)
            output.flush()  # what was printed before there was a command: help, the version
        except BrokenPipeError:
            output.discard()
            code = exits.OUTPUT_CLOSED
        except OSError as error:
            output.discard()
            report(common, error, "cannot print: ")
            code = exits.STORAGE
        finally:
            common.close()
        sys.exit(code)

    def _run(self, *args: Any, **extra: Any) -> int:
        try:
            result = super().main(*args, **extra)
        except click.UsageError as error:
            _show_usage(error)
            return exits.USAGE
        except click.ClickException as error:
            _complain(error.format_message())
            return exits.BAD
        except click.Abort:
            return exits.INTERRUPTED
        except SystemExit:  # how click ends when nobody reads its help
            return exits.OUTPUT_CLOSED
        return result if isinstance(result, int) else exits.OK

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors become what they mean to a shell."""
        common = ctx.ensure_object(Common)
        try:
            with raising():
                result = super().invoke(ctx)
                output.flush()
                return result
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            output.discard_if_broken()
            return exits.INTERRUPTED
        except Terminated:
            return exits.TERMINATED
        except BrokenPipeError:
            output.discard()
            return exits.OUTPUT_CLOSED
        except Exception as error:  # noqa: BLE001 - the end of the line: it becomes one line and a code
            report(common, error, "cannot print: " if output.discard_if_broken() else "")
            return exits.code_of(error)


def _show_usage(error: click.UsageError) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":  # newer versions of click say so with an error
        print(error.format_message())
        return
    path = error.ctx.command_path if error.ctx is not None else "helio"
    _complain(f"{error.format_message().rstrip('.')} (see '{path} --help')")


def _complain(text: str) -> None:
    text = re.sub(r"\s*\n\s*", " ", text)  # click sets out a choice in lines
    print(f"error: {one_line(text[:1].lower() + text[1:])}", file=sys.stderr, flush=True)


def command(name: str, *, examples: str, **attributes: Any) -> Callable[[Function], HelioCommand]:
    """A command; its function may return an exit code."""
    return click.command(name, cls=HelioCommand, epilog=examples, **attributes)


def group(name: str, *, examples: str, **attributes: Any) -> Callable[[Function], HelioGroup]:
    """A group of commands."""
    return click.group(name, cls=HelioGroup, epilog=examples, **attributes)
