"""What is known of a rules file: whether it was edited since a service took or wrote it. Needs nothing that the extra ``control`` installs."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.rules.identity.files import read_file

__all__ = ["digest_of", "edited_since", "note", "replace_file"]


def edited_since(path: Path, data: Path) -> bool:
    """Whether a rules file holds something else than when the service that keeps its data in ``data`` took or wrote it last. Raises ConfigurationError."""
    try:
        noted = _noted(data).read_text()
    except OSError:
        return True
    return noted.split() != [digest_of(read_file(path, RULES_BYTES_MAX, "rules file"))]


def note(data: Path, content: bytes) -> None:
    """This content is that of the database. Where it cannot be written, an edit is seen where there is none, which changes nothing."""
    with contextlib.suppress(OSError):
        replace_file(_noted(data), digest_of(content).encode() + b"\n")


def _noted(data: Path) -> Path:
    return data / "rules.taken"


def digest_of(content: bytes) -> str:
    """Stands for a content."""
    return hashlib.sha256(content).hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """All of it or nothing, with the rights of the file that was there."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):
            written.chmod(path.stat().st_mode & 0o7777)
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)
        raise
