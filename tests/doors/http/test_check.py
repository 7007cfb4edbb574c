"""``/v1/check``, ``/v1/check/batch`` and ``/v1/refund``: the shapes of questions and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore

Start = Callable[..., Awaitable[Any]]
KEY = "user:8123:POST:/api/v1/shorten"
BUCKET = {"algorithm": "token_bucket", "capacity": 100, "refill_per_sec": 10}


def inline(policy: dict[str, object] | None = None, **members: object) -> dict[str, object]:
    return {"key": KEY, "policy": policy or BUCKET, **members}


async def test_token_bucket_as_documented(server: Any, client: Any) -> None:
    """13 tokens short at 10 a second is full again in 1300 ms; 20 more than there are left pass in 700."""
    answer = await client.check(inline(cost=13))
    assert answer.status == 200
    assert answer.json == {"allowed": True, "remaining": 87, "limit": 100, "reset_ms": 1300, "retry_after_ms": 0}
    assert answer.headers["x-ratelimit-limit"] == "100"
    assert answer.headers["x-ratelimit-remaining"] == "87"
    assert answer.headers["x-ratelimit-reset"] == "2"
    assert answer.headers["x-ratelimit-policy"] == "inline;q=100;w=10;alg=token_bucket"
    assert "retry-after" not in answer.headers
    await client.check(inline(cost=87))
    answer = await client.check(inline(cost=20))
    assert answer.status == 429
    assert answer.json == {
        "allowed": False, "remaining": 0, "limit": 100, "reset_ms": 2000, "retry_after_ms": 2000,
    }  # fmt: skip
    assert answer.headers["retry-after"] == answer.headers["x-ratelimit-reset"] == "2"
    server.clock.advance(1_999_999)
    assert (await client.check(inline(cost=20))).status == 429
    server.clock.advance(1)
    assert (await client.check(inline(cost=20))).status == 200


async def test_headers_and_body_agree(server: Any, client: Any) -> None:
    """P24: header fields and body come from one decision; they never tell different numbers."""
    for wait_us in (0, 30_000, 99_999, 100_000, 1, 777_777) * 4:
        server.clock.advance(wait_us)
        answer = await client.check(inline(cost=29))
        body, headers = answer.json, answer.headers
        assert headers["x-ratelimit-remaining"] == str(body["remaining"])
        assert int(headers["x-ratelimit-reset"]) == -(-body["reset_ms"] // 1000)
        assert headers.get("retry-after") == (None if body["allowed"] else headers["x-ratelimit-reset"])


async def test_times_are_rounded_up(server: Any, client: Any) -> None:
    """Half a millisecond is told as one, and Retry-After is the milliseconds rounded up to seconds."""
    policy = {"algorithm": "token_bucket", "capacity": 1, "refill_per_sec": 0.4}
    await client.check(inline(policy))
    server.clock.advance(499_500)
    answer = await client.check(inline(policy))
    assert (answer.json["reset_ms"], answer.headers["retry-after"]) == (2001, "3")


async def test_decimal_rates_are_exact(server: Any, client: Any) -> None:
    """0.1 a second is one token in ten seconds to the microsecond, and 0.3 three in ten."""
    policy = {"algorithm": "token_bucket", "capacity": 3, "refill_per_sec": 0.1}
    await client.check(inline(policy, cost=3))
    server.clock.advance(9_999_999)
    assert (await client.check(inline(policy))).status == 429
    server.clock.advance(1)
    assert (await client.check(inline(policy))).status == 200
    thirds = {"algorithm": "token_bucket", "capacity": 3, "refill_per_sec": 0.3}
    for _ in range(3):
        assert (await client.check({"key": "other", "policy": thirds})).status == 200
    server.clock.advance(10_000_000)
    for _ in range(3):
        assert (await client.check({"key": "other", "policy": thirds})).status == 200
    assert (await client.check({"key": "other", "policy": thirds})).status == 429


@pytest.mark.parametrize(
    ("policy", "remaining", "reset_ms"),
    [
        ({"algorithm": "sliding_window", "limit": 60, "window_s": 60}, 59, None),
        ({"algorithm": "sliding_window", "limit": 60, "window_s": 60, "strict": True}, 59, None),
        ({"algorithm": "sliding_window", "limit": 60, "window_s": 60, "strict": 12}, 59, None),
        ({"algorithm": "fixed_window", "limit": 60, "window_s": 60}, 59, 40_000),
        ({"algorithm": "fixed_window", "limit": 60, "window_s": 0.5}, 59, 500),
        ({"algorithm": "sliding_log", "limit": 60, "window_s": 60}, 59, 60_000),
        ({"algorithm": "token_bucket", "capacity": 60, "refill_per_sec": 1}, 59, 1_000),
    ],
)
async def test_every_algorithm(client: Any, policy: dict[str, object], remaining: int, reset_ms: int | None) -> None:
    """Each algorithm admits to its limit and then refuses with a time to come back."""
    answer = await client.check(inline(policy))
    assert answer.status == 200
    assert answer.json["remaining"] == remaining
    assert answer.json["limit"] == 60
    assert answer.json["reset_ms"] > 0
    if reset_ms is not None:
        assert answer.json["reset_ms"] == reset_ms
    assert (await client.check(inline(policy, cost=59))).status == 200
    refused = await client.check(inline(policy))
    assert refused.status == 429
    assert refused.json["allowed"] is False
    assert refused.json["reset_ms"] == refused.json["retry_after_ms"] > 0


async def test_leaky_bucket_tells_the_delay(client: Any) -> None:
    """A leaky bucket spaces starts: each answer says how long to hold the request; nodelay lets it go."""
    policy = {"algorithm": "leaky_bucket", "capacity": 3, "refill_per_sec": 2, "max_delay_ms": 5000}
    delays = [(await client.check(inline(policy))).json["delay_ms"] for _ in range(3)]
    assert delays == [0, 500, 1000]
    answer = await client.check(inline(policy))
    assert answer.status == 429
    assert answer.json["delay_ms"] == 0
    policy = {"algorithm": "leaky_bucket", "capacity": 3, "refill_per_sec": 2, "nodelay": True}
    assert [(await client.check({"key": "n", "policy": policy})).json["delay_ms"] for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    "policy",
    [
        {"algorithm": "token_bucket", "capacity": 0},
        {"algorithm": "token_bucket", "capacity": 0, "refill_per_sec": 10},
        {"algorithm": "fixed_window", "limit": 0, "window_s": 60},
    ],
)
async def test_a_limit_of_0_is_a_ban(client: Any, policy: dict[str, object]) -> None:
    """Nothing ever passes a limit of 0, and nobody is told to come back."""
    answer = await client.check(inline(policy))
    assert answer.status == 429
    assert answer.json == {"allowed": False, "remaining": 0, "limit": 0, "reset_ms": 0, "retry_after_ms": None}
    assert "retry-after" not in answer.headers


async def test_cost_above_the_capacity_never_passes(client: Any) -> None:
    """A cost that can never fit is refused without a time, and costs nothing."""
    answer = await client.check(inline(cost=101))
    assert answer.status == 429
    assert answer.json == {"allowed": False, "remaining": 100, "limit": 100, "reset_ms": 0, "retry_after_ms": None}
    assert "retry-after" not in answer.headers
    assert (await client.check(inline(cost=100))).status == 200


async def test_counter_is_key_algorithm_and_shape(client: Any) -> None:
    """Numbers do not start a new counter; another key, algorithm or window length does."""
    assert (await client.check(inline(cost=40))).json["remaining"] == 60
    larger = {"algorithm": "token_bucket", "capacity": 200, "refill_per_sec": 20}
    assert (await client.check(inline(larger, cost=10))).json["remaining"] == 150
    assert (await client.check({"key": "another", "policy": BUCKET})).json["remaining"] == 99
    minute = {"algorithm": "fixed_window", "limit": 100, "window_s": 60}
    hour = {"algorithm": "fixed_window", "limit": 100, "window_s": 3600}
    assert (await client.check(inline(minute))).json["remaining"] == 99
    assert (await client.check(inline(hour))).json["remaining"] == 99


async def test_inline_counters_are_apart_from_rules(start: Start) -> None:
    """T17: a rule named like the inline policy does not share its counters."""
    server = await start(rules="version: 1\nrules: [{name: inline, per: [attrs.key], quota: 3/minute}]")
    client = await server.connect()
    for _ in range(3):
        assert (await client.check({"facts": {"attrs": {"key": "a"}}})).status == 200
    policy = {"algorithm": "token_bucket", "capacity": 3, "refill_per_sec": 0.05}
    assert (await client.check({"key": "a", "policy": policy})).json["remaining"] == 2


async def test_keys_that_look_alike_are_apart(client: Any) -> None:
    """P92: escapes, separators, non-ASCII and long keys each have their own counter."""
    one = {"algorithm": "fixed_window", "limit": 1, "window_s": 3600}
    keys = ["a", "a|b", "a%7Cb", "A", "a ", "{a}", "ä", "a" * 1024, "a" * 1023, "é" * 512, "\x00", "a\n", "😀"]
    for key in keys:
        assert (await client.check({"key": key, "policy": one})).status == 200, key
    for key in keys:
        assert (await client.check({"key": key, "policy": one})).status == 429, key


async def test_peek_charges_nothing(server: Any, client: Any) -> None:
    """T10: a peek is 200 whatever it finds, charges nothing and creates no counter; cost 0 is for peeks."""
    for cost in (0, 1, 100):
        answer = await client.check(inline(cost=cost, peek=True))
        assert answer.status == 200
        assert answer.json["allowed"] is True
        assert answer.json["remaining"] == 100
    assert len(server.limiter.store) == 0
    await client.check(inline(cost=95))
    answer = await client.check(inline(cost=10, peek=True))
    assert answer.status == 200
    assert answer.json == {"allowed": False, "remaining": 5, "limit": 100, "reset_ms": 500, "retry_after_ms": 500}
    assert (await client.check(inline(cost=5))).status == 200


async def test_receipt_is_good_once(client: Any) -> None:
    """A receipt gives the charge back once; after that, and for unknown ids, the answer is 404."""
    answer = await client.check(inline(cost=30, receipt=True))
    decision_id = answer.json["decision_id"]
    refund = await client.post("/v1/refund", {"decision_id": decision_id})
    assert (refund.status, refund.json) == (200, {"refunded": 1})
    assert (await client.check(inline(cost=0, peek=True))).json["remaining"] == 100
    for unknown in (decision_id, "nonsense", "x" * 1024):
        refund = await client.post("/v1/refund", {"decision_id": unknown})
        assert refund.status == 404
        assert refund.json["errors"][0]["pointer"] == "#/decision_id"
    assert (await client.check(inline(cost=0, peek=True))).json["remaining"] == 100


async def test_refusal_has_no_receipt(client: Any) -> None:
    """Where nothing was charged there is nothing to give back."""
    answer = await client.check(inline(cost=101, receipt=True))
    assert answer.json["decision_id"] is None


async def test_facts_are_decided_by_the_rules(server: Any, client: Any) -> None:
    """Facts answer with the rule, every rule's result, the version and the wait; a refusal charges nobody."""
    facts = {"method": "POST", "path": "/login", "ip": "203.0.113.9", "user": "8123", "api_key": "k1", "tier": "paid"}
    answer = await client.check({"facts": facts, "cost": 1})
    assert answer.status == 200
    got = answer.json
    assert (got["allowed"], got["rule"], got["remaining"], got["limit"]) == (True, "login", 4, 5)
    assert (got["reset_ms"], got["retry_after_ms"], got["version"], got["degraded"]) == (40_000, 0, 1, False)
    assert got["rules"] == [
        {"rule": "everything", "outcome": "allowed", "limit": 1000, "remaining": 999, "retry_after_ms": 0},
        {"rule": "login", "outcome": "allowed", "limit": 5, "remaining": 4, "retry_after_ms": 0},
    ]
    assert "decision_id" not in got
    assert answer.headers["x-ratelimit-policy"] == "login;q=5;w=60;alg=fixed_window"
    assert (await client.check({"facts": facts, "cost": 4})).status == 200
    refused = await client.check({"facts": facts})
    assert refused.status == 429
    assert refused.headers["retry-after"] == refused.headers["x-ratelimit-reset"] == "40"
    assert (refused.json["rule"], refused.json["outcome"], refused.json["retry_after_ms"]) == (
        "login",
        "denied",
        40_000,
    )
    everything = refused.json["rules"][0]
    assert (everything["rule"], everything["remaining"]) == ("everything", 995), "T05: a refusal charges nobody"


