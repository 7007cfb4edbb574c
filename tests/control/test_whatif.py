"""What proposed rules would have decided: on logs, and on samples of traffic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import sluicegate.control.whatif as module
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.errors import Conflict, Invalid
from sluicegate.control.model import Actor, Role
from sluicegate.control.samples import lines_of
from sluicegate.control.service import RulesService
from sluicegate.control.whatif import _between
from sluicegate.rules.feed import NodeReport, Revisions, Sample


def document(limit: int) -> dict[str, Any]:
    return {
        "version": 1,
        "rules": [{"name": "api", "per": ["ip"], "quota": f"{limit}/minute", "algorithm": "fixed_window"}],
    }


@pytest.fixture
def database_url(tmp_path: Any) -> str:
    """Nothing here depends on the kind of database."""
    return f"sqlite:///{tmp_path / 'control.db'}"


@pytest.fixture
async def with_rules(service: RulesService, admin: Actor) -> RulesService:
    await service.rulesets.put_ruleset(admin, document(10), expect=0)
    return service


def log(clients: dict[str, int]) -> bytes:
    """So many requests of each client within one minute."""
    line = '{} - - [14/Nov/2023:22:13:{:02d} +0000] "GET /x HTTP/1.1" 200 5 "-" "-"\n'
    lines = [line.format(ip, number % 60) for ip, count in clients.items() for number in range(count)]
    return "".join(lines).encode()


async def pieces(content: bytes, size: int = 1_000) -> AsyncIterator[bytes]:
    for first in range(0, len(content), size):
        yield content[first : first + size]


async def test_a_log_says_who_is_newly_refused(with_rules: RulesService, viewer: Actor) -> None:
    """Of two clients the one above the proposed limit is named, with its rule and how often; nothing is changed."""
    before = await with_rules.revisions()
    content = log({"192.0.2.1": 8, "192.0.2.2": 3, "192.0.2.3": 12})
    answer = await with_rules.whatif.on_log(viewer, document(5), pieces(content), window_us=US_PER_S * 120)
    report = answer.report
    assert (answer.version, answer.sampled) == (1, None)
    assert report["rules"]["api"] | {"matched": 23, "refused": 10} == report["rules"]["api"]
    against = report["against"]
    assert against["rules"]["api"]["refused"] == 2
    assert (against["newly_refused"], against["newly_allowed"]) == (8, 0)
    assert against["newly_refused_by_rule"] == {"api": 8}
    assert dict(against["top_newly_refused"]) == {"ip:192.0.2.3": 5, "ip:192.0.2.1": 3}
    assert await with_rules.revisions() == before


async def test_up_to_50_clients_are_named(with_rules: RulesService, viewer: Actor) -> None:
    """The clients that suffer most are named, up to fifty."""
    content = log({f"192.0.2.{number}": 9 for number in range(80)})
    answer = await with_rules.whatif.on_log(viewer, document(5), pieces(content), window_us=US_PER_S * 120)
    assert len(answer.report["against"]["top_newly_refused"]) == 50


async def test_what_cannot_be_tried(with_rules: RulesService, service: RulesService, viewer: Actor) -> None:
    """Rules that are none and a log without a line are refused with the reason, which names no file of the server."""
    with pytest.raises(Invalid) as found:
        await with_rules.whatif.on_log(viewer, {"version": 1, "rules": [{"name": "x"}]}, pieces(b"x\n"), window_us=0)
    assert found.value.faults[0].pointer.startswith("/rules/0")
    slip = {"version": 1, "rules": [{"name": "x", "per": "ip", "quota": "1/minute", "algoritm": "gcra"}]}
    with pytest.raises(Invalid, match=r"algoritm: unknown field .*did you mean 'algorithm'"):
        await with_rules.whatif.on_log(viewer, slip, pieces(b"x\n"), window_us=0)
    with pytest.raises(Invalid) as found:
        await with_rules.whatif.on_log(viewer, document(5), pieces(b"nonsense\n"), window_us=0)
    assert "no valid line in the log" in str(found.value)
    assert "/tmp" not in str(found.value)


async def test_without_rules_there_is_nothing_to_compare_with(service: RulesService, viewer: Actor) -> None:
    """A service without rules says so."""
    with pytest.raises(Conflict, match="no rules in service"):
        await service.whatif.on_log(viewer, document(5), pieces(b"x\n"), window_us=0)


async def test_what_takes_too_long_is_ended(
    with_rules: RulesService, viewer: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial above its time is ended, and the next one has its place."""
    content = log({"192.0.2.1": 8})
    monkeypatch.setattr(module, "WHATIF_S_MAX", 0.001)
    for _ in range(3):
        with pytest.raises(Conflict, match="longer than"):
            await with_rules.whatif.on_log(viewer, document(5), pieces(content), window_us=0)
    monkeypatch.undo()
    assert (await with_rules.whatif.on_log(viewer, document(5), pieces(content), window_us=0)).report["requests"] == 8
    assert with_rules.whatif.done == {"done": 1, "failed": 0, "too_long": 3, "busy": 0}


