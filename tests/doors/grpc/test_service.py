"""What a RateLimitRequest comes to, by rules with and without a domain; the clock stands still."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore

Make = Callable[..., Any]

RULES = """
version: 1
rules:
  - {name: floor, quota: 1000/second}
  - {name: per-key, match: {domain: edge}, per: [descriptor.api_key], quota: 5/minute}
"""
QUEUE_AND_BUCKET = """
version: 1
rules:
  - {name: queue, match: {domain: edge}, per: [descriptor.q], quota: 1/second burst 5, algorithm: leaky_bucket}
  - {name: bucket, match: {domain: edge}, per: [descriptor.k], quota: 5/minute}
"""
OK, OVER = 1, 2


def codes(answer: Any) -> list[int]:
    """The overall code, then those of the descriptors."""
    return [answer.overall_code, *(status.code for status in answer.statuses)]


def fields(answer: Any) -> dict[str, str]:
    """The header fields for the client."""
    return {header.key: header.value for header in answer.response_headers_to_add}


def left(answer: Any) -> list[int]:
    """What each descriptor has left."""
    return [status.limit_remaining for status in answer.statuses]


async def test_one_descriptor(bench: Make) -> None:
    """The status tells of the rule: limit, unit, name, what remains, and when it is full again in whole seconds."""
    services = bench()
    answer = await services.ask("api_key=a")
    (status,) = answer.statuses
    limit = status.current_limit
    assert codes(answer) == [OK, OK]
    assert (limit.requests_per_unit, limit.unit, limit.name) == (5, 2, "per-key")
    assert (status.limit_remaining, status.duration_until_reset.seconds, status.duration_until_reset.nanos) == (
        4,
        12,
        0,
    )
    assert fields(answer) == {
        "x-ratelimit-limit": "5",
        "x-ratelimit-remaining": "4",
        "x-ratelimit-reset": "12",
        "x-ratelimit-policy": "per-key;q=5;w=60;alg=token_bucket",
    }
    assert dict(answer.dynamic_metadata) == {"rule": "per-key", "outcome": "allowed"}
    assert answer.raw_body == b""


async def test_refusal(bench: Make) -> None:
    """A refusal has Retry-After, reset equal to it, and a problem document as its body. # T69"""
    services = bench()
    for _ in range(5):
        await services.ask("api_key=a")
    answer = await services.ask("api_key=a")
    assert codes(answer) == [OVER, OVER]
    assert left(answer) == [0]
    told = fields(answer)
    assert (
        told["retry-after"] == told["x-ratelimit-reset"] == str(answer.statuses[0].duration_until_reset.seconds) == "12"
    )
    assert told["content-type"] == "application/problem+json"
    assert json.loads(answer.raw_body)["violated-policies"] == ["per-key"]
    assert dict(answer.dynamic_metadata) == {"rule": "per-key", "outcome": "denied"}
    services.clock.advance(11_999_999)
    assert codes(await services.ask("api_key=a")) == [OVER, OVER]
    services.clock.advance(1)
    assert codes(await services.ask("api_key=a")) == [OK, OK]


async def test_other_values_have_other_counters(bench: Make) -> None:
    """Each value of ``per`` counts by itself; a descriptor that no rule matches is OK without a limit."""
    services = bench()
    await services.ask("api_key=a", hits=5)
    assert codes(await services.ask("api_key=a")) == [OVER, OVER]
    answer = await services.ask("api_key=b")
    assert (codes(answer), left(answer)) == ([OK, OK], [4])
    answer = await services.ask("colour=red")
    assert codes(answer) == [OK, OK]
    assert not answer.statuses[0].HasField("current_limit")
    assert fields(answer)["x-ratelimit-policy"].startswith("floor;")
    assert codes(await services.ask("api_key=a", domain="elsewhere")) == [OK, OK]