async def test_tier_and_shadow(client: Any) -> None:
    """T72: the tier picks the quota, and a shadow rule is reported and refuses nobody."""
    facts = {"method": "GET", "path": "/api/x", "ip": "203.0.113.9", "api_key": "k1"}
    assert (await client.check({"facts": facts})).json["limit"] == 10
    answer = await client.check({"facts": {**facts, "tier": "paid"}})
    assert answer.status == 200
    assert answer.json["limit"] == 100
    (shadow,) = [rule for rule in answer.json["rules"] if rule["rule"] == "watched"]
    assert (shadow["outcome"], shadow["shadow"]) == ("denied", True)


async def test_facts_without_a_matching_rule(start: Start) -> None:
    """Where no rule matches the request is allowed, without headers and with nulls."""
    server = await start(rules="version: 1\nrules: [{name: a, match: {path: /a}, per: [ip], quota: 1/minute}]")
    client = await server.connect()
    answer = await client.check({"facts": {"path": "/b", "ip": "192.0.2.1"}})
    assert answer.status == 200
    assert (answer.json["rule"], answer.json["limit"], answer.json["remaining"], answer.json["rules"]) == (
        None, None, None, [],
    )  # fmt: skip
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_leaky_rule_and_banned_rule(client: Any) -> None:
    """A leaky rule tells the delay, a quota of 0 refuses for good."""
    queue = {"facts": {"method": "GET", "path": "/queue", "ip": "192.0.2.1"}}
    assert [(await client.check(queue)).json["delay_ms"] for _ in range(2)] == [0, 500]
    answer = await client.check({"facts": {"method": "GET", "path": "/banned", "ip": "192.0.2.1"}})
    assert (answer.status, answer.json["outcome"], answer.json["retry_after_ms"]) == (429, "never_fits", None)
    assert "retry-after" not in answer.headers


