"""Variables of OpenTelemetry that cannot be used are told before anything starts."""

from __future__ import annotations

import pytest

from sluicegate.app.otel.environment import check_environment
from sluicegate.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a:port"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "nowhere.pem"),
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_TRACES_SAMPLER", "some"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ],
)
def test_a_wrong_one_is_named(name: str, value: str) -> None:
    """The error has the variable and its value."""
    with pytest.raises(ConfigurationError, match=f"^{name}: want .*, got {value!r}$"):
        check_environment({name: value})


def test_the_share_of_traces_is_a_share() -> None:
    """It is looked at where the sampler has one."""
    with pytest.raises(ConfigurationError, match="OTEL_TRACES_SAMPLER_ARG: want a number from 0 to 1, got '9'"):
        check_environment({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "9"})
    check_environment({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "9"})


def test_right_and_empty_ones_pass() -> None:
    """An empty variable is as if it were not set."""
    check_environment(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "",
        }
    )
