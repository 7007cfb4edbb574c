"""Counters of the nodes, operated from the rules service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.control.counters import CounterChange, NodeAnswer
from sluicegate.control.errors import Conflict, Invalid, NotAllowed, NotFound, Unavailable
from sluicegate.control.model import Actor
from sluicegate.control.service import RulesService
from sluicegate.control.shared_counters import SharedCounters
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.document import load_document
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.flaky import FlakyStore

DOCUMENT = {
    "version": 1,
    "rules": [
        {
            "name": "login",
            "match": {"path": "/login"},
            "per": ["user"],
            "quota": "5/minute",
            "algorithm": "fixed_window",
        },
        {"name": "api", "per": ["user"], "quota": "100/hour"},
    ],
}
FACTS = {"method": "POST", "path": "/login", "user": "8123", "ip": "203.0.113.9"}
LOGIN = {"rule": "login", "subject": "user:8123"}


@pytest.fixture
def store(clock: ManualClock) -> FlakyStore:
    """What the nodes share."""
    return FlakyStore(MemoryStore(clock))


@pytest.fixture
async def with_rules(service: RulesService, admin: Actor, clock: ManualClock, store: FlakyStore) -> RulesService:
    """A service with rules, that reaches the store of the nodes."""
    await service.rulesets.put_ruleset(admin, DOCUMENT, expect=0)
    service.counters.store = SharedCounters(store, service.ledger.database, service.snapshot, clock)
    return service


@pytest.fixture
def node(clock: ManualClock, store: FlakyStore) -> Limiter:
    """A node that decides by the same rules on the same store."""
    return Limiter.from_rules(load_document(DOCUMENT, "test", 1), store, clock)


def states(answer: Any) -> dict[str, int]:
    (node,) = answer.nodes
    return {state["counter"]: state["used"] for state in node.counters}


async def last_audit(service: RulesService, viewer: Actor) -> Any:
    return (await service.audit.page(viewer, page_size=1)).items[0]


async def test_read_shows_what_nodes_charged(with_rules: RulesService, viewer: Actor, node: Limiter) -> None:
    """The service sees the counters that a node has charged, under the same keys, and charges nothing."""
    node.check(FACTS, 3)
    for _ in range(2):
        answer = await with_rules.counters.read(viewer, {"facts": FACTS})
        assert answer.shared
        assert states(answer) == {"login": 3, "api": 3}
    assert states(await with_rules.counters.read(viewer, LOGIN)) == {"login": 3}


async def test_a_grant_is_seen_by_the_node_and_in_the_audit(
    with_rules: RulesService, editor: Actor, viewer: Actor, node: Limiter
) -> None:
    """A client that was refused passes after a grant; who gave what, and why, is in the audit trail; the epoch is raised."""
    node.check(FACTS, 5)
    assert not node.check(FACTS).allowed
    epoch = (await with_rules.revisions()).epoch
    wanted = CounterChange("grant", {**LOGIN, "tokens": 50})
    answer = await with_rules.counters.change(editor, wanted, reason="ticket 12")
    assert answer.changed
    assert answer.nodes[0].counters[0]["given"] == 5
    assert node.check(FACTS, 5).allowed
    assert (await with_rules.revisions()).epoch == epoch + 1
    row = await last_audit(with_rules, viewer)
    assert (row.action, row.resource, row.reason) == ("counters.grant", "counter:login:user:8123", "ticket 12")
    assert row.diff["before"][0]["counters"][0]["used"] == 5
    assert row.diff["after"][0]["counters"][0] | {"used": 0, "given": 5} == row.diff["after"][0]["counters"][0]


async def test_a_reset(with_rules: RulesService, editor: Actor, viewer: Actor, node: Limiter) -> None:
    """A reset of a request's counters forgets them all; with validate_only it forgets none and leaves no trace."""
    node.check(FACTS, 5)
    before = await last_audit(with_rules, viewer)
    wanted = CounterChange("reset", {"facts": FACTS})
    answer = await with_rules.counters.change(editor, wanted, validate_only=True)
    assert not answer.changed
    assert states(answer) == {"login": 5, "api": 5}
    assert await last_audit(with_rules, viewer) == before
    answer = await with_rules.counters.change(editor, wanted)
    assert answer.nodes[0].reset == 2
    assert states(await with_rules.counters.read(viewer, {"facts": FACTS})) == {"login": 0, "api": 0}
    assert (await last_audit(with_rules, viewer)).action == "counters.reset"


