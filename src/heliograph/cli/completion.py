"""``helio completion``: for bash, zsh and fish."""

from __future__ import annotations

import click

from heliograph.cli import output
from heliograph.cli.common import Common
from heliograph.cli.frame import command

SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    short_help="Print the script for the shell's completion.",
    examples="""
eval "$(helio completion bash)"                  # now, and in ~/.bashrc
eval "$(helio completion zsh)"                   # now, and in ~/.zshrc
helio completion fish > ~/.config/fish/completions/helio.fish
""",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and channel names.

    The examples say where it belongs.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "helio", "_HELIO_COMPLETE")
    text = script.source_template % script.source_vars()  # without running the shell to ask its version
    if ctx.ensure_object(Common).json:
        output.document({"shell": shell, "script": text})
    else:
        print(text)
