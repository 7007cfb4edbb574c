"""Analytics of a process put together by its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicegate.analytics.embedded import EmbeddedHome, Retention
from sluicegate.analytics.model import Span
from sluicegate.app.analytics.settings import AnalyticsSettings
from sluicegate.app.analytics.start import node_name, recorded, recording
from sluicegate.clock import SystemClock
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter

EVER = Span(0, 2**52)


def test_a_program_records_its_limiter(tmp_path: Path) -> None:
    """What a limiter decides inside is in the home afterwards, by digests; outside nothing is recorded."""
    limiter = Limiter.from_quota("2/minute")
    with recorded(limiter, tmp_path, node="me") as flusher:
        assert flusher is not None
        for _ in range(5):
            limiter.check("user:8123")
    limiter.check("user:8123")
    assert limiter.recorder is None
    home = EmbeddedHome(tmp_path / "analytics.db")
    assert {row.outcome: row.decisions for row in home.requests(EVER, by=("outcome",))} == {"allowed": 2, "denied": 3}
    assert home.nodes(EVER) == ["me"]
    (row,) = home.offenders(EVER, rule="").rows
    assert (row.times, row.error) == (3, 0)
    assert "8123" not in row.subject
    assert oct((tmp_path / "analytics.db").stat().st_mode)[-3:] == "600"


def test_plain_names_by_setting(tmp_path: Path) -> None:
    """Where it is asked for, clients are told of as they are."""
    limiter = Limiter.from_quota("1/minute")
    with recorded(limiter, tmp_path, settings=AnalyticsSettings(subjects="plain")):
        limiter.check("user:8123")
        limiter.check("user:8123")
    (row,) = EmbeddedHome(tmp_path / "analytics.db").offenders(EVER, rule="").rows
    assert "user:8123" in row.subject


def test_off_records_nothing(tmp_path: Path) -> None:
    """Off is off: no recorder, no file."""
    limiter = Limiter.from_quota("1/minute")
    with recorded(limiter, tmp_path, settings=AnalyticsSettings(mode="off")) as flusher:
        limiter.check("a")
    assert flusher is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """Where nobody asked for the embedded home by name a bad folder keeps nobody from serving; who asks is told."""
    (tmp_path / "file").write_text("")
    limiter = Limiter.from_quota("1/minute")
    with recorded(limiter, tmp_path / "file" / "data") as flusher:
        assert limiter.check("a").allowed
    assert flusher is not None
    assert flusher.dropped["decisions"] == 1
    with pytest.raises(ConfigurationError, match="file"):
        recording(limiter, AnalyticsSettings(mode="embedded"), tmp_path / "file" / "data", SystemClock())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "sqlite"}, "--analytics must be one of"),
        ({"subjects": "hashed"}, "--analytics-subjects"),
        ({"mode": "kafka"}, "needs --kafka"),
        ({"mode": "off", "kafka": "a:1"}, "exclude each other"),
        ({"kafka_topic": "t"}, "need --kafka"),
    ],
)
def test_settings_that_contradict_each_other(fields: dict[str, str], message: str) -> None:
    """Each is refused by the names of its flags."""
    with pytest.raises(ConfigurationError, match=message):
        AnalyticsSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seconds_s": 1}, "seconds_s must be"),
        ({"minutes_s": 600}, "coarser counts"),
        ({"size_max_bytes": 1}, "size_max_bytes"),
    ],
)
def test_retention_that_cannot_be(fields: dict[str, int], message: str) -> None:
    """Each is refused by its name."""
    with pytest.raises(ConfigurationError, match=message):
        Retention(**fields)


def test_auto_goes_where_it_can() -> None:
    """Kafka where it is named, else the file."""
    assert AnalyticsSettings().goes_to == "embedded"
    assert AnalyticsSettings(kafka="a:1").goes_to == "kafka"
    assert node_name("n", 3) == "n-3"
    assert len(node_name("n" * 999, 12)) <= 256