async def test_a_viewer_may_only_look(with_rules: RulesService, viewer: Actor, node: Limiter) -> None:
    """Who may not change is refused, nothing changes, and the attempt is in the audit trail."""
    node.check(FACTS, 5)
    with pytest.raises(NotAllowed):
        await with_rules.counters.change(viewer, CounterChange("reset", LOGIN))
    assert states(await with_rules.counters.read(viewer, LOGIN)) == {"login": 5}
    assert (await last_audit(with_rules, viewer)).outcome == "refused"


@pytest.mark.parametrize(
    ("question", "pointer"),
    [
        ({}, "/facts"),
        ({"rule": "login"}, "/facts"),
        ({"rule": "nope", "subject": "x"}, "/rule"),
        ({"facts": {"colour": "red"}}, "/facts/colour"),
        ({"facts": {"user": 7}}, "/facts/user"),
    ],
)
async def test_bad_questions(with_rules: RulesService, viewer: Actor, question: Any, pointer: str) -> None:
    """What cannot be meant is refused with a pointer to it."""
    with pytest.raises(Invalid) as found:
        await with_rules.counters.read(viewer, question)
    assert found.value.faults[0].pointer == pointer


async def test_a_store_that_is_away(
    with_rules: RulesService, editor: Actor, viewer: Actor, store: FlakyStore, node: Limiter
) -> None:
    """While the store is away nothing is claimed: Unavailable, no line of the audit trail, no new epoch."""
    node.check(FACTS, 5)
    before = await with_rules.revisions()
    store.down = True
    for call in (
        with_rules.counters.read(viewer, LOGIN),
        with_rules.counters.change(editor, CounterChange("reset", LOGIN)),
    ):
        with pytest.raises(Unavailable):
            await call
    store.down = False
    assert await with_rules.revisions() == before
    assert states(await with_rules.counters.read(viewer, LOGIN)) == {"login": 5}


async def test_explain_knows_lists_and_subjects(
    with_rules: RulesService, editor: Actor, viewer: Actor, node: Limiter
) -> None:
    """The explanation has the override of the client, and the network on the block list that its address is in."""
    node.check(FACTS, 2)
    await with_rules.subjects.put(editor, "user:8123", {"factor": "10x"})
    question = {"facts": FACTS, "cost": 1}
    told = (await with_rules.counters.explain(viewer, question))["nodes"][0]["explanation"]
    assert told["decision"]["allowed"]
    login = told["rules"][0]
    assert login["override"]["factor"] == "10/1"
    assert (login["counters"][0]["limit"], login["counters"][0]["used"]) == (50, 2)
    await with_rules.lists.put(editor, "block", "ip", "203.0.113.0/24", source="waf")
    told = (await with_rules.counters.explain(viewer, question))["nodes"][0]["explanation"]
    assert told["decision"]["rule"] == "block:ip"
    assert "203.0.113.0/24" in told["rules"][0]["reason"]
    with_port = {"facts": {**FACTS, "ip": "[::ffff:203.0.113.9]:443"}}
    told = (await with_rules.counters.explain(viewer, with_port))["nodes"][0]["explanation"]
    assert told["decision"]["rule"] == "block:ip"
    await with_rules.pauses.pause(editor, "login")
    told = (await with_rules.counters.explain(viewer, question))["nodes"][0]["explanation"]
    assert [row["mode"] for row in told["rules"] if row["rule"] == "login"] == ["off"]


