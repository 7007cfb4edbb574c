"""What ``/metrics`` says of the store, in this process or shared, and of deciding without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.app.region_metrics import region_metrics
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.base import FleetStore
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.regional.store import RegionalStore

__all__ = ["STATS", "store_metrics"]


class _Stats(Protocol):
    def as_dict(self) -> Mapping[str, int]: ...


@runtime_checkable
class _Hearing(Protocol):
    """A store by which processes tell each other what may pass again."""

    @property
    def news_failing(self) -> bool: ...


@runtime_checkable
class _Counting(Protocol):
    """A store that counts what it does."""

    @property
    def stats(self) -> _Stats: ...


STATS: dict[str, tuple[str, str]] = {
    # The memory store.
    "decisions": ("decisions", "Requests decided by the store, peeks included"),
    "swept": ("swept", "Expired counters removed"),
    "evicted_live": ("evicted_live", "Counters that still mattered, removed because the store was full"),
    "evicted_refusing": ("evicted_refusing", "Those of them that were refusing"),
    "carried": ("carried", "Counters taken over by changed numbers of their rule"),
    "refunds": ("refunds", "Counters given something back"),
    "grants": ("grants", "Counters that an operator gave something back"),
    "resets": ("resets", "Counters forgotten on request"),
    # A Redis store.
    "calls": ("calls", "Commands sent"),
    "batches": ("batches", "Script calls that carried decisions of the event loop"),
    "batched": ("batched", "The decisions in them"),
    "loads": ("loads", "Scripts sent in full because a server did not know them"),
    "moved": ("moved", "Commands sent again to the server that another one named"),
    "lost": ("lost", "Exchanges without a reply"),
    "errors": ("error_replies", "Error replies"),
    "connects": ("connects", "Connections made"),
    "expired": ("expired", "Requests that reached their deadline before they were sent"),
    "overflowed": ("overflowed", "Requests that failed because too many were waiting"),
    "breaker_opens": ("breaker_opens", "Times a server was given up"),
    "probes": ("probes", "Times a server that was given up was tried"),
    "failed_fast": ("failed_fast", "Commands not sent because their server was given up"),
    "refreshes": ("refreshes", "Maps of a cluster that were asked for"),
    "undone": ("undone", "Charges given back because another server refused the request or failed"),
    "undo_lost": ("undo_lost", "Those that could not be given back, so that the client lost them"),
    "news_sent": ("news_sent", "Messages to other processes that name counters which may pass again"),
    "news_heard": ("news_heard", "Such messages heard"),
    "news_ignored": ("news_ignored", "Messages on the channel of news that are none of this program"),
    "news_failed": (
        "news_failed",
        "Times news could not be sent, or the connection that hears them not be had, or was cut",
    ),
}
"""Name of a store's count -> name of its metric, and what it says."""

_POLICIES = ("local", "sticky", "open", "closed")

_HANDOVER: dict[str, str] = {
    "handovers": "Decisions after an outage that passed the store and a local counter",
    "handover_refused": "Refusals by that local counter",
    "settled": "Counters of the store charged with what was admitted without it",
}


def store_metrics(limiter: Limiter) -> Iterator[Metric]:
    """Every metric of the store of this limiter, and of its failing."""
    store = limiter.store
    if isinstance(store, MemoryStore):
        text = "Counters held, expired ones that are not swept yet included"
        yield _one(GaugeMetricFamily, "store_counters", text, len(store))
    if isinstance(store, _Counting):
        for name, value in store.stats.as_dict().items():
            metric, text = STATS[name]
            yield _one(CounterMetricFamily, f"store_{metric}", text, value)
    # In a region it is the region's own store that hears.
    hearing = store.store if isinstance(store, RegionalStore) else store
    if isinstance(hearing, _Hearing):
        text = "1 while news of other processes are wanted and the connection for them is not there"
        yield _one(GaugeMetricFamily, "store_news_failing", text, int(hearing.news_failing))
    if isinstance(store, FleetStore):
        yield from _fleet(store)
    if isinstance(store, RegionalStore):
        yield from region_metrics(store)
    yield from _outages(limiter)


def _fleet(store: FleetStore) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "sluicegate_store_up", "1 while calls of this server are tried and answered", labels=["server"]
    )
    for server in store.health():
        up.add_metric([server.address], int(server.state == "up"))
    yield up
    text = "The most processes that were seen to use the store at one time, lately"
    yield _one(GaugeMetricFamily, "store_nodes", text, store.nodes)


def _outages(limiter: Limiter) -> Iterator[Metric]:
    failing = limiter.failing_since_us is not None
    yield _one(GaugeMetricFamily, "store_failing", "1 while the last call of the store has failed", int(failing))
    text = "Processes that local rules divide their limit by while the store is away"
    yield _one(GaugeMetricFamily, "fallback_nodes", text, limiter.fallback_nodes)
    stats = limiter.stats
    text = "Rules decided without the store, by what decided them"
    degraded = CounterMetricFamily("sluicegate_degraded_rules", text, labels=["policy"])
    for policy in _POLICIES:
        degraded.add_metric([policy], getattr(stats, f"degraded_{policy}"))
    yield degraded
    for name, text in _HANDOVER.items():
        yield _one(CounterMetricFamily, name, text, getattr(stats, name))


def _one(kind: Any, name: str, text: str, value: int) -> Metric:
    family: Metric = kind(f"sluicegate_{name}", text, value=value)
    return family
