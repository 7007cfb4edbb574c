"""What ``/metrics`` says of single clients as a whole: how many are on lists, have a tier or an override, were penalised. Never who."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.limiter.limiter import Limiter

__all__ = ["client_metrics"]


def client_metrics(limiter: Limiter) -> Iterator[Metric]:
    """The metrics of a limiter's lists, subjects and penalties."""
    entries = GaugeMetricFamily(
        "sluicegate_list_entries", "Entries of the allow and block lists in memory", labels=["list", "kind"]
    )
    for (name, kind), count in limiter.lists.sizes().items():
        entries.add_metric([name, kind], count)
    yield entries
    subjects, penalties = limiter.subjects, limiter.penalties
    yield GaugeMetricFamily(
        "sluicegate_lists_revision", "Revision of the lists that a rules service told last", limiter.lists.revision
    )
    yield GaugeMetricFamily("sluicegate_subjects", "Subjects with a tier or an override in memory", len(subjects))
    yield GaugeMetricFamily("sluicegate_subject_overrides", "Subjects whose limits are multiplied", subjects.overrides)
    yield GaugeMetricFamily(
        "sluicegate_subjects_revision", "Revision of the subjects that a rules service told last", subjects.revision
    )
    yield CounterMetricFamily("sluicegate_penalties", "Clients blocked by a rule's penalty", penalties.given)
    yield CounterMetricFamily(
        "sluicegate_penalties_dropped",
        "Penalties that found the lists full, or that nobody took to tell others",
        penalties.dropped,
    )
    yield CounterMetricFamily(
        "sluicegate_penalty_counts_forgotten",
        "Clients whose refusals were forgotten because too many others were refused",
        penalties.forgotten,
    )