async def test_explain_says_who_paused_a_rule(
    with_rules: RulesService, editor: Actor, viewer: Actor, clock: ManualClock
) -> None:
    """A rule that is paused is told with the end of the pause, who made it and why; one that is off by its own is not."""

    async def reasons() -> dict[str, str]:
        told = (await with_rules.counters.explain(viewer, {"facts": FACTS}))["nodes"][0]["explanation"]
        return {row["rule"]: row["reason"] for row in told["rules"]}

    until_us = clock.now_us() // 1_000_000 * 1_000_000 + 60_000_000
    await with_rules.pauses.pause(editor, "login", until_us=until_us, reason="locked out")
    found = await reasons()
    assert found["login"].startswith("paused until ")
    assert found["login"].endswith("Z, by eve: locked out")
    assert found["api"] == ""
    await with_rules.pauses.pause(editor, None)
    assert (await reasons())["api"] == "every rule is paused until it is resumed, by eve"
    await with_rules.pauses.resume(editor, 2)
    clock.advance(61_000_000)
    assert (await reasons())["login"] == ""


async def test_explain_without_counters(
    service: RulesService, admin: Actor, viewer: Actor, editor: Actor, clock: ManualClock
) -> None:
    """Where no counter can be reached, rules, lists and subjects are explained all the same, and the answer says that no state is known."""
    await service.rulesets.put_ruleset(admin, DOCUMENT, expect=0)
    await service.subjects.put(editor, "user:8123", {"factor": "10x"})
    for nodes in (None, Nodes(), Nodes(NodeAnswer("one", 0, error="refused"))):
        service.counters.nodes = nodes
        answer = await service.counters.explain(viewer, {"facts": FACTS, "cost": 1})
        assert answer["unknown"]
        (place,) = answer["nodes"]
        told = place["explanation"]
        assert (place["node"], place["error"], told["store_answers"]) == ("", "", False)
        assert [(row["rule"], row["applies"], row["counters"]) for row in told["rules"]] == [
            ("login", True, []),
            ("api", True, []),
        ]
        assert told["rules"][0]["override"]["factor"] == "10/1"
        assert told["decision"]["allowed"]
    await service.lists.put(editor, "block", "ip", "203.0.113.0/24", source="waf")
    told = (await service.counters.explain(viewer, {"facts": FACTS}))["nodes"][0]["explanation"]
    assert told["decision"]["rule"] == "block:ip"
    with pytest.raises(Invalid):
        await service.counters.explain(viewer, {"facts": {"colour": "red"}})


class Nodes:
    """Nodes that answer what they are told to."""

    def __init__(self, *answers: NodeAnswer) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def open(self, question: Any) -> Nodes:
        return self

    async def ask(self, operation: str, question: Any) -> Sequence[NodeAnswer]:
        self.asked.append((operation, question))
        return self.answers


async def test_without_a_shared_store_every_node_is_asked(service: RulesService, editor: Actor) -> None:
    """A reset reaches all nodes, and one that does not answer is named; the rest is done."""
    nodes = Nodes(NodeAnswer("a", 200, {"reset": 1}), NodeAnswer("b", 0, error="no answer in 2 s"))
    service.counters.nodes = nodes
    answer = await service.counters.change(editor, CounterChange("reset", LOGIN))
    assert not answer.shared
    assert [(each.node, each.reset, each.error) for each in answer.nodes] == [
        ("a", 1, ""),
        ("b", 0, "no answer in 2 s"),
    ]
    assert nodes.asked == [("read", LOGIN), ("reset", LOGIN)]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((), Conflict),
        ((NodeAnswer("a", 0, error="refused"),), Unavailable),
        ((NodeAnswer("a", 400, error="rule: there is no rule", pointer="/rule"),), Invalid),
    ],
)
async def test_nodes_that_cannot_be_asked(
    service: RulesService, editor: Actor, answers: tuple[NodeAnswer, ...], error: type[Exception]
) -> None:
    """Where no node does what is asked, nothing is claimed."""
    service.counters.nodes = Nodes(*answers)
    with pytest.raises(error):
        await service.counters.change(editor, CounterChange("reset", LOGIN))
    assert (await service.revisions()).epoch == 0


async def test_no_way_to_counters(service: RulesService, viewer: Actor) -> None:
    """A service that was told of neither store nor nodes says so."""
    with pytest.raises(Conflict, match="--store"):
        await service.counters.read(viewer, LOGIN)


