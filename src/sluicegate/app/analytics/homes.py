"""Which home there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluicegate.analytics.embedded import EmbeddedHome, Retention
from sluicegate.analytics.home import Home
from sluicegate.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from sluicegate.analytics.clickhouse import ClickHouseSettings

__all__ = ["HOME_FILE", "clickhouse_settings", "open_home"]

HOME_FILE: Final = "analytics.db"
"""The embedded home, in the data directory."""


def open_home(data: Path, clickhouse: str | None = None, retention: Retention | None = None) -> Home:
    """The home in ClickHouse where there is a URL of one, else that in the data directory. Nothing is connected to or made before it is used.

    Raises ConfigurationError for a bad URL, and MissingExtra where ``clickhouse`` is not installed.
    """
    if clickhouse is None:
        return EmbeddedHome(data / HOME_FILE, retention)
    settings = clickhouse_settings(clickhouse)
    from sluicegate.analytics.clickhouse import ClickHouseHome

    return ClickHouseHome(settings)


def clickhouse_settings(url: str | None) -> ClickHouseSettings:
    """Where ClickHouse is; the password is in ``SLUICEGATE_CLICKHOUSE_PASSWORD``, or in the file that the URL names.

    Raises ConfigurationError for a bad URL or none, and MissingExtra where ``clickhouse`` is not installed.
    """
    if not url:
        raise ConfigurationError("--clickhouse: needed, as in clickhouse://default@127.0.0.1:8123/sluicegate")
    try:
        from sluicegate.analytics.clickhouse import ClickHouseSettings
    except ModuleNotFoundError as error:
        raise MissingExtra("clickhouse", "a home in ClickHouse") from error
    return ClickHouseSettings.from_url(url, os.environ.get("SLUICEGATE_CLICKHOUSE_PASSWORD"))