async def test_all_or_nothing(bench: Make) -> None:
    """Where one descriptor refuses, no counter of the request is charged, and the others say what they have. # T01"""
    services = bench()
    await services.ask("api_key=a", hits=5)
    answer = await services.ask("api_key=a", "route=login ip=1", "api_key=b")
    assert codes(answer) == [OVER, OVER, OK, OK]
    assert left(answer) == [0, 2, 5]
    assert left(await services.ask("route=login ip=1", "api_key=b")) == [1, 4]


async def test_a_refused_cost_leaves_what_there_is(bench: Make) -> None:
    """A request for more than is left is refused, and what is left stays; one above the limit can never pass. # T08"""
    services = bench()
    await services.ask("api_key=a", hits=3)
    answer = await services.ask("api_key=a", hits=3)
    assert (codes(answer), left(answer)) == ([OVER, OVER], [2])
    assert codes(await services.ask("api_key=a", hits=2)) == [OK, OK]
    answer = await services.ask("api_key=b", hits=6)
    assert codes(answer) == [OVER, OVER]
    assert "retry-after" not in fields(answer)


async def test_one_counter_of_several_descriptors(bench: Make) -> None:
    """Descriptors on one counter charge it once, with the sum of their hits: both fit or neither."""
    services = bench()
    two = ("api_key=a", services.descriptor("api_key=a other=x", hits_addend={"value": 2}))
    assert (codes(await services.ask(*two)), left(await services.ask("api_key=a"))) == ([OK, OK, OK], [1])
    answer = await services.ask("api_key=a", "api_key=a other=x")
    assert codes(answer) == [OVER, OVER, OVER]
    assert left(await services.ask("api_key=a")) == [0]


async def test_rules_without_a_domain_apply_once(bench: Make) -> None:
    """They charge a request once however many descriptors it has, count in the overall code and stand in no status."""
    rules = """
version: 1
rules:
  - {name: floor, quota: 3/minute}
  - {name: per-key, match: {domain: edge}, per: [descriptor.api_key], quota: 100/minute}
"""
    services = bench(rules)
    answer = await services.ask("api_key=a", "api_key=b", "api_key=c")
    assert fields(answer)["x-ratelimit-remaining"] == "2"
    assert [status.current_limit.name for status in answer.statuses] == ["per-key"] * 3
    await services.ask("api_key=a", hits=2)
    answer = await services.ask("api_key=a")
    assert codes(answer) == [OVER, OK]
    assert left(answer) == [97]
    assert fields(answer)["x-ratelimit-policy"].startswith("floor;")


async def test_rules_without_a_domain_see_all_entries(bench: Make) -> None:
    """To them the entries of all descriptors are one set of facts, of which the first with a key counts."""
    rules = "version: 1\nrules:\n  - {name: who, per: [descriptor.user, descriptor.ip], quota: 2/minute}\n"
    services = bench(rules)
    for _ in range(2):
        assert codes(await services.ask("user=a", "ip=1 user=b")) == [OK, OK, OK]
    assert codes(await services.ask("ip=1", "user=a")) == [OVER, OK, OK]
    assert codes(await services.ask("user=b", "ip=1")) == [OK, OK, OK]


async def test_the_first_rule_that_refuses_is_told(bench: Make) -> None:
    """Of several rules in one descriptor the status is of the first that refuses, the wait of the header the longest. # T68"""
    rules = """
version: 1
rules:
  - {name: fast, match: {domain: edge}, per: [descriptor.k], quota: 5/minute}
  - {name: slow, match: {domain: edge}, per: [descriptor.k], quota: 100000/year}
"""
    services = bench(rules)
    for _ in range(5):
        await services.ask("k=1")
    answer = await services.ask("k=1")
    assert answer.statuses[0].current_limit.name == "fast"
    assert int(fields(answer)["x-ratelimit-reset"]) <= 60


