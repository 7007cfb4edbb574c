"""Clients that somebody knows, by the digests under which they are told of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluicegate.analytics.offenders import Names
from sluicegate.bounds import TOP_NAMES_MAX
from sluicegate.errors import ConfigurationError

__all__ = ["named"]


def named(path: Path, secrets: Sequence[bytes]) -> dict[str, str]:
    """Lines of a file by all digests that each may have; empty without secrets. An address stands for the client ``ip:ADDRESS``.

    Raises ConfigurationError where it cannot be read, or has more than ``TOP_NAMES_MAX`` different lines.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines: dict[str, None] = {}
            for line in file:
                if line := line.strip():
                    lines[line] = None
                if len(lines) > TOP_NAMES_MAX:
                    raise ConfigurationError(
                        f"--names: {str(path)!r} has more than {TOP_NAMES_MAX:,} different clients"
                    )
    except OSError as error:
        raise ConfigurationError(f"--names: cannot read {str(path)!r}: {error.strerror}") from error
    if not secrets:
        return {}
    names = Names(secrets)
    return {digest: line for line in lines for digest in names.candidates(line)}
