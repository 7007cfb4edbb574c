"""Which home there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sluicegate.analytics.embedded import EmbeddedHome, Retention
from sluicegate.analytics.home import Home
from sluicegate.errors import MissingExtra

__all__ = ["HOME_FILE", "open_home"]

HOME_FILE: Final = "analytics.db"
"""The embedded home, in the data directory."""


def open_home(data: Path, clickhouse: str | None = None, retention: Retention | None = None) -> Home:
    """The home in ClickHouse where there is a URL of one, else that in the data directory. Nothing is connected to or made before it is used.

    Raises ConfigurationError for a bad URL, and MissingExtra where ``clickhouse`` is not installed.
    """
    if clickhouse is None:
        return EmbeddedHome(data / HOME_FILE, retention)
    try:
        from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings
    except ModuleNotFoundError as error:
        raise MissingExtra("clickhouse", "a home in ClickHouse") from error
    return ClickHouseHome(ClickHouseSettings.from_url(clickhouse, os.environ.get("SLUICEGATE_CLICKHOUSE_PASSWORD")))
