"""Which rule file a server reads, and the one it writes where there is none."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sluicegate.app.settings import Settings
from sluicegate.errors import ConfigurationError

__all__ = ["rules_path"]


def rules_path(settings: Settings) -> Path | None:
    """The rule file to serve: the one that was named, or ``data/rules.yaml``, written from the embedded rules if absent.

    None: none was named, and the rules come from a rules service.
    """
    if settings.rules is not None or settings.feed is not None:
        return settings.rules
    path = settings.data / "rules.yaml"
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), path.open("x") as file:
            file.write((Path(__file__).parent / "defaults.yaml").read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    return path