async def report(service: RulesService, clock: ManualClock, requests: int, facts: list[dict[str, Any]]) -> None:
    now_us = clock.now_us()
    samples = [Sample(now_us - 4 * US_PER_S + index * 1_000, each) for index, each in enumerate(facts)]
    node = Actor("n", "token:9", role=Role.NODE)
    told = NodeReport("n", 0, "1", Revisions(), requests=requests, samples=samples, interval_s=5.0)
    await service.nodes.report(node, told)


async def test_sampled_traffic_stands_for_all_of_it(
    with_rules: RulesService, clock: ManualClock, viewer: Actor
) -> None:
    """Of 300 requests 30 were drawn, 10 of them of one client: it counts as 100, and the answer says how sure that is."""
    await report(
        with_rules, clock, 300, [{"ip": "192.0.2.1", "method": "GET", "path": "/"}] * 10
        + [{"ip": f"198.51.100.{number}", "user": "u", "attrs": {"a": "b"}} for number in range(20)],
    )  # fmt: skip
    answer = await with_rules.whatif.on_samples(viewer, document(40), 5)
    assert answer.sampled is not None
    assert (answer.sampled.requests, answer.sampled.samples, answer.sampled.weight) == (300, 30, 10)
    assert answer.report["requests"] == 300
    assert answer.report["bad_lines"] == 0
    assert answer.report["refused"] == 60
    against = answer.report["against"]
    assert against["newly_allowed"] == against["refused"] - 60
    assert answer.sampled.newly_allowed_low <= against["newly_allowed"] <= answer.sampled.newly_allowed_high
    assert answer.sampled.newly_refused_high > 0


async def test_where_all_requests_were_told_the_count_is_exact(
    with_rules: RulesService, clock: ManualClock, viewer: Actor
) -> None:
    """A node whose every request is in its reports leaves nothing to chance."""
    await report(with_rules, clock, 12, [{"ip": "192.0.2.1"}] * 12)
    answer = await with_rules.whatif.on_samples(viewer, document(5), 1)
    assert answer.sampled is not None
    assert answer.report["against"]["newly_refused"] == 5
    assert (answer.sampled.newly_refused_low, answer.sampled.newly_refused_high) == (5, 5)


async def test_samples_are_of_the_minutes_asked_for(
    with_rules: RulesService, clock: ManualClock, viewer: Actor
) -> None:
    """Older reports do not count, and where there are none that is said; minutes that are not kept are refused."""
    await report(with_rules, clock, 12, [{"ip": "192.0.2.1"}] * 12)
    clock.advance(2 * 60 * US_PER_S)
    with pytest.raises(Conflict, match="no node has told"):
        await with_rules.whatif.on_samples(viewer, document(5), 1)
    assert (await with_rules.whatif.on_samples(viewer, document(5), 3)).report["requests"] == 12
    for minutes in (0, 61):
        with pytest.raises(Invalid):
            await with_rules.whatif.on_samples(viewer, document(5), minutes)


async def test_samples_are_bounded(
    with_rules: RulesService, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest samples go first, after an hour or when there are too many; nodes are asked for them."""
    samples = with_rules.whatif.samples
    monkeypatch.setattr("sluicegate.control.samples.SAMPLES_KEPT_MAX", 25)
    for _ in range(4):
        await report(with_rules, clock, 10, [{"ip": "192.0.2.1"}] * 10)
    assert (samples.kept, samples.forgotten) == (20, 20)
    clock.advance(3_601 * US_PER_S)
    await report(with_rules, clock, 1, [{"ip": "192.0.2.1"}])
    assert samples.kept == 1
    assert with_rules.nodes.sample_per_s > 0


async def test_copies_are_bounded(
    with_rules: RulesService, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few samples of much traffic do not become more lines than may be."""
    monkeypatch.setattr("sluicegate.control.samples.WHATIF_LINES_MAX", 100)
    await report(with_rules, clock, 1_000_000, [{"ip": "192.0.2.1"}] * 20)
    recent = with_rules.whatif.samples.recent(US_PER_S)
    assert recent.weight == 5
    assert len(list(lines_of(recent))) == 100


@pytest.mark.parametrize(("found", "weight", "low", "high"), [(0, 10, 0, 39), (100, 10, 54, 185), (7, 1, 7, 7)])
def test_intervals(found: int, weight: int, low: int, high: int) -> None:
    """The interval is Wilson's for small shares; nothing drawn does not mean that nothing is there."""
    assert _between(found, weight) == (low, high)
