"""What a pipeline is: its name, its options, what it reads, a function over DataFrames, and where the result goes.

Nothing here needs Spark: pipelines are listed and explained on machines that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from heliograph.config import units
from heliograph.errors import ConfigError
from heliograph.names import check_name

Kind: TypeAlias = Literal["text", "number", "decimal", "flag", "channel", "duration", "size", "path"]
OutputKind: TypeAlias = Literal["table", "console", "channel", "parquet", "delta"]
Mode: TypeAlias = Literal["append", "update", "complete"]

BATCH: Final = "batch"
ONCE: Final = "once"
AVAILABLE: Final = "available-now"
FILES: Final = ("parquet", "delta")


class Option(msgspec.Struct, frozen=True):
    """Something that whoever runs a pipeline may say: ``--start -1h`` on the command line, ``start`` in the function.

    ``kind`` says what is accepted and what the function gets: ``text``, ``channel`` and ``path`` a str, ``number`` an
    int, ``decimal`` a float, ``flag`` a bool, ``duration`` seconds as a float, ``size`` bytes as an int. With
    ``several`` it may be given more than once, and the function gets a tuple.
    """

    name: str
    help: str
    kind: Kind = "text"
    default: Any = None
    needed: bool = False
    several: bool = False
    choices: tuple[str, ...] = ()
    fixed: bool = False
    """Whether what a stream has counted so far depends on it: it stays as it is under a checkpoint."""


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table that a pipeline reads: channels (one, several ``a,b``, a pattern), with options of the source."""

    channel: str
    options: dict[str, str] = {}
    """As in ``spark.read.option(…)``: startingOffsets, includeArchive, payloadType, hub …"""
    schema: str | None = None
    """The columns that are wanted; fewer are read faster."""
    station: str | None = None
    """Another station's directory; by default the one that the pipeline runs for."""


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the rows go.

    ``table`` is printed, or told as JSON, when all is read; ``console`` prints every micro-batch; ``channel``,
    ``parquet`` and ``delta`` keep them, and ``to`` says where: a channel or a directory.
    """

    kind: OutputKind = "table"
    to: str = ""
    mode: Mode = "append"
    partition_by: tuple[str, ...] = ()
    options: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.kind} {self.to}".strip()


Inputs: TypeAlias = Mapping[str, Input] | Callable[..., Mapping[str, Input]]


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A declared pipeline. Made by :func:`pipeline`, :func:`procedure` or from a file."""

    name: str
    help: str
    function: Callable[..., Any]
    inputs: Inputs = {}
    output: Output = Output()
    options: tuple[Option, ...] = ()
    trigger: str = BATCH
    sql: str | None = None
    examples: str = ""
    procedural: bool = False
    """Whether the function does everything by itself, given a Run."""

    def reads(self, options: Mapping[str, Any]) -> Mapping[str, Input]:
        """Its inputs, when it is run with these options."""
        return self.inputs(**options) if callable(self.inputs) else self.inputs

    def defaults(self) -> dict[str, Any]:
        """Its options, as they are when nobody says anything."""
        return {one.name: _default(one) for one in self.options}


def _default(one: Option) -> Any:
    if one.default is not None:
        return one.default
    return () if one.several else False if one.kind == "flag" else None