async def test_receipt_of_facts(client: Any) -> None:
    """A refund of a decision by rules gives back every rule's charge."""
    facts = {"method": "POST", "path": "/login", "ip": "192.0.2.1"}
    answer = await client.check({"facts": facts, "cost": 5, "receipt": True})
    refund = await client.post("/v1/refund", {"decision_id": answer.json["decision_id"]})
    assert refund.json == {"refunded": 2}
    assert (await client.check({"facts": facts, "cost": 5})).status == 200


async def test_other_header_dialects(start: Start) -> None:
    """The chosen dialect is used for inline checks and facts alike."""
    server = await start(headers="ietf,x-ratelimit-epoch")
    client = await server.connect()
    for _ in range(2):
        answer = await client.check(inline(cost=13))
        assert answer.headers["ratelimit-policy"] == '"inline";q=100;w=10'
    assert answer.headers["ratelimit"] == '"inline";r=74;t=8'
    assert answer.headers["x-ratelimit-reset"] == "1700000003"
    answer = await client.check({"facts": {"method": "POST", "path": "/login", "ip": "192.0.2.1"}})
    assert answer.headers["ratelimit-policy"] == '"everything";q=1000;w=1, "login";q=5;w=60'
    server = await start(headers="off")
    client = await server.connect()
    answer = await client.check(inline(cost=101))
    assert not [name for name in answer.headers if "ratelimit" in name or name == "retry-after"]
    await client.check(inline(cost=100))
    assert (await client.check(inline())).headers["retry-after"] == "1"


