"""The event contract: what is written can be read, what is wrong is named, and what it says outside is what it is."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import InvalidRequest
from sluicegate.events import (
    ALLOWED,
    DENIED,
    REFUSED,
    SCHEMA_VERSION,
    Admission,
    Batch,
    DecisionSample,
    Demand,
    Dropped,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
    Watching,
    batch_id,
    decode,
    encode,
    size_estimate,
    sum_dropped,
)

ROOT = Path(__file__).resolve().parents[2]
FULL = Batch(
    v=SCHEMA_VERSION,
    id=batch_id("node-1", 0xA1B2C3, 7),
    node="node-1",
    at_us=1_700_000_000_000_000,
    until_us=1_700_000_001_000_000,
    requests=[RequestCount("", ALLOWED, "free", 3, 10, 12), RequestCount("login", DENIED, "free", 3, 2, 2, True)],
    rules=[RuleCount("login", DENIED, "free", 3, 2, 2)],
    subjects=[SubjectCount("login", "3f2a", REFUSED, 2)],
    totals=[SubjectTotal("login", REFUSED, 2)],
    decisions=[DecisionSample(1_700_000_000_500_000, DENIED, 1.0, "login", rules=("login",), subjects={"ip": "3f2a"})],
    demand=[Demand("login", "free", "3f2a", 1_700_000_000_000_000, 60, 5, 5, 2, 3, 5, 0.25)],
    admissions=[
        Admission("login", "3f2a", "token_bucket", 5, 5, 60_000_000, 60_000_000, 1_700_000_000_500_000, 1, True)
    ],
    watch=Watching(1),
    dropped=Dropped(samples=4),
)
COUNTS = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BATCHES = st.builds(
    Batch,
    v=st.just(SCHEMA_VERSION),
    id=st.text("abc/0", min_size=1),
    node=st.text("abcä", min_size=1, max_size=9),
    at_us=st.integers(0, 2**50),
    until_us=st.integers(2**50, 2**51),
    requests=st.lists(
        st.builds(RequestCount, TEXT, TEXT, TEXT, COUNTS, COUNTS, COUNTS, st.booleans()),
        max_size=3,
    ),
    rules=st.lists(st.builds(RuleCount, TEXT, TEXT, TEXT, COUNTS, COUNTS, COUNTS), max_size=3),
    dropped=st.builds(Dropped, COUNTS, COUNTS, COUNTS),
)


@given(BATCHES)
def test_what_is_written_is_read(batch: Batch) -> None:
    """Decoding gives back what was encoded, in one line."""
    data = encode(batch)
    assert decode(data) == batch
    assert b"\n" not in data


def test_a_full_batch_is_read_back() -> None:
    """Every field survives; the sums are those of its counts; the estimate is within a factor of two or so."""
    assert decode(encode(FULL)) == FULL
    assert (FULL.decided, FULL.tokens) == (12, 14)
    assert len(encode(FULL)) / 2.5 < size_estimate(FULL) < len(encode(FULL)) * 2.5


def test_fields_of_later_minor_versions_are_ignored() -> None:
    """A reader bears fields that it does not know, at every depth."""
    document: dict[str, Any] = msgspec.json.decode(encode(FULL))
    document["later"] = {"a": [1]}
    document["requests"][0]["later"] = 1
    document["dropped"]["later"] = 1
    assert decode(msgspec.json.encode(document)) == FULL


def test_defaults_may_be_left_out() -> None:
    """The smallest batch says who, when, and nothing else."""
    small = b'{"v":1,"id":"n/1/0","node":"n","at_us":1,"until_us":2}'
    assert decode(small) == Batch(1, "n/1/0", "n", 1, 2)
    assert encode(Batch(1, "n/1/0", "n", 1, 2)) == small


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"v": 2}, "v"),
        ({"v": "1"}, "batch.v"),
        ({"id": ""}, "batch.id"),
        ({"node": "n" * 257}, "batch.node"),
        ({"at_us": -1}, "batch.at_us"),
        ({"until_us": 1}, "batch.until_us"),
        ({"requests": [{"rule": "r"}]}, "batch.requests[0]"),
        (
            {"rules": [{"rule": 1, "outcome": "", "tier": "", "version": 1, "decisions": 1, "tokens": 1}]},
            "batch.rules[0].rule",
        ),
        ({"decisions": [{"at_us": 1, "outcome": "allowed", "sample_rate": 0}]}, "batch.decisions[0].sample_rate"),
        ({"dropped": {"batches": -1}}, "batch.dropped.batches"),
        ({"dropped": {"batches": 2**63}}, "batch.dropped.batches"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], field: str) -> None:
    """Another version and malformed fields are refused with the field's name."""
    document = {**msgspec.json.decode(encode(FULL)), **change}
    with pytest.raises(InvalidRequest) as caught:
        decode(msgspec.json.encode(document))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"\xff", b"{", b"[" * 100_000, b'{"v":1}', b'{"v":1e400}', b'"\xed\xa0\x80"']
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    """Whatever the bytes are, the answer is InvalidRequest."""
    with pytest.raises(InvalidRequest):
        decode(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    """Nothing but InvalidRequest is raised."""
    try:
        decode(b'{"v":1,' + data)
    except InvalidRequest:
        return


def test_a_name_that_is_no_text_costs_nothing_else() -> None:
    """A lone surrogate in a name becomes a question mark; the counts are told all the same."""
    batch = Batch(1, "n/1/0", "n", 1, 2, requests=[RequestCount("a\udcff", DENIED, "", 1, 5, 5)])
    assert decode(encode(batch)).requests == [RequestCount("a?", DENIED, "", 1, 5, 5)]


def test_dropped_adds_up() -> None:
    """Every kind is summed with its own."""
    numbers = range(1, 1 + len(Dropped.__struct_fields__))
    assert sum_dropped(Dropped(*numbers), Dropped(*numbers)) == Dropped(*(2 * number for number in numbers))


def test_the_schema_is_current() -> None:
    """docs/analytics/events.schema.json is what scripts/events_schema makes of the structs."""
    made = runpy.run_path(str(ROOT / "scripts" / "events_schema"))["schema"]()
    assert (ROOT / "docs" / "analytics" / "events.schema.json").read_text() == made, "run scripts/events_schema"


def test_the_page_names_every_field() -> None:
    """docs/analytics/events.md describes every struct and every field, and its example can be read."""
    page = (ROOT / "docs" / "analytics" / "events.md").read_text()
    for kind in (
        Batch,
        RequestCount,
        RuleCount,
        SubjectCount,
        SubjectTotal,
        DecisionSample,
        Demand,
        Admission,
        Watching,
        Dropped,
    ):
        assert kind.__name__ in page
        for name in kind.__struct_fields__:
            assert f"`{name}`" in page, f"{kind.__name__}.{name}"
    example = page.split("```json\n")[1].split("```")[0]
    assert decode(example.encode()).decided > 0