def pipeline(
    name: str,
    *,
    inputs: Inputs,
    output: Output | None = None,
    options: tuple[Option, ...] = (),
    trigger: str | None = None,
    examples: str = "",
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a function from DataFrames to a DataFrame, or to several by name, as a pipeline.

    It is called with its inputs and its options by name. Its docstring is the help.

    >>> @pipeline("large", inputs={"orders": Input("orders")}, output=Output("channel", "orders.large"))
    ... def large(orders):
    ...     '''Orders that somebody should look at.'''
    ...     return orders.where("get_json_object(data, '$.total') > 1000")
    >>> large.name, large.trigger, large.help
    ('large', 'available-now', 'Orders that somebody should look at.')
    """
    chosen = output or Output()

    def declare(function: Callable[..., Any]) -> Pipeline:
        return checked(
            Pipeline(
                name=name, help=_help(name, function), function=function, inputs=inputs, output=chosen,
                options=options, trigger=trigger or (BATCH if chosen.kind == "table" else AVAILABLE),
                examples=examples,
            )
        )  # fmt: skip

    return declare


def procedure(
    name: str, *, options: tuple[Option, ...] = (), trigger: str = BATCH, examples: str = ""
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a function that does everything by itself: it is given a Run, and its options by name."""

    def declare(function: Callable[..., Any]) -> Pipeline:
        return checked(
            Pipeline(
                name=name, help=_help(name, function), function=function, options=options, trigger=trigger,
                examples=examples, procedural=True,
            )
        )  # fmt: skip

    return declare


def _help(name: str, function: Callable[..., Any]) -> str:
    import inspect

    text = inspect.getdoc(function)
    if not text:
        raise ConfigError(f"pipeline '{name}' says nothing about itself: give its function a docstring")
    return text


def checked(one: Pipeline) -> Pipeline:
    """The pipeline, if everything that it says can be meant."""
    check_name(one.name, "pipeline")
    check_trigger(one.trigger)
    if one.output.kind in {"channel", *FILES} and not one.output.to:
        raise ConfigError(f"pipeline '{one.name}': output {one.output.kind} goes nowhere; say to: where")
    if one.output.kind == "table" and one.trigger != BATCH and not one.procedural:
        raise ConfigError(
            f"pipeline '{one.name}': a table is printed when all is read, so its trigger is '{BATCH}'. A stream "
            "writes to a channel, parquet, delta or console"
        )
    check_mode(one.name, one.output, one.trigger)
    named = [option.name for option in one.options]
    odd = [name for name in named if not name.isidentifier()]
    if odd:  # it is an argument of the function, or a parameter of the statement
        close = "".join(letter if letter.isalnum() else "_" for letter in odd[0])
        raise ConfigError(
            f"pipeline '{one.name}': option '{odd[0]}' cannot be called so: use letters, digits and '_', as in "
            f"'{close if close.isidentifier() else '…'}' (the command line has '-' for '_')"
        )
    twice = {name for name in named if named.count(name) > 1}
    twice |= set() if callable(one.inputs) else {name for name in one.inputs if name in named}
    if twice:
        raise ConfigError(f"pipeline '{one.name}': {min(twice)!r} is there twice among inputs and options")
    return one


def check_mode(name: str, output: Output, trigger: str) -> None:
    """Refuse a stream of changed rows for files, which would keep those from before beside them."""
    if output.kind in FILES and output.mode == "update" and trigger != BATCH:
        raise ConfigError(
            f"pipeline '{name}': mode update writes rows again that have changed, and {output} would hold the old ones "
            "beside them. Say mode: append, with a watermark, to write each when it does not change any more; or mode: "
            "complete, for delta, to write all of them every time; or write to a channel, whose readers take the last"
        )


def check_trigger(text: str) -> str:
    """A trigger: ``batch``, ``once``, ``available-now``, or the time between two micro-batches.

    >>> check_trigger("10 seconds"), check_trigger("available-now")
    ('10 seconds', 'available-now')
    """
    if text not in {BATCH, ONCE, AVAILABLE}:
        interval_s(text)
    return text


def interval_s(text: str) -> float:
    """The seconds of a trigger such as ``10 seconds``, ``500ms``, ``1 minute``."""
    short = text.strip().lower()
    for unit in ("milliseconds", "millisecond", "seconds", "second", "minutes", "minute", "hours", "hour"):
        if short.endswith(unit):
            short = short.removesuffix(unit) + ("ms" if unit.startswith("milli") else unit[0])
            break
    try:
        seconds = float(units.parse_duration(short, "s"))
    except ValueError:
        raise ConfigError(
            f"trigger {text!r} is not understood: use {BATCH}, {ONCE}, {AVAILABLE} or a time such as '10 seconds'"
        ) from None
    if seconds <= 0:
        raise ConfigError(f"trigger {text!r}: the time between two micro-batches is more than nothing")
    return seconds


def output_of(text: str) -> Output:
    """An output as it is said on the command line: ``table``, ``console``, ``channel:NAME``, ``parquet:DIR`` …

    >>> output_of("channel:orders.large")
    Output(kind='channel', to='orders.large', mode='append', partition_by=(), options={})
    """
    kind, _, to = text.partition(":")
    try:
        found = msgspec.convert({"kind": kind, "to": to}, Output)
        if bool(to) == (kind in {"channel", *FILES}):
            return found
    except msgspec.ValidationError:
        pass
    raise ConfigError(f"output {text!r} is not understood: use table, console, channel:NAME, parquet:DIR or delta:DIR")