async def test_a_refund_finds_the_node_that_has_the_receipt(
    service: RulesService, editor: Actor, viewer: Actor
) -> None:
    """Of all nodes the one that gave the receipt takes it; none: NotFound; one that is silent: nobody knows."""
    unknown = NodeAnswer("a", 404, error="no such receipt")
    service.counters.nodes = Nodes(unknown, NodeAnswer("b", 200, {"refunded": 2}))
    assert await service.counters.refund(editor, "d1") == {"node": "b", "refunded": 2}
    assert (await last_audit(service, viewer)).diff == {"node": "b", "refunded": 2}
    service.counters.nodes = Nodes(unknown)
    with pytest.raises(NotFound):
        await service.counters.refund(editor, "d1")
    service.counters.nodes = Nodes(unknown, NodeAnswer("b", 0, error="no answer"))
    with pytest.raises(Unavailable):
        await service.counters.refund(editor, "d1")


class SlowNodes(Nodes):
    """Nodes that answer a change when they are allowed to."""

    def __init__(self, *answers: NodeAnswer) -> None:
        super().__init__(*answers)
        self.begun = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def ask(self, operation: str, question: Any) -> Sequence[NodeAnswer]:
        if operation in ("reset", "refund"):
            self.begun.set()
            await self.may_answer.wait()
        return await super().ask(operation, question)


@pytest.mark.parametrize("operation", ["reset", "refund"])
async def test_no_other_change_waits_for_nodes(
    service: RulesService, editor: Actor, viewer: Actor, operation: str
) -> None:
    """While nodes are asked a pause is made at once; what was wanted is in the audit trail before they are told, what was done after."""
    nodes = service.counters.nodes = SlowNodes(NodeAnswer("a", 200, {"reset": 1, "refunded": 1}))
    if operation == "reset":
        doing = asyncio.create_task(service.counters.change(editor, CounterChange("reset", LOGIN), reason="t1"))
    else:
        doing = asyncio.create_task(service.counters.refund(editor, "d1", reason="t1"))
    await nodes.begun.wait()
    begun = await last_audit(service, viewer)
    assert (begun.action, begun.reason) == (f"counters.{operation}.begin", "t1")
    async with asyncio.timeout(60):
        await service.pauses.pause(editor, None, until_us=None)
    assert (await service.revisions()).epoch == 0
    nodes.may_answer.set()
    await doing
    assert (await last_audit(service, viewer)).action == f"counters.{operation}"
    assert (await service.revisions()).epoch == 1


async def test_a_change_is_finished_when_its_caller_goes_away(
    service: RulesService, editor: Actor, viewer: Actor
) -> None:
    """Whoever asked for a change and goes away leaves none that was done and is not in the audit trail."""
    nodes = service.counters.nodes = SlowNodes(NodeAnswer("a", 200, {"reset": 1}))
    doing = asyncio.create_task(service.counters.change(editor, CounterChange("reset", LOGIN)))
    await nodes.begun.wait()
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    nodes.may_answer.set()
    async with asyncio.timeout(60):
        while (await service.revisions()).epoch == 0:
            await asyncio.sleep(0.01)
    assert (await last_audit(service, viewer)).action == "counters.reset"


async def test_a_change_that_nobody_answered(service: RulesService, editor: Actor, viewer: Actor) -> None:
    """Where nodes fall silent when they are told, the trail says that nobody knows, and nodes drop what they keep beside their store."""
    nodes = service.counters.nodes = SlowNodes(NodeAnswer("a", 200, {"reset": 1}))
    doing = asyncio.create_task(service.counters.change(editor, CounterChange("reset", LOGIN)))
    await nodes.begun.wait()
    nodes.answers = (NodeAnswer("a", 0, error="no answer in 2 s"),)
    nodes.may_answer.set()
    with pytest.raises(Unavailable):
        await doing
    row = await last_audit(service, viewer)
    assert (row.action, row.diff) == ("counters.reset", {"error": "no counter was reached: no answer in 2 s"})
    assert (await service.revisions()).epoch == 1