async def test_units(bench: Make) -> None:
    """Every unit of the protocol is told; a window that is none of them, and a burst, have no ``current_limit``. # T56"""
    quotas = ["1/second", "1/minute", "1/hour", "1/day", "1/month", "1/year", "1/week", "1/10s", "1/second burst 5"]
    rules = "version: 1\nrules:\n" + "".join(
        f"  - {{name: r{i}, match: {{domain: edge, descriptors: {{n: '{i}'}}}}, per: [descriptor.k], quota: '{quota}'}}\n"
        for i, quota in enumerate(quotas)
    )
    services = bench(rules)
    answer = await services.ask(*(f"n={i} k=1" for i in range(len(quotas))))
    assert [status.current_limit.unit for status in answer.statuses] == [1, 2, 3, 4, 5, 6, 7, 0, 0]
    assert [status.HasField("current_limit") for status in answer.statuses] == [True] * 7 + [False] * 2
    assert answer.statuses[8].limit_remaining == 4


async def test_large_numbers_are_told_as_the_largest(bench: Make) -> None:
    """A limit or remaining beyond 32 bits is told as the largest number there is."""
    rules = (
        "version: 1\nrules:\n  - {name: big, match: {domain: edge}, quota: 5000000000/day, algorithm: fixed_window}\n"
    )
    (status,) = (await bench(rules).ask("k=1")).statuses
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (2**32 - 1, 2**32 - 1)


async def test_hits(bench: Make) -> None:
    """On the request 0 is 1; a descriptor's own number counts instead of the request's."""
    services = bench()
    assert left(await services.ask("api_key=a", hits=0)) == [4]
    assert left(await services.ask("api_key=b", hits=3)) == [2]
    own = services.descriptor("api_key=c", hits_addend={"value": 2})
    assert left(await services.ask(own, "api_key=d", hits=3)) == [3, 2]


async def test_looking(bench: Make) -> None:
    """Hits of 0 in a descriptor charge nothing and create nothing, and say whether one more would pass. # T10"""
    services = bench()
    look = services.descriptor("api_key=a", hits_addend={"value": 0})
    answer = await services.ask(look)
    assert (codes(answer), left(answer)) == ([OK, OK], [5])
    assert len(services.limiter.store) == 0
    await services.ask("api_key=a", hits=5)
    answer = await services.ask(look)
    assert (codes(answer), left(answer)) == ([OVER, OVER], [0])
    assert answer.statuses[0].duration_until_reset.seconds == 12


async def test_a_look_that_refuses_keeps_the_rest_from_being_charged(bench: Make) -> None:
    """In a request that looks and charges, the look comes first; each descriptor says how its own counter stands."""
    services = bench()
    look = services.descriptor("api_key=a", hits_addend={"value": 0})
    answer = await services.ask(look, "api_key=b")
    assert (codes(answer), left(answer)) == ([OK, OK, OK], [5, 4])
    await services.ask("api_key=a", hits=5)
    answer = await services.ask(look, "api_key=b")
    assert (codes(answer), left(answer)) == ([OVER, OVER, OK], [0, 4])


async def test_giving_back(bench: Make) -> None:
    """Negative hits give back, never more than is used, never create a counter, and are never over the limit. # T12"""
    services = bench()
    back = services.descriptor("api_key=a", hits_addend={"value": 2}, is_negative_hits=True)
    answer = await services.ask(back)
    assert (codes(answer), left(answer), len(services.limiter.store)) == ([OK, OK], [5], 0)
    await services.ask("api_key=a", hits=5)
    assert codes(await services.ask("api_key=a")) == [OVER, OVER]
    answer = await services.ask(back)
    assert (codes(answer), left(answer)) == ([OK, OK], [2])
    assert left(await services.ask("api_key=a")) == [1]
    many = services.descriptor("api_key=a", hits_addend={"value": 1000}, is_negative_hits=True)
    assert left(await services.ask(many)) == [5]
    assert services.limiter.stats.refunds == 3


