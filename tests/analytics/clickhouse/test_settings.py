"""Where the server is, read from a URL; and errors that say what is wrong."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from real_clickhouse import ClickHouse, running_clickhouse

from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings, migrate
from sluicegate.analytics.model import Span
from sluicegate.errors import AnalyticsError, ConfigurationError


def test_url() -> None:
    """Only the host must be named; the rest has its defaults."""
    assert ClickHouseSettings.from_url("clickhouse://db") == ClickHouseSettings(
        host="db", port=8123, user="default", database="sluicegate"
    )
    full = ClickHouseSettings.from_url(
        "clickhouse://us%40er@[::1]:9000/limits?secure=1&verify=0&ca=/ca.pem&cluster=east", "pw"
    )
    assert full == ClickHouseSettings(
        host="::1",
        port=9000,
        user="us@er",
        database="limits",
        secure=True,
        verify=False,
        ca="/ca.pem",
        cluster="east",
        password="pw",
    )
    assert ClickHouseSettings.from_url("clickhouse://db?secure=true").port == 8443


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://db", "clickhouse://"),
        ("clickhouse://", "no host"),
        ("clickhouse://db:99999", "cannot be read"),
        ("clickhouse://db/a`b", "database"),
        ("clickhouse://db/a.b", "database"),
        ("clickhouse://db?secure=maybe", "secure"),
        ("clickhouse://db?sekure=1", "sekure"),
        ("clickhouse://db?cluster=a`b", "cluster"),
        ("clickhouse://db?password_file=/does/not/exist", "password_file"),
    ],
)
def test_wrong_url(url: str, named: str) -> None:
    """The message names what is wrong."""
    with pytest.raises(ConfigurationError, match=named):
        ClickHouseSettings.from_url(url)


def test_password_is_not_shown(tmp_path: Path) -> None:
    """It is in no text made of the settings; in a URL it is refused, and not repeated; a file gives its first line."""
    with pytest.raises(ConfigurationError) as caught:
        ClickHouseSettings.from_url("clickhouse://me:hunter2@db")
    assert "hunter2" not in str(caught.value)
    file = tmp_path / "password"
    file.write_text("hunter2\r\nmore\n")
    settings = ClickHouseSettings.from_url(f"clickhouse://me@db?password_file={file}", "other")
    assert settings.password == "hunter2"
    assert "hunter2" not in f"{settings} {settings!r}"


@pytest.mark.slow
def test_passwords_and_rights(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong password, and a user that may only read, are errors that do not pass by themselves; no log line holds the password."""
    caplog.set_level(logging.DEBUG)
    with running_clickhouse("hunter2") as server:
        right = ClickHouseSettings.from_url(server.url("limits"), "hunter2")
        wrong = replace(right, password="hunter3")
        with pytest.raises(AnalyticsError, match="refuses user or password") as caught:
            migrate(wrong)
        assert not caught.value.transient
        with pytest.raises(AnalyticsError) as caught:
            migrate(replace(right, user="reader"))
        assert not caught.value.transient, caught.value
        migrate(right)
        assert ClickHouseHome(replace(right, user="reader")).requests(Span(0, 1)) == []
    assert "hunter2" not in caplog.text + str(caught.value)


@pytest.mark.slow
def test_server_away(shared_clickhouse: ClickHouse) -> None:
    """No server is an error that may pass; a database that is not there says what to do."""
    nobody = ClickHouseSettings(host="127.0.0.1", port=9, database="x")
    with pytest.raises(AnalyticsError, match=r"127\.0\.0\.1:9/x") as caught:
        ClickHouseHome(nobody).status()
    assert caught.value.transient
    with pytest.raises(AnalyticsError, match="no such database: run `sluicegate analytics migrate`") as caught:
        ClickHouseHome(ClickHouseSettings.from_url(shared_clickhouse.url("nowhere"))).status()
    assert not caught.value.transient
