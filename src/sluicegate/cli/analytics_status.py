"""What ``sluicegate analytics status`` tells."""

from __future__ import annotations

from typing import Any, Final

from sluicegate.analytics.home import Home
from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.analytics.model import Span
from sluicegate.cli.remote.render import pairs, print_json, table, when
from sluicegate.clock import US_PER_S, Clock

__all__ = ["home_report", "kafka_report", "show"]

_DAY_US: Final = 86_400 * US_PER_S


def home_report(home: Home, clock: Clock) -> dict[str, Any]:
    """The home as a whole. ``age_s``: since the end of the latest interval that it was told of. Raises AnalyticsError."""
    status, now_us = home.status(), clock.now_us()
    span = Span(max(0, now_us - _DAY_US), now_us)
    dropped = home.dropped(span)
    return {
        "kind": status.kind,
        "schema": status.schema,
        "batches": status.batches,
        "size_bytes": status.size_bytes,
        "first_us": status.first_us,
        "last_us": status.last_us,
        "age_s": None if status.last_us is None else max(0, now_us - status.last_us) / US_PER_S,
        "nodes": home.nodes(span),
        "dropped": {name: getattr(dropped, name) for name in dropped.__struct_fields__},
    }


def kafka_report(settings: KafkaSettings) -> dict[str, Any]:
    """How far the group has read. Raises AnalyticsError, and MissingExtra where the extra is not installed."""
    from sluicegate.analytics.kafka import lag_of

    places = lag_of(settings)
    rows = [
        {
            "partition": place.partition,
            "first": place.first,
            "end": place.end,
            "committed": place.committed,
            "lag": place.lag,
            "missing": place.missing,
        }
        for place in places
    ]
    return {
        "topic": settings.topic,
        "group": settings.group,
        "lag": sum(place.lag for place in places),
        "missing": sum(place.missing for place in places),
        "partitions": rows,
    }


def show(home: dict[str, Any], kafka: dict[str, Any] | None, *, as_json: bool) -> None:
    """Print both."""
    if as_json:
        print_json({"home": home, **({} if kafka is None else {"kafka": kafka})})
        return
    dropped = {name: count for name, count in home["dropped"].items() if count}
    pairs(
        {
            "home": f"{home['kind']}, schema {home['schema']}, {home['batches']} batches",
            "told until": when(home["last_us"]) + ("" if home["age_s"] is None else f" ({home['age_s']:.0f} s ago)"),
            "nodes, 24 h": len(home["nodes"]),
            "dropped, 24 h": ", ".join(f"{name} {count}" for name, count in dropped.items()) or "nothing",
        }
    )
    if kafka is not None:
        pairs({"topic": kafka["topic"], "group": kafka["group"], "lag": kafka["lag"], "missing": kafka["missing"]})
        headings = ("partition", "first", "end", "committed", "lag", "missing")
        table(headings, ([row[name] for name in headings] for row in kafka["partitions"]), "no partitions")