async def test_giving_back_what_is_still_used_up(bench: Make) -> None:
    """A descriptor that gives back to a counter with nothing left is OK all the same, beside one that is refused. # T12"""
    services = bench()
    await services.ask("api_key=a", "route=login ip=1", hits=2)
    back = services.descriptor("route=login ip=2", is_negative_hits=True)
    answer = await services.ask(back, "route=login ip=1")
    assert codes(answer) == [OVER, OK, OVER]


async def test_giving_back_counts_at_once(bench: Make) -> None:
    """What is given back can be used by the next request, whoever refused before: nothing remembers a refusal. # T13"""
    services = bench()
    await services.ask("route=login ip=1", hits=2)
    assert codes(await services.ask("route=login ip=1")) == [OVER, OVER]
    await services.ask(services.descriptor("route=login ip=1", is_negative_hits=True))
    assert codes(await services.ask("route=login ip=1")) == [OK, OK]


async def test_limits_that_come_along(bench: Make) -> None:
    """A limit in the descriptor is counted instead of the domain's rules, by itself: other numbers are another counter."""
    services = bench()
    small = services.descriptor("api_key=a", limit={"requests_per_unit": 2, "unit": 2})
    large = services.descriptor("api_key=a", limit={"requests_per_unit": 7, "unit": 3})
    answer = await services.ask(small)
    limit = answer.statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit, left(answer)) == (2, 2, [1])
    assert fields(answer)["x-ratelimit-policy"] == "override;q=2;w=60;alg=token_bucket"
    await services.ask(small)
    assert codes(await services.ask(small)) == [OVER, OVER]
    assert left(await services.ask(large)) == [6]
    assert left(await services.ask("api_key=a")) == [4]
    assert left(await services.ask(services.descriptor("api_key=b", limit={"requests_per_unit": 2, "unit": 2}))) == [1]
    banned = services.descriptor("api_key=a", limit={"requests_per_unit": 0, "unit": 1})
    assert codes(await services.ask(banned)) == [OVER, OVER]


async def test_shadow_rules(bench: Make) -> None:
    """A shadow rule refuses nobody and stands in no status; the metadata says what it would have done. # T72"""
    rules = """
version: 1
rules:
  - {name: shy, match: {domain: edge}, per: [descriptor.k], quota: 1/minute, mode: shadow}
  - {name: real, match: {domain: edge}, per: [descriptor.k], quota: 9/minute}
"""
    services = bench(rules)
    await services.ask("k=1")
    answer = await services.ask("k=1")
    assert codes(answer) == [OK, OK]
    assert answer.statuses[0].current_limit.name == "real"
    assert list(answer.dynamic_metadata["shadow_refused"]) == ["shy"]
    assert answer.dynamic_metadata["outcome"] == "allowed"


async def test_a_dimension_that_is_missing(bench: Make) -> None:
    """``on_missing: deny`` refuses the descriptor that lacks the entry, and with it the request; nothing is charged."""
    rules = """
version: 1
rules:
  - {name: strict, match: {domain: edge}, per: {first_of: [descriptor.k], on_missing: deny}, quota: 9/minute}
"""
    services = bench(rules)
    answer = await services.ask("k=1", "other=1")
    assert codes(answer) == [OVER, OK, OVER]
    assert left(await services.ask("k=1")) == [8]


async def test_leaky_buckets_are_not_waited_for(bench: Make) -> None:
    """A request that would have to wait is refused with its wait, and takes no place in the queue."""
    rules = "version: 1\nrules:\n  - {name: queue, match: {domain: edge}, quota: 1/second, algorithm: leaky_bucket}\n"
    services = bench(rules)
    assert codes(await services.ask("k=1")) == [OK, OK]
    for _ in range(3):
        answer = await services.ask("k=1")
        assert codes(answer) == [OVER, OVER]
        assert answer.statuses[0].duration_until_reset.seconds == 1
        assert fields(answer)["retry-after"] == "1"
    services.clock.advance(1_000_000)
    assert codes(await services.ask("k=1")) == [OK, OK]


