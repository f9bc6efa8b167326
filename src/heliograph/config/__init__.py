"""One typed structure for every setting, whoever says it.

What is said later in this list wins: default, file (YAML or TOML), environment, argument::

    storage:                                         # heliograph.yaml
      durability: interval
      retention_age_s: 7d

    HELIOGRAPH_STORAGE_DURABILITY=always             # environment

    hg.open("data", durability="always")             # argument

Sizes are bytes, or ``"64MB"`` (1000²), or ``"64MiB"`` (1024²). Durations are numbers in the unit that ends
their key, or ``"250ms"``, ``"10s"``, ``"30m"``, ``"12h"``, ``"7d"``. An unknown or misspelt key is an error
with a suggestion, never ignored.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

from heliograph.config import federated, items, units
from heliograph.config.files import read_file
from heliograph.config.sections import (
    Audit,
    Durability,
    Hub,
    Link,
    Messages,
    Peer,
    Pipelines,
    Publishing,
    Section,
    Storage,
    Subscribers,
    Tls,
    WhenFull,
)
from heliograph.context import CONTEXT_CHARS_MAX
from heliograph.errors import ConfigError, InvalidArgument

__all__ = [
    "Audit",
    "Config",
    "Durability",
    "Hub",
    "Link",
    "Messages",
    "Peer",
    "Pipelines",
    "Publishing",
    "Setting",
    "Storage",
    "Subscribers",
    "Tls",
    "WhenFull",
    "describe",
    "load",
    "to_human",
]

ENV_PREFIX = "HELIOGRAPH_"
ENV_FILE = "HELIOGRAPH_CONFIG"

#: What ``helio sub --exec`` tells a command about its message. The command may use Heliograph itself, so
#: these are no misspelt settings.
ENV_MESSAGE = frozenset(ENV_PREFIX + name for name in ("CHANNEL", "PARTITION", "OFFSET", "ID", "TYPE", "KEY"))

#: A Kubernetes service called "heliograph" puts these into every pod; they are not meant for us.
_KUBERNETES = re.compile(ENV_PREFIX + r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


class Config(Section, frozen=True, kw_only=True):
    """Every setting of a station.

    >>> config = Config().with_settings(durability="interval", segment_bytes="1MiB")
    >>> config.storage.durability, config.storage.segment_bytes
    ('interval', 1048576)
    """

    name: Annotated[
        str | None,
        Meta(description="The station's name. Unset: the directory's, or the host's when it is new."),
    ] = None
    service: Annotated[
        str, Meta(description="The service that publishes; a message's `source` is station/service.")
    ] = ""
    storage: Storage = msgspec.field(default_factory=Storage)
    messages: Messages = msgspec.field(default_factory=Messages)
    publishing: Publishing = msgspec.field(default_factory=Publishing)
    subscribers: Subscribers = msgspec.field(default_factory=Subscribers)
    audit: Audit = msgspec.field(default_factory=Audit)
    pipelines: Pipelines = msgspec.field(default_factory=Pipelines)
    hub: Hub = msgspec.field(default_factory=Hub)
    links: Annotated[tuple[Link, ...], Meta(description="The hubs that this station connects to.")] = ()
    tls: Tls = msgspec.field(default_factory=Tls)

    def __post_init__(self) -> None:
        if not self.service.isprintable() or len(self.service) > CONTEXT_CHARS_MAX:
            raise ConfigError(
                f"service is a printable text of at most {CONTEXT_CHARS_MAX} characters, not {self.service!r}"
            )

    def with_settings(self, **settings: object) -> Config:
        """This configuration with some settings changed, by keyword (see :func:`describe`)."""
        return _apply(self, dict(_from_keywords(settings))) if settings else self

    def to_dict(self, *, human: bool = False) -> dict[str, Any]:
        """Plain nested dictionaries; ``human=True`` writes sizes and durations as a person would.

        >>> Config().to_dict(human=True)["storage"]["segment_bytes"]
        '64MiB'
        """
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for setting in describe():
            section, _, leaf = setting.key.rpartition(".")
            place = plain[section] if section else plain
            if human:
                place[leaf] = to_human(setting, place[leaf])
            elif setting.kind == "list":
                place[leaf] = items.plain(place[leaf], human=False)
        return plain


class Setting(NamedTuple):
    """One setting as data: what the documentation, its test and ``helio config`` are made from."""

    key: str  #: where it stands in a file: ``storage.durability``
    keyword: str  #: what ``open`` calls it: ``durability``
    env: str  #: its environment variable
    kind: str  #: text, size, duration, number, whole number, yes or no, list, or the words allowed
    default: Any
    doc: str
    annotation: Any  #: its type and range, for msgspec


class _Said(NamedTuple):
    value: object
    where: str  # who said so, for the error message
    text: bool = False  # from the environment, where everything is text


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    **settings: object,
) -> Config:
    """Put the configuration together: settings > environment > ``source`` > defaults.

    ``source`` is the path of a YAML or TOML file, or what would be in it; without one ``HELIOGRAPH_CONFIG``
    names the file, if set. Raises :class:`ConfigError`, naming the key, the value and who said it.

    >>> load({"storage": {"retention_age_s": "7d"}}, env={}).storage.retention_age_s
    604800.0
    """
    env = os.environ if env is None else env
    source = source or env.get(ENV_FILE) or {}
    if isinstance(source, Mapping):
        said = dict(_flatten(source, "the configuration"))
    elif not isinstance(source, str | os.PathLike):
        raise InvalidArgument(f"config is {source!r}; use a mapping, a Config, or the path of a YAML or TOML file")
    else:
        said = dict(_flatten(read_file(Path(source)), os.fspath(source)))
    said.update(_from_environment(env))
    said.update(_from_keywords(settings))
    return _apply(Config(), said)


@functools.cache
def describe() -> tuple[Setting, ...]:
    """Every setting, in the order of the file.

    >>> [s.env for s in describe() if s.key == "storage.durability"]
    ['HELIOGRAPH_STORAGE_DURABILITY']
    """
    found: list[Setting] = []
    for key, annotation, default in _leaves():
        leaf = key.rpartition(".")[2]
        path = key.replace(".", "_")
        # Two sections may share a leaf: the first keeps the short keyword, the other says its section.
        taken = any(other.keyword == leaf for other in found)
        doc = annotation.__metadata__[0].description
        kind = _kind(leaf, annotation.__origin__)
        found.append(Setting(key, path if taken else leaf, ENV_PREFIX + path.upper(), kind, default, doc, annotation))
    return tuple(found)


def to_human(setting: Setting, value: Any) -> Any:
    """The value as a person would write it into the file; what is read back is the same.

    >>> {s.key: to_human(s, s.default) for s in describe() if s.keyword == "max_bytes"}
    {'messages.max_bytes': '10MB'}
    """
    if setting.kind == "size":
        return units.human_size(value)
    if setting.kind == "duration":
        return units.human_duration(value, setting.key.rpartition("_")[2])
    if setting.kind == "list":
        return items.plain(value, human=True)
    return value


# -- who says what ------------------------------------------------------------------------------------------


def _flatten(tree: Mapping[str, Any], where: str) -> Iterator[tuple[str, _Said]]:
    sections = {key.partition(".")[0] for key in _by_key() if "." in key}
    for name, value in tree.items():
        if name in sections and isinstance(value, Mapping):
            for leaf, inner in value.items():
                yield _known(f"{name}.{leaf}", where), _Said(inner, where)
        elif name in sections and value is not None:  # None: a section whose lines are all commented out
            raise ConfigError(f"{name} is a section with settings of its own, not {value!r} (in {where})")
        elif isinstance(value, Mapping):
            raise ConfigError(f"there is no section {name!r} (in {where}){_suggest(str(name), sections)}")
        elif name not in sections:
            yield _known(str(name), where), _Said(value, where)


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, _Said]]:
    by_env = {setting.env: setting.key for setting in describe()}
    for name, value in env.items():
        if not name.startswith(ENV_PREFIX) or name == ENV_FILE or name in ENV_MESSAGE:
            continue
        if name in by_env:
            yield by_env[name], _Said(value, name, text=True)
        elif not _KUBERNETES.fullmatch(name):
            raise ConfigError(f"{name} is set in the environment but is no setting{_suggest(name, by_env)}")


def _from_keywords(settings: Mapping[str, object]) -> Iterator[tuple[str, _Said]]:
    by_keyword = {setting.key.replace(".", "_"): setting.key for setting in describe()}
    by_keyword |= {setting.keyword: setting.key for setting in describe()}
    for keyword, value in settings.items():
        if keyword not in by_keyword:
            raise ConfigError(f"there is no setting {keyword!r}{_suggest(keyword, by_keyword)}")
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        yield by_keyword[keyword], _Said(value, "the arguments")


def _known(key: str, where: str) -> str:
    if key in _by_key():
        return key
    leaf = key.rpartition(".")[2]
    elsewhere = [other for other in _by_key() if other.rpartition(".")[2] == leaf]
    hint = f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else _suggest(key, _by_key())
    raise ConfigError(f"there is no setting {key!r} (in {where}){hint}")


def _suggest(wrong: str, known: Iterable[str]) -> str:
    import difflib

    known = list(known)
    near = difflib.get_close_matches(wrong, known, n=1)
    if not near:  # the leaf alone may be nearly right, with its section forgotten
        leaves = {key.rpartition(".")[2]: key for key in known}
        near = [leaves[leaf] for leaf in difflib.get_close_matches(wrong.rpartition(".")[2], leaves, n=1)]
    return f"; did you mean {near[0]}?" if near else "; `helio config show` lists them all"


# -- values -------------------------------------------------------------------------------------------------


def _apply(config: Config, said: Mapping[str, _Said]) -> Config:
    changes: dict[str, dict[str, Any]] = {}
    for key, one in said.items():
        section, _, leaf = key.rpartition(".")
        changes.setdefault(section, {})[leaf] = _value(_by_key()[key], one)
    top = changes.pop("", {})
    for section, leaves in changes.items():
        top[section] = msgspec.structs.replace(getattr(config, section), **leaves)
    config = msgspec.structs.replace(config, **top)
    retry = config.subscribers
    if retry.backoff_base_ms > retry.backoff_max_ms:
        raise ConfigError(
            f"subscribers.backoff_base_ms ({retry.backoff_base_ms}) is more than "
            f"subscribers.backoff_max_ms ({retry.backoff_max_ms}); raise the second or lower the first"
        )
    federated.check(config.hub, config.links, config.tls)
    return config


def _value(setting: Setting, said: _Said) -> Any:
    try:
        item = items.item_of(setting.annotation)
        if item is not None:
            return msgspec.convert(items.read(said.value, item, text=said.text), setting.annotation)
        value = _from_human(setting, said.value) if isinstance(said.value, str) else said.value
        value = msgspec.convert(value, setting.annotation, strict=not said.text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{setting.key} = {said.value!r} (from {said.where}): {error}") from error
    return value


_SWITCH = {
    "yes": True,
    "on": True,
    "true": True,
    "1": True,
    "no": False,
    "off": False,
    "false": False,
    "0": False,
}


def _from_human(setting: Setting, text: str) -> object:
    match setting.kind:
        case "size":
            return units.parse_size(text)
        case "duration":
            return units.parse_duration(text, setting.key.rpartition("_")[2])
        case "yes or no":
            return _SWITCH.get(text.strip().lower(), text)
        case words if words.startswith("`"):
            allowed = re.findall(r"`(\w+)`", words)
            if text not in allowed:
                raise ValueError(f"must be one of {', '.join(allowed)}")
    return text


# -- the structure, read from the structs -------------------------------------------------------------------


def _leaves() -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        if field.default is not msgspec.NODEFAULT:
            yield field.name, hints[field.name], field.default
            continue
        section = hints[field.name]
        inner_hints = get_type_hints(section, include_extras=True)
        for inner in msgspec.structs.fields(section):
            yield f"{field.name}.{inner.name}", inner_hints[inner.name], inner.default


@functools.cache
def _by_key() -> Mapping[str, Setting]:
    return {setting.key: setting for setting in describe()}


def _kind(leaf: str, plain: Any) -> str:
    if "bytes" in leaf.split("_"):
        return "size"
    if leaf.endswith(("_s", "_ms")):
        return "duration"
    if getattr(plain, "__origin__", None) is Literal:
        return ", ".join(f"`{word}`" for word in plain.__args__)
    if getattr(plain, "__origin__", None) is tuple:
        return "list"
    return {bool: "yes or no", int: "whole number", float: "number"}.get(plain, "text")
