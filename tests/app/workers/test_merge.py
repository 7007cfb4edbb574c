"""One exposition of several."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.app.open_metrics import open_metrics as generate_open_metrics
from sluicegate.app.workers.merge import END, merge

AWKWARD = ["plain", 'quote " brace } space', "back\\slash", "line\nbreak", "{", "", "\u2028separator\x0b", "naïve ☃"]


def exposition(values: dict[str, float], size: float) -> bytes:
    """A counter by rule, and a gauge without labels."""
    registry = CollectorRegistry()
    counter = Counter("refused", 'By rule: "a" and\n{b}', ["rule"], registry=registry)
    for rule, value in values.items():
        counter.labels(rule).inc(value)
    Gauge("size", "One value", registry=registry).set(size)
    return generate_latest(registry)


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels; the moments of creation left out."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_every_sample_is_there_with_its_worker() -> None:
    """Nothing is lost or changed, whatever stands in a label's value; ``worker`` tells the samples apart."""
    texts = {
        number: exposition({rule: number * 10 + at for at, rule in enumerate(AWKWARD)}, number) for number in (1, 2, 3)
    }
    expected = {
        (name, labels | {("worker", str(number))}): value
        for number, text in texts.items()
        for (name, labels), value in samples(text).items()
    }
    assert samples(merge(texts)) == expected


def test_samples_of_a_family_stand_together() -> None:
    """Each family has one help, one type and then all its samples, also where only some workers have it."""
    registry = CollectorRegistry()
    Gauge("late", "Of one worker only", registry=registry).set(5)
    lines = merge({1: exposition({}, 1), 2: exposition({"a": 2}, 2) + generate_latest(registry)}).decode().splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(names) == len(set(names))
    assert 'refused_total{worker="2",rule="a"} 2.0' in lines
    at = lines.index('size{worker="1"} 1.0')
    assert lines[at - 1 : at + 2] == ["# TYPE size gauge", 'size{worker="1"} 1.0', 'size{worker="2"} 2.0']
    assert lines[-1] == 'late{worker="2"} 5.0'


@pytest.mark.parametrize(
    ("line", "merged"),
    [("a 1", 'a{worker="7"} 1'), ("a{} 1", 'a{worker="7"} 1'), ('a{b="{"} 1', 'a{worker="7",b="{"} 1')],
)
def test_labels_are_written_as_the_format_asks(line: str, merged: str) -> None:
    """A sample without labels, with an empty set of them, and with some."""
    assert merge({7: f"# HELP a A\n# TYPE a gauge\n{line}\n".encode()}).decode().splitlines()[-1] == merged


def test_open_metrics_are_merged_with_their_exemplars() -> None:
    """The end of each is left out, once more said by whoever sends the whole; an exemplar stays with its sample."""
    registry = CollectorRegistry()
    seconds = Histogram("took_seconds", "Of a request", buckets=(1,), registry=registry)
    seconds.observe(0.5, {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"})
    Counter("bare", "Without labels", registry=registry).inc(1, {"trace_id": "7"})
    merged = merge({1: generate_open_metrics(registry), 2: generate_open_metrics(registry)})
    assert END.encode() not in merged
    found = {
        (sample.name, sample.labels["worker"]): sample.exemplar.labels["trace_id"]
        for family in open_families(merged.decode() + f"{END}\n")
        for sample in family.samples
        if sample.exemplar is not None
    }
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert found == {
        ("took_seconds_bucket", "1"): trace,
        ("took_seconds_bucket", "2"): trace,
        ("bare_total", "1"): "7",
        ("bare_total", "2"): "7",
    }