CLOSED = """
version: 1
rules:
  - {name: strict, match: {path: /pay}, per: [ip], quota: 5/minute, on_store_failure: closed}
  - {name: lax, match: {path: /read}, per: [ip], quota: 5/minute, on_store_failure: open}
"""


class BreakableStore(MemoryStore):
    """A store whose deciding calls fail while ``down``."""

    __slots__ = ("down",)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.down = False

    def _fail(self) -> None:
        if self.down:
            raise StoreError("out of reach")

    def decide(self, *args: Any, **options: Any) -> Any:
        self._fail()
        return super().decide(*args, **options)

    def decide_one(self, *args: Any, **options: Any) -> Any:
        self._fail()
        return super().decide_one(*args, **options)

    def decide_singles(self, *args: Any, **options: Any) -> Any:
        self._fail()
        return super().decide_singles(*args, **options)

    def decide_alike(self, *args: Any, **options: Any) -> Any:
        self._fail()
        return super().decide_alike(*args, **options)


async def test_store_failure_is_503_only_where_a_rule_says_closed(start: Start) -> None:
    """T74: a closed rule answers 503 with Retry-After as a problem; open and inline checks go on, degraded."""
    clock = ManualClock()
    store = BreakableStore(clock)
    server = await start(limiter=Limiter.from_rules(load_rules(CLOSED, "r.yaml"), store, clock))
    client = await server.connect()
    pay, read = {"facts": {"path": "/pay", "ip": "192.0.2.1"}}, {"facts": {"path": "/read", "ip": "192.0.2.1"}}
    assert (await client.check(pay)).status == 200
    store.down = True
    answer = await client.check(pay)
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["violated-policies"] == ["strict"]
    answer = await client.check(read)
    assert (answer.status, answer.json["degraded"]) == (200, True)
    answer = await client.check(inline())
    assert (answer.status, answer.json["degraded"]) == (200, True)
    items = (await client.post("/v1/check/batch", [pay, read, inline()])).json
    assert [item["status"] for item in items] == [503, 200, 200]
    assert items[2]["degraded"] is True


