"""The flags of what a server tells about its decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from sluicegate.analytics.embedded import Retention
from sluicegate.app.analytics.settings import MODES, SUBJECTS, AnalyticsSettings
from sluicegate.cli.options import DurationType, all_of, option
from sluicegate.errors import ConfigurationError

__all__ = [
    "analytics_of",
    "analytics_options",
    "chosen_clickhouse",
    "clickhouse_option",
    "retention_names",
    "retention_of",
    "retention_options",
    "secret_option",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)
_DURATION: Final = DurationType()
_DEFAULTS: Final = Retention()
_KEEP: Final[tuple[tuple[str, str, str], ...]] = (
    ("analytics-keep-seconds", "seconds_s", "How long counts by seconds are kept {}."),
    ("analytics-keep-minutes", "minutes_s", "How long counts by minutes are kept there."),
    ("analytics-keep-decisions", "decisions_s", "How long sampled decisions are kept there."),
    ("analytics-keep-demand", "demand_s", "How long the demand of sampled clients is kept there."),
    ("analytics-keep-admissions", "admissions_s", "How long asks of watched counters are kept there."),
)
_MIB: Final = 1_048_576
_DAY_S: Final = 86_400


def analytics_options() -> tuple[Callable[[Function], Function], ...]:
    """All of them."""
    return (
        option(
            "analytics",
            type=click.Choice(MODES),
            default="auto",
            help="Where counts of decisions go: embedded is DATA/analytics.db; auto is kafka with --kafka, else embedded.",
        ),
        option(
            "analytics-subjects",
            type=click.Choice(SUBJECTS),
            default="digest",
            help="How clients are told of: digests under the secret in DATA/analytics.secret, or plain.",
        ),
        secret_option(),
        retention_options("in DATA/analytics.db"),
        option(
            "analytics-size-max-mb",
            type=int,
            default=_DEFAULTS.size_max_bytes // _MIB,
            help="Size of DATA/analytics.db from which on the oldest detail goes before its time.",
        ),
        option("kafka", metavar="HOST:PORT[,...]", help="Brokers to tell of decisions."),
        option("kafka-topic", metavar="TOPIC", help="Topic for that.  [default: sluicegate.decisions.v1]"),
        option("kafka-config", type=_PATH, metavar="FILE", help="Properties of the Kafka client, name=value a line."),
    )


def secret_option() -> Callable[[Function], Function]:
    """``--analytics-secret-file``."""
    return option(
        "analytics-secret-file",
        type=_PATH,
        metavar="FILE",
        help="Secrets of the digests of clients, one a line.  [default: DATA/analytics.secret]",
    )


def clickhouse_option() -> Callable[[Function], Function]:
    """``--clickhouse``, of commands that look traffic up themselves."""
    return option(
        "clickhouse",
        metavar="URL",
        help="Without a server: look in ClickHouse, clickhouse://USER@HOST:PORT/DATABASE.  [default: DATA/analytics.db]",
    )


def chosen_clickhouse(context: click.Context, url: str | None) -> str | None:
    """The URL; None where there is none, or a data directory is named on the command line and it is not."""
    given = [
        name for name in ("clickhouse", "data") if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    return None if given == ["data"] else url or None


def retention_options(where: str) -> Callable[[Function], Function]:
    """How long what is kept ``where``."""
    return all_of(
        *(
            option(name, type=_DURATION, default=f"{getattr(_DEFAULTS, field)}s", help=text.format(where))
            for name, field, text in _KEEP
        ),
        option(
            "analytics-keep-days",
            type=int,
            default=_DEFAULTS.hours_s // _DAY_S,
            help="For how many days counts by hours are kept there.",
        ),
    )


def retention_names() -> list[str]:
    """The parameters that ``retention_options`` makes."""
    return [name.replace("-", "_") for name in (*(name for name, _, _ in _KEEP), "analytics-keep-days")]


def retention_of(values: Mapping[str, Any]) -> Retention:
    """What ``retention_options`` say, and the size where there is a flag of it. Raises ConfigurationError."""
    fields = {field: values[name.replace("-", "_")] for name, field, _ in _KEEP}
    for name, field, _ in _KEEP:
        if fields[field] != int(fields[field]):
            raise ConfigurationError(f"--{name}: want whole seconds, got {fields[field]:g}s")
    flags = {field: name for name, field, _ in _KEEP} | {
        "size_max_bytes": "analytics-size-max-mb",
        "hours_s": "analytics-keep-days",
    }
    size_mb = values.get("analytics_size_max_mb", _DEFAULTS.size_max_bytes // _MIB)
    try:
        return Retention(
            hours_s=values["analytics_keep_days"] * _DAY_S,
            size_max_bytes=size_mb * _MIB,
            **{field: int(value) for field, value in fields.items()},
        )
    except ConfigurationError as error:
        name = flags.get(str(error).partition(" ")[0].rstrip(","), "")
        raise ConfigurationError(f"--{name}: {error}" if name else str(error)) from error


def analytics_of(values: Mapping[str, Any]) -> AnalyticsSettings:
    """What the flags say. Raises ConfigurationError."""
    return AnalyticsSettings(
        mode=values["analytics"],
        subjects=values["analytics_subjects"],
        secret_file=values["analytics_secret_file"],
        retention=retention_of(values),
        # An empty one is a variable that was not set.
        kafka=values["kafka"] or None,
        kafka_topic=values["kafka_topic"] or None,
        kafka_config=values["kafka_config"],
    )
