"""Rule files as they are named on the command line: a file, standard input, or a directory that holds one set in several files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.file_set import Files, check_files
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import RulesInvalid

__all__ = ["RULE_PATH", "read_bytes", "read_files", "read_rules", "source_of"]

RULE_PATH: Final = click.Path(path_type=Path, allow_dash=True)

_ENDINGS: Final = frozenset({".yaml", ".yml"})


def read_rules(path: Path) -> RuleSet:
    """The rule set of a file or a directory; raises ConfigurationError with all problems."""
    files = read_files([path])
    if len(files) == 1:
        return load_rules(files[0][1], files[0][0])
    ruleset, problems = check_files(files, str(path))
    if ruleset is None:
        raise RulesInvalid(str(path), problems)
    return ruleset


def read_files(paths: list[Path] | tuple[Path, ...]) -> Files:
    """The files of one set with their contents: those named, and of a directory its ``*.yaml`` and ``*.yml`` by their names.

    Directories within it and hidden files are left alone. Raises ConfigurationError.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        within = sorted(
            each
            for each in path.iterdir()
            if each.suffix in _ENDINGS and not each.name.startswith(".") and not each.is_dir()
        )
        if not within:
            raise ConfigurationError(f"there is no file *.yaml or *.yml in the directory {str(path)!r}")
        found += within
    twice = next((path for path in found if found.count(path) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"{twice} is named twice")
    return [(str(path), read_bytes(path)) for path in found]


def source_of(paths: list[Path] | tuple[Path, ...]) -> str:
    """What to call the set of some paths."""
    return ", ".join(map(str, paths))


def read_bytes(path: Path) -> bytes:
    """The content of a rule file (``-``: standard input); raises ConfigurationError where it cannot be had."""
    try:
        with click.open_file(str(path), "rb") as stream:
            content = bytes(stream.read(RULES_BYTES_MAX + 1))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > RULES_BYTES_MAX:
        raise ConfigurationError(f"{path} is larger than {RULES_BYTES_MAX} bytes")
    return content
