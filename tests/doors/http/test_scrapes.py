"""Which format a scraper is given."""

from __future__ import annotations

import pytest

from sluicegate.doors.http.scrapes import OPEN_METRICS, prefers_open_metrics

PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        (OPEN_METRICS, True),
        ("application/openmetrics-text", True),
        ('Application/OpenMetrics-Text; Version="1.0.0"', True),
        ("text/plain;q=0.5,application/openmetrics-text;q=0.5", True),
        ("", False),
        ("*/*", False),
        ("text/html,*/*;q=0.8", False),
        ("text/plain;version=0.0.4", False),
        ("text/plain,application/openmetrics-text;q=0.9", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        (";;,=,", False),
    ],
)
def test_the_format_is_the_one_preferred(accept: str, is_open: bool) -> None:
    """OpenMetrics 1.0 where it is wanted at least as much as text 0.0.4, text everywhere else."""
    assert prefers_open_metrics(accept.encode()) is is_open