async def test_batch_answers_in_order_one_status_each(client: Any) -> None:
    """Items are decided in order, each charged before the next; a bad one has its own problem and spoils no other."""
    one = {"algorithm": "fixed_window", "limit": 2, "window_s": 60}
    facts = {"facts": {"method": "POST", "path": "/login", "ip": "192.0.2.1"}}
    items = [
        {"key": "a", "policy": one},
        {"key": "a", "policy": one, "cost": -1},
        {"key": "a", "policy": one, "peek": True},
        {"key": "a", "policy": one},
        {"key": "a", "policy": one},
        facts,
        "nonsense",
        {"key": "b", "policy": one, "receipt": True},
        {"key": "a", "policy": one, "cost": 3},
    ]
    answer = await client.post("/v1/check/batch", items)
    assert answer.status == 200
    got = answer.json
    assert [item["status"] for item in got] == [200, 400, 200, 200, 429, 200, 400, 200, 429]
    assert [item.get("remaining") for item in got] == [1, None, 1, 0, 0, 4, None, 1, 0]
    assert got[0] == {
        "status": 200,
        "allowed": True,
        "remaining": 1,
        "limit": 2,
        "reset_ms": 40_000,
        "retry_after_ms": 0,
    }
    assert got[1]["errors"][0]["pointer"] == "#/cost"
    assert got[5]["rule"] == "login"
    assert got[6]["errors"][0]["pointer"] == "#"
    assert got[7]["decision_id"]
    assert got[8]["retry_after_ms"] is None
    assert "x-ratelimit-limit" not in answer.headers


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " : ")])
async def test_batch_is_the_same_however_it_is_written(client: Any, separators: tuple[str, str]) -> None:
    """White space between items and members, the order of members and repeated bodies make no difference."""
    items = [
        {"key": "a},{b", "cost": 1, "policy": BUCKET},
        {"policy": BUCKET, "cost": 2, "key": 'c"}}, {{"d'},
        {"key": "plain", "policy": BUCKET},
        {"facts": {"method": "GET", "path": "/api/},{", "ip": "192.0.2.1"}},
    ]
    body = json.dumps(items, separators=separators).encode()
    for round_ in range(3):
        got = (await client.post("/v1/check/batch", body)).json
        assert [item["status"] for item in got] == [200] * 4
        assert [item["remaining"] for item in got] == [99 - round_, 98 - 2 * round_, 99 - round_, 9 - round_]


