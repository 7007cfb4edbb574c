"""Reading the files an identity block names: at load, whole and bounded, never on a request."""

from __future__ import annotations

from pathlib import Path

from sluicegate.errors import ConfigurationError

__all__ = ["read_file"]


def read_file(path: Path, bytes_max: int, what: str) -> bytes:
    """The content of a file of at most ``bytes_max`` bytes; raises ConfigurationError naming ``what`` and the path."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} {str(path)!r}: {error.strerror or error}") from error
    if len(content) > bytes_max:
        raise ConfigurationError(f"the {what} {str(path)!r} is larger than {bytes_max} bytes")
    return content
