"""Where pipelines are declared: in built-in modules, in a Python file or module, or as SQL in a YAML or TOML file."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from heliograph.config.files import read_file
from heliograph.errors import ConfigError, HeliographError, NotFound
from heliograph.spark.pipelines.declared import (
    AVAILABLE,
    BATCH,
    Input,
    Option,
    Output,
    Pipeline,
    checked,
)


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pipeline in a file: SQL over its inputs.

    name: large
    inputs: {orders: {channel: orders}}
    sql: SELECT key, data FROM orders WHERE get_json_object(data, '$.total') > :above
    options: [{name: above, help: Only orders above this sum., kind: decimal, default: 1000}]
    output: {kind: channel, to: orders.large}
    trigger: 10 seconds
    """

    name: str
    sql: str
    inputs: dict[str, Input | str]
    help: str = ""
    output: Output = Output()
    options: tuple[Option, ...] = ()
    trigger: str | None = None
    watermark: dict[str, str] = {}
    """For each input that has one, how long its events may be late: by column ``time``."""


def builtin() -> dict[str, Pipeline]:
    """The pipelines that come with Heliograph, by name."""
    from heliograph.spark import jobs

    found: dict[str, Pipeline] = {}
    for info in pkgutil.iter_modules(jobs.__path__):
        if not info.name.startswith("_"):
            found |= _of_module(importlib.import_module(f"{jobs.__name__}.{info.name}"))
    return dict(sorted(found.items()))


def declared(files: Iterable[str] = ()) -> dict[str, Pipeline]:
    """All pipelines: the built-in ones, and those of these files and modules."""
    found = builtin()
    for file in files:
        for name, one in in_file(file).items():
            if name in found and found[name] is not one:
                raise ConfigError(f"{file} declares pipeline '{name}', which there is already; choose another name")
            found[name] = one
    return found


def find(name: str, files: Iterable[str] = ()) -> Pipeline:
    """One of them."""
    there = declared(files)
    if name in there:
        return there[name]
    close = difflib.get_close_matches(name, there, 1)
    raise NotFound(
        f"there is no pipeline '{name}'"
        + (
            f"; did you mean '{close[0]}'?"
            if close
            else "; 'helio pipeline list' shows them, --file names a file of yours"
        )
    )


def in_file(file: str) -> dict[str, Pipeline]:
    """The pipelines of a file ``.py``, ``.yaml``, ``.toml``, or of a module by its dotted name."""
    path = Path(file)
    if path.suffix in {".yaml", ".yml", ".toml"}:
        found = _of_text(path)
    elif path.suffix == ".py":
        found = _of_module(_load(path))
    else:
        found = _of_module(_imported(file))
    if not found:
        raise NotFound(f"{file} declares no pipelines; see 'helio pipeline --help'")
    return found


def _imported(name: str) -> ModuleType:
    try:
        if name.startswith("."):
            raise ModuleNotFoundError("it begins with a dot")
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotFound(f"{name} is neither a file that ends in .py, .yaml or .toml, nor a module ({error})") from None
    except Exception as error:
        raise _failed(name, error) from error


def _failed(file: str, error: Exception) -> ConfigError:
    """Whatever somebody's code raises when it is loaded, and where."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    where = file if line is None else f"{file}, line {line}"
    told = error.msg if isinstance(error, SyntaxError) else str(error)
    return ConfigError(f"{where}: {type(error).__name__}: {told}")


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    name = f"heliograph_pipelines_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except HeliographError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise _failed(str(path), error) from error
    return module


def _of_module(module: ModuleType) -> dict[str, Pipeline]:
    return _by_name(
        module.__file__ or module.__name__, [one for one in vars(module).values() if isinstance(one, Pipeline)]
    )


def _by_name(file: str | Path, found: Iterable[Pipeline]) -> dict[str, Pipeline]:
    """Pipelines by their names. If two had one, only the last would ever be run."""
    named: dict[str, Pipeline] = {}
    for one in found:
        if named.setdefault(one.name, one) is not one:  # a module may have two words for one
            raise ConfigError(f"{file} declares pipeline '{one.name}' twice; choose another name for one of them")
    return named


# -- SQL --------------------------------------------------------------------------------------------------------------


def _of_text(path: Path) -> dict[str, Pipeline]:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    tree = read_file(path)
    told: Any = tree.get("pipelines", [tree])
    try:
        found = msgspec.convert(told, list[Declared], strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} does not declare a pipeline: {error}") from None
    return _by_name(path, map(_of_sql, found))


def _of_sql(one: Declared) -> Pipeline:
    inputs = {name: Input(given) if isinstance(given, str) else given for name, given in one.inputs.items()}
    if not inputs:
        raise ConfigError(f"pipeline '{one.name}' has no inputs: name the channels that its SQL reads")
    unknown = [name for name in one.watermark if name not in inputs]
    if unknown:
        raise ConfigError(f"pipeline '{one.name}': watermark names '{unknown[0]}', which is no input")

    def run(**given: Any) -> Any:
        tables = {name: given[name] for name in inputs}
        for name, late in one.watermark.items():
            tables[name] = tables[name].withWatermark("time", late)
        spark = next(iter(tables.values())).sparkSession
        for name, table in tables.items():
            table.createOrReplaceTempView(name)
        chosen = {option.name: _parameter(option, given[option.name]) for option in one.options}
        return spark.sql(one.sql, args=chosen or None)

    return checked(
        Pipeline(
            name=one.name, help=one.help or f"SQL over {', '.join(inputs)}.", function=run, inputs=inputs,
            output=one.output, options=one.options, sql=one.sql,
            trigger=one.trigger or (BATCH if one.output.kind == "table" else AVAILABLE),
        )
    )  # fmt: skip


def _parameter(option: Option, value: Any) -> Any:
    """What a statement gets for an option; several of them are an array."""
    if not option.several:
        return value
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return F.array(*map(F.lit, value))
