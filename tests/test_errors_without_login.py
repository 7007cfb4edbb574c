"""No message about an address shows the password that somebody wrote into it."""

from __future__ import annotations

import pytest

from sluicegate.analytics.clickhouse import ClickHouseSettings
from sluicegate.analytics.kafka import KafkaSettings
from sluicegate.cli.root import run
from sluicegate.doors.gateway.target import Target
from sluicegate.errors import ConfigurationError, without_login


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host:80/path", "http://host:80/path"),
        ("http://u:hunter2@host", "http://***@host"),
        ("http://u:hun/ter2@x@host:1", "http://***@host:1"),
        ("u:hunter2@host:1", "***@host:1"),
        ("", ""),
    ],
)
def test_what_is_shown(address: str, shown: str) -> None:
    """All before the last ``@`` but the scheme is hidden; the rest stays."""
    assert without_login(address) == shown


def test_addresses_with_a_password() -> None:
    """Brokers, upstreams and ClickHouse refuse them without repeating it, also where it makes the URL unreadable."""
    for refused in (
        lambda: KafkaSettings("good:1,u:hunter2@host:1"),
        lambda: Target.parse("http://u:hunter2@host:1"),
        lambda: Target.parse("http://u:hunter2/x@host:1"),
        lambda: ClickHouseSettings.from_url("clickhouse://u:hunter2/x@host:1/d"),
        lambda: ClickHouseSettings.from_url("clickhouse://u:hunter2@host:1/d"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            refused()
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("server", ["http://u:hunter2@127.0.0.1:1", "nonsense://u:hunter2@h", "http://u:hunter2@[::1"])
def test_a_server_with_a_password(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--server` is refused in one line with status 2, and the line does not show it."""
    assert run(["top", "--once", "--server", server, "--token", "x"]) == 2
    text = capsys.readouterr().err
    assert "--server" in text
    assert "hunter2" not in text
