"""Reading batches without parsing them: never anything but what a JSON parser reads."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.bounds import BATCH_MAX, TEMPLATES_MAX
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.policies import InlinePolicies, InlinePolicy
from sluicegate.doors.http.schema import Checks, PlainCheck
from sluicegate.doors.http.templates import PlainBatch

POLICIES = (
    {"algorithm": "token_bucket", "capacity": 100, "refill_per_sec": 10},
    {"algorithm": "fixed_window", "limit": 5, "window_s": 60},
)
Plain = tuple[InlinePolicy, str, int]


def fresh() -> Checks:
    return Checks(InlinePolicies(RateHeaders(), "default"))


def flat(batch: PlainBatch | list[PlainCheck]) -> list[Plain]:
    if isinstance(batch, PlainBatch):
        return [(batch.policy, key, batch.cost) for key in batch.keys]
    return [(check.policy, check.key, check.cost) for check in batch]


def parsed(checks: Checks, body: bytes) -> list[Plain]:
    """What a JSON parser and a check by itself make of the batch; fails unless all items are plain."""
    found = []
    for item in json.loads(body):
        check = checks.read(json.dumps(item).encode())
        assert isinstance(check, PlainCheck)
        found.append((check.policy, check.key, check.cost))
    return found


FRAGMENTS = [
    '"', "\\", "{", "}", "},{", "}, {", '"},{"key":"', '","cost":1,"policy":{', '"key":"', "a", "é", "\\u0041", " ", "\n", "[", "]", ",",
    '{"algorithm":"token_bucket","capacity":100,"refill_per_sec":10}', '"cost":2', '"key":"b"',
]  # fmt: skip
keys = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join)
items = st.builds(
    lambda key, cost, policy, order: {
        name: {"key": key, "cost": cost, "policy": policy}[name]
        for name in (("key", "cost", "policy"), ("policy", "cost", "key"), ("cost", "key", "policy"))[order]
    },
    keys,
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([POLICIES[0], POLICIES[0], POLICIES[1]]),
    st.sampled_from([0, 0, 0, 1, 2]),
)


@settings(max_examples=200)
@given(
    batches=st.lists(st.lists(items, min_size=1, max_size=5), min_size=1, max_size=6),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_written_batches_are_read_as_json(batches: list[list[dict[str, object]]], separators: tuple[str, str]) -> None:
    """Whatever the keys, a batch that is read without parsing means what JSON says; each is asked three times."""
    checks = fresh()
    for _ in range(3):
        for batch in batches:
            body = json.dumps(batch, separators=separators, ensure_ascii=False).encode()
            got = checks.read_batch(body)
            if got is not None:
                assert flat(got) == parsed(checks, body)


pieces = st.sampled_from(
    [b"[", b"]", b"{", b"}", b"},{", b"}, {", b",", b'{"key":"', b'"', b'","cost":1,"policy":', b'","policy":', b'"a', b"a", b"b", b"\\", b"\xff",
     json.dumps(POLICIES[0], separators=(",", ":")).encode(), b'{"key":"a","cost":1,"policy":',
     b'{"key":"a","policy":{"algorithm":"token_bucket","capacity":100,"refill_per_sec":10}}']
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.lists(pieces, max_size=14).map(b"".join), max_size=6))
def test_broken_batches_are_never_read_as_whole_ones(bodies: list[bytes]) -> None:
    """A body that is no JSON array of plain checks is never taken for one, also where its shapes are known."""
    checks = fresh()
    item = b'{"key":"%s","policy":{"algorithm":"token_bucket","capacity":100,"refill_per_sec":10}}'
    for _ in range(3):
        assert checks.read_batch(b"[" + item % b"x" + b"," + item % b"y" + b"]") is not None
    for body in bodies:
        for candidate in (body, b"[" + item % body + b"]", b"[" + item % b"x" + b"," + item % body + b"]"):
            got = checks.read_batch(candidate)
            if got is not None:
                assert flat(got) == parsed(checks, candidate)


def batch_of(count: int, policy: dict[str, object], *, cost: int = 1) -> bytes:
    return json.dumps(
        [{"key": f"k{i}", "cost": cost, "policy": policy} for i in range(count)], separators=(",", ":")
    ).encode()


def test_a_shape_is_learned_when_it_comes_twice_in_a_row() -> None:
    """The third batch of a shape is read by its keys alone, also with new keys in it; shapes that alternate are not."""
    checks = fresh()
    for size in (4, 5):
        assert isinstance(checks.read_batch(batch_of(size, POLICIES[0])), list)
    got = checks.read_batch(batch_of(9, POLICIES[0]))
    assert isinstance(got, PlainBatch)
    assert len(got.keys) == 9
    for size in (4, 5, 6):
        assert isinstance(checks.read_batch(batch_of(size, POLICIES[1])), list | PlainBatch)
        assert isinstance(checks.read_batch(batch_of(size, POLICIES[1], cost=2)), list)


def test_shapes_are_bounded() -> None:
    """Ever new shapes push out old ones."""
    checks = fresh()
    for cost in range(1, 20):
        for _ in range(3):
            checks.read_batch(batch_of(3, POLICIES[0], cost=cost))
    assert len(checks._templates._known) == TEMPLATES_MAX


def test_size_of_a_batch_is_bounded_in_every_way_of_reading() -> None:
    """A batch of one item too many is left to the parser, which refuses it."""
    checks = fresh()
    for _ in range(4):
        got = checks.read_batch(batch_of(BATCH_MAX, POLICIES[0]))
        assert got is not None
        assert len(flat(got)) == BATCH_MAX
        assert checks.read_batch(batch_of(BATCH_MAX + 1, POLICIES[0])) is None


def test_items_that_are_not_plain_are_left_to_the_parser() -> None:
    """Peeks, receipts, facts and faults are never read by their text alone."""
    checks = fresh()
    good = {"key": "a", "policy": POLICIES[0]}
    for bad in ({**good, "peek": True}, {**good, "receipt": True}, {"facts": {"path": "/"}}, {**good, "cost": -1}, {}):
        for _ in range(3):
            body = json.dumps([good, good, bad], separators=(",", ":")).encode()
            assert checks.read_batch(body) is None