async def test_batch_of_nothing_and_of_too_much(client: Any) -> None:
    """An empty batch is an empty answer; 1,000 items are taken and 1,001 refused with nothing charged."""
    assert (await client.post("/v1/check/batch", [])).json == []
    full = [inline({"algorithm": "fixed_window", "limit": 2000, "window_s": 60})] * 1000
    got = (await client.post("/v1/check/batch", full)).json
    assert len(got) == 1000
    # Not compared as lists: the report of a difference would take longer than anybody waits.
    assert [at for at, item in enumerate(got) if item.get("remaining") != 1999 - at][:3] == []
    answer = await client.post("/v1/check/batch", [*full, full[0]])
    assert answer.status == 400
    assert "1000" in answer.json["detail"]
    assert (await client.check(full[0])).json["remaining"] == 999


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", b"[", b"[{}", b"[{}]]", b"[{},]", b"[\xff]", b"\xef\xbb\xbf[]", b"1"]
)
async def test_batch_that_is_no_array(client: Any, body: bytes) -> None:
    """What is no JSON array is one 400 for the whole request."""
    answer = await client.post("/v1/check/batch", body)
    assert answer.status == 400
    assert answer.json["errors"][0]["pointer"] == "#"
    assert (await client.check(inline())).status == 200


async def test_many_threads_of_clients_share_one_count(server: Any) -> None:
    """T24: 20 connections at once, limit 50 of a window: exactly 50 of 400 pass."""
    policy = {"algorithm": "fixed_window", "limit": 50, "window_s": 60}
    clients = [await server.connect() for _ in range(20)]

    async def ask(client: Any) -> int:
        return sum([(await client.check(inline(policy))).status == 200 for _ in range(20)])

    assert sum(await asyncio.gather(*map(ask, clients))) == 50


async def test_stats_count_routes_statuses_and_faults(server: Any, client: Any) -> None:
    """The door's counters say what was asked, by route and status, and why requests were bad."""
    await client.check(inline())
    await client.check(inline(cost=101))
    await client.check(inline(cost=-1))
    await client.check(b"{")
    await client.post("/v1/check/batch", [inline(), inline(cost=-1)])
    stats = server.stats
    assert stats.requests["/v1/check"] == {200: 1, 429: 1, 400: 2}
    assert stats.requests["/v1/check/batch"] == {200: 1}
    assert stats.batch_items == 2
    assert stats.bad_requests == {"head": 0, "body": 0, "too_large": 0, "json": 1, "field": 2}
    assert stats.bytes_in > 0
    assert stats.bytes_out > 0


async def test_limiter_counts_inline_checks_in_every_way_of_asking(server: Any, client: Any) -> None:
    """Single, batched, and batched in a known shape: passes, refusals and costs that never fit are all counted."""
    policy = {"algorithm": "token_bucket", "capacity": 2, "refill_per_sec": 0.001}
    for _ in range(3):
        await client.check({"key": "single", "policy": policy})
    await client.check({"key": "single", "policy": policy, "cost": 3})
    for round_ in range(4):
        for cost in (1, 3):
            items = [{"key": f"{name}{round_}", "policy": policy, "cost": cost} for name in "aaab"]
            got = (await client.post("/v1/check/batch", items)).json
            assert [item["status"] for item in got] == ([200, 200, 429, 200] if cost == 1 else [429] * 4)
    assert server.limiter.stats.decisions == {
        ("", "allowed"): 2 + 4 * 3,
        ("inline", "denied"): 1 + 4,
        ("inline", "never_fits"): 1 + 4 * 4,
    }