async def test_a_charge_that_would_wait_beside_a_look(bench: Make) -> None:
    """In a request of several steps, too, what would have to wait is refused and takes no place."""
    services = bench(QUEUE_AND_BUCKET)
    look = services.descriptor("k=1", hits_addend={"value": 0})
    assert codes(await services.ask("q=1", look)) == [OK, OK, OK]
    for _ in range(3):
        services.clock.advance(1)
        answer = await services.ask("q=1", look)
        assert (codes(answer), fields(answer)["retry-after"]) == ([OVER, OVER, OK], "1")
    services.clock.advance(1_000_000)
    assert codes(await services.ask("q=1", look)) == [OK, OK, OK]


async def test_only_the_descriptor_that_would_wait_is_over(bench: Make) -> None:
    """Of several descriptors the status of each tells of its own rule, also where one would only have to wait."""
    services = bench(QUEUE_AND_BUCKET)
    assert codes(await services.ask("q=1", "k=1")) == [OK, OK, OK]
    answer = await services.ask("q=1", "k=1")
    assert codes(answer) == [OVER, OVER, OK]
    assert json.loads(answer.raw_body)["violated-policies"] == ["queue"]


async def test_a_body_of_the_rule(bench: Make) -> None:
    """``respond`` of the rule that refused makes the body and its type."""
    rules = """
version: 1
rules:
  - name: mine
    match: {domain: edge}
    quota: 0
    respond: {template: "no {rule}", content_type: text/plain}
"""
    answer = await bench(rules).ask("k=1")
    assert (answer.raw_body, fields(answer)["content-type"]) == (b"no mine", "text/plain; charset=utf-8")


async def test_a_body_of_the_rule_after_an_edit(bench: Make) -> None:
    """An edit of nothing but ``respond`` is seen by the next refusal, whatever version the rules say they are."""
    rules = "version: 1\nrules: [{{name: mine, match: {{domain: edge}}, quota: 0, respond: {{template: {word}}}}}]"
    services = bench(rules.format(word="before"))
    assert [(await services.ask("k=1")).raw_body for _ in range(2)] == [b"before"] * 2
    services.limiter.apply(load_rules(rules.format(word="after"), "rules.yaml"))
    assert [(await services.ask("k=1")).raw_body for _ in range(2)] == [b"after"] * 2


@pytest.mark.parametrize(
    ("dialect", "passed", "refused"),
    [
        ("x-ratelimit-epoch", "x-ratelimit-reset", "retry-after"),
        ("ietf", "ratelimit", "retry-after"),
        ("ietf-legacy", "ratelimit-remaining", "retry-after"),
        ("off", None, "retry-after"),
    ],
)
async def test_dialects(bench: Make, dialect: str, passed: str | None, refused: str) -> None:
    """The fields are those of the dialect, with names in lower case. # T73"""
    services = bench(headers=dialect)
    told = fields(await services.ask("api_key=a", hits=5))
    assert (passed in told) if passed else told == {}
    assert all(name == name.lower() for name in told)
    assert refused in fields(await services.ask("api_key=a"))


