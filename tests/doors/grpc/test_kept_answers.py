"""Answers that are kept ready: what looks alike but says something else is told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Any]


def fields(answer: Any) -> dict[str, str]:
    """The header fields for the client."""
    return {header.key: header.value for header in answer.response_headers_to_add}


def rules_of(*rules: str) -> str:
    """A rules file of rules for the domain ``edge``."""
    return "version: 1\nrules:\n" + "".join(f"  - {{match: {{domain: edge}}, {rule}}}\n" for rule in rules)


async def test_the_same_number_left_for_another_time(bench: Make) -> None:
    """Two clients with as many left, but not full again at the same time, are told their own times."""
    services = bench(rules_of("name: a, per: [descriptor.k], quota: 5/minute"))
    await services.ask("k=1")
    services.clock.advance(6_000_000)
    for client, reset in (("k=1", "18"), ("k=2", "12"), ("k=2", "24")):
        assert fields(await services.ask(client))["x-ratelimit-reset"] == reset


async def test_rules_in_shadow_are_never_the_nearest(bench: Make) -> None:
    """On a pass the fields tell of an enforced rule, however little a rule in shadow has left; shadows that pass are not named."""
    watched = "name: watched, quota: 1/minute, mode: shadow"
    services = bench(rules_of(watched, "name: a, per: [descriptor.k], quota: 5/minute"))
    first, second = [await services.ask("k=1") for _ in range(2)]
    for answer in (first, second):
        assert fields(answer)["x-ratelimit-policy"].startswith("a;q=5")
    assert dict(first.dynamic_metadata) == {"rule": "a", "outcome": "allowed"}
    assert list(second.dynamic_metadata["shadow_refused"]) == ["watched"]
    written = bench(rules_of(watched, "name: a, per: [descriptor.k], quota: 5/minute"), headers="ietf")
    assert dict((await written.ask("k=1")).dynamic_metadata) == {"rule": "a", "outcome": "allowed"}


async def test_refusals_by_one_rule_and_by_two(bench: Make) -> None:
    """A refusal by several rules names them all, also where the first of them alone has refused with the same numbers before."""
    both = ("name: a, per: [descriptor.k], quota: 1/minute", "name: b, per: [descriptor.j], quota: 1/minute")
    services = bench(rules_of(*both))
    await services.ask("k=1")
    await services.ask("j=1")
    for descriptor, names in (("k=1", ["a"]), ("k=1 j=1", ["a", "b"]), ("k=1", ["a"]), ("k=1 j=2", ["a"])):
        answer = await services.ask(descriptor)
        assert json.loads(answer.raw_body)["violated-policies"] == names


async def test_refusals_with_and_without_the_store(bench: Make) -> None:
    """A refusal without the store says that it is one, and one with the store does not, though their numbers are the same."""
    flaky: list[FlakyStore] = []

    def store(clock: Any) -> FlakyStore:
        flaky.append(FlakyStore(MemoryStore(clock)))
        return flaky[0]

    services = bench(rules_of("name: a, per: [descriptor.k], quota: 1/minute"), store=store)
    await services.ask("k=1")
    refused = await services.ask("k=1")
    flaky[0].down = True
    await services.ask("k=2")
    degraded = await services.ask("k=2")
    assert fields(refused) == fields(degraded)
    assert "degraded" not in dict(refused.dynamic_metadata)
    assert degraded.dynamic_metadata["degraded"] is True
