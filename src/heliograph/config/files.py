"""Configuration files: YAML or TOML, told apart by their suffix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.errors import ConfigError


def read_file(path: Path) -> Mapping[str, Any]:
    """What a configuration file says, as nested mappings; an empty file says nothing."""
    try:
        data = path.read_bytes()
        if path.suffix not in {".yaml", ".yml", ".toml"}:
            raise ConfigError(f"{path} ends neither in .yaml, .yml nor .toml, so its format is unknown")
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    try:
        tree = _parse_toml(text) if path.suffix == ".toml" else _parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path} must hold sections and settings, not a {type(tree).__name__}")
    return tree


def _parse_toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _parse_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is there twice, which YAML's own loader settles silently."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise ValueError(f"{key!r} is there twice")
            return super().construct_mapping(node, deep)

    try:
        tree = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return {} if tree is None else tree