async def test_a_fault_of_ours_is_an_answer(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while an answer is made is INTERNAL and counted, also where the store's answer came later."""
    services = bench(store=lambda clock: LaterStore(MemoryStore(clock)))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(services.services._answers, "passed", broken)
    code, words = await services.ask("api_key=a")
    assert (code, services.stats.internal_errors) == ("INTERNAL", 1)
    assert words.startswith("a fault of the server")


async def test_jitter(bench: Make) -> None:
    """With jitter refused clients are told different times, in header and body alike, none before the true one."""
    services = bench(jitter_s=5)
    await services.ask("api_key=a", hits=5)
    found = set()
    for _ in range(60):
        answer = await services.ask("api_key=a")
        wait = fields(answer)["retry-after"]
        assert fields(answer)["x-ratelimit-reset"] == wait == str(json.loads(answer.raw_body)["retry-after"])
        found.add(int(wait))
    assert found == set(range(12, 18))


async def test_the_store_is_away(bench: Make) -> None:
    """A rule that fails closed is UNAVAILABLE, for the proxy's failure mode to decide; others answer without the store, and say so."""
    rules = """
version: 1
rules:
  - {name: shut, match: {domain: edge, descriptors: {kind: shut}}, per: [descriptor.k], quota: 5/minute, on_store_failure: closed}
  - {name: free, match: {domain: edge, descriptors: {kind: free}}, per: [descriptor.k], quota: 5/minute, on_store_failure: open}
  - {name: here, match: {domain: edge, descriptors: {kind: here}}, per: [descriptor.k], quota: 5/minute}
"""
    flaky: list[Any] = []

    def store(clock: Any) -> Any:
        flaky.append(FlakyStore(MemoryStore(clock)))
        return flaky[0]

    services = bench(rules, store=store)
    flaky[0].down = True
    assert (await services.ask("kind=shut k=1"))[0] == "UNAVAILABLE"
    assert (await services.ask(services.descriptor("kind=shut k=1", hits_addend={"value": 0})))[0] == "UNAVAILABLE"
    answer = await services.ask("kind=free k=1")
    assert codes(answer) == [OK, OK]
    assert not answer.statuses[0].HasField("current_limit")
    answer = await services.ask("kind=here k=1")
    assert (codes(answer), left(answer), answer.dynamic_metadata["degraded"]) == ([OK, OK], [4], True)
    back = services.descriptor("kind=here k=1", is_negative_hits=True)
    assert (await services.ask(back))[0] == "UNAVAILABLE"


async def test_what_cannot_be_decided(bench: Make) -> None:
    """Hits beyond what can be charged are refused by name before anything is charged."""
    services = bench()
    message = services.request(services.descriptor("api_key=a", hits_addend={"value": 2**63})).SerializeToString()
    with pytest.raises(ValueError, match="hits_addend: must be in 1"):
        services.services.should_rate_limit(message, None)
    assert len(services.limiter.store) == 0


async def test_new_rules_count_at_once(bench: Make) -> None:
    """A request whose charges are remembered is decided by the rules in service, whatever was remembered before."""
    services = bench()
    assert left(await services.ask("api_key=a")) == [4]
    text = (
        "version: 1\nrules:\n  - {name: per-key, match: {domain: edge}, per: [descriptor.api_key], quota: 50/minute}\n"
    )
    services.limiter.apply(load_rules(text, "rules.yaml"))
    assert left(await services.ask("api_key=a")) == [48]


async def test_answers_kept_ready_are_bounded(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are the same whether they were kept ready or not, and no more are kept than may be."""
    monkeypatch.setattr("sluicegate.doors.grpc.answers.GRPC_ANSWERS_MAX", 3)
    services = bench(RULES)
    answers = services.services._answers
    told = []
    for round_number in range(2):
        for key in "ab":
            for _ in range(5):
                answer = await services.ask(f"api_key={key}{round_number}")
                told.append(
                    (left(answer), fields(answer)["x-ratelimit-remaining"], fields(answer)["x-ratelimit-reset"])
                )
                assert len(answers._usual) <= 3
    assert told == [([n], str(n), str(12 * (5 - n))) for n in (4, 3, 2, 1, 0)] * 4


async def test_switched_off(bench: Make) -> None:
    """While the limiter is switched off every descriptor is OK, and nothing is said of limits."""
    services = bench()
    services.limiter.enabled = False
    answer = await services.ask("api_key=a", "route=login ip=1", hits=1000)
    assert codes(answer) == [OK, OK, OK]
    assert fields(answer) == {}
