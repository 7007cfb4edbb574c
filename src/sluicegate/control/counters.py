"""Counters of the nodes, operated from the rules service: read, granted, reset, refunded, and a request explained.

Where the nodes share a store the service asks it itself, by the rules that nodes decide by. Where they do not, it asks every node that
lives. A change has two lines in the audit trail: what is wanted, before anybody is told to do it, and what was done. Between them no transaction
is open, so that no other change waits for nodes. The second one raises the epoch, at which all nodes drop what they keep of counters beside their store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from sluicegate.clock import US_PER_S
from sluicegate.control.errors import Conflict, ControlError, Fault, Invalid, NotFound, Unavailable
from sluicegate.control.ledger import Ledger
from sluicegate.control.model import Actor, PauseRow, Role
from sluicegate.control.pauses import held_pauses
from sluicegate.rules.model import Mode

__all__ = ["Asker", "CounterChange", "Counters", "CountersAnswer", "NodeAnswer", "NodeCounters", "Operation", "Reach"]

T = TypeVar("T")

Operation: TypeAlias = Literal["read", "grant", "reset", "refund", "explain"]

Question: TypeAlias = dict[str, Any]
"""The body of such a request, as a node takes it at ``/v1/counters/...``, ``/v1/refund`` and ``/v1/explain``."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """What one node, or the store (``node`` ""), said. ``status`` as of HTTP; 0: it did not answer. ``error``: why, "" where it did what was asked."""

    node: str
    status: int
    answer: dict[str, Any] = {}
    error: str = ""
    pointer: str = ""


class Asker(Protocol):
    """Asks the places where certain counters are. Raises nothing: what goes wrong is in the answers."""

    async def ask(self, operation: Operation, question: Question) -> Sequence[NodeAnswer]:
        """What each of them says, within a few seconds; empty where there is none. Does not touch the database."""
        ...


class Reach(Protocol):
    """A way to counters."""

    async def open(self, question: Question) -> Asker:
        """Find the places where these counters are. Raises Invalid and Unavailable."""
        ...


class NodeCounters(msgspec.Struct, frozen=True):
    """The counters at one node; ``node`` "": in the store that all share. ``reset``: how many were forgotten. ``error`` "": it answered."""

    node: str
    counters: list[dict[str, Any]] = []
    reset: int = 0
    error: str = ""


class CountersAnswer(msgspec.Struct, frozen=True):
    """``shared``: the nodes have their counters in one store. ``changed``: a counter was, somewhere."""

    shared: bool
    nodes: list[NodeCounters]
    changed: bool = False


class CounterChange(msgspec.Struct, frozen=True):
    """What is to be done. ``question``: which counters, and how many tokens."""

    operation: Literal["grant", "reset"]
    question: Question

    @property
    def resource(self) -> str:
        """Which counters, for the audit trail."""
        rule, subject = self.question.get("rule"), self.question.get("subject")
        if subject is not None:
            return f"counter:{rule}:{subject}"
        facts = ",".join(f"{name}={value}" for name, value in sorted(self.question.get("facts", {}).items()))
        return f"counters:{facts}" if rule is None else f"counter:{rule}:{facts}"


_RESOURCE_CHARS: Final = 512
_OK, _BAD, _UNKNOWN = 200, 400, 404


class _Job(NamedTuple):
    """Who does what to which counters, and why."""

    actor: Actor
    action: str
    resource: str
    reason: str

    def line(self, part: str = "") -> tuple[Actor, Role, str, str]:
        """What the audit trail is to say of it."""
        return self.actor, Role.EDITOR, self.action + part, self.resource


class Counters:
    """``store``: a way to the store that nodes share; None: there is none. ``nodes``: a way to every node; None: they cannot be asked.

    ``rules``: explains by what the database knows, with counters of which nothing is used; asked where neither of them answers.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.store: Reach | None = None
        self.nodes: Reach | None = None
        self.rules: Reach | None = None
        self.operations: dict[str, int] = dict.fromkeys(get_args(Operation), 0)
        self._ledger = ledger
        self._under_way: set[asyncio.Future[Any]] = set()

    async def read(self, actor: Actor, question: Question) -> CountersAnswer:
        """How counters stand, at every place. Needs the role viewer."""
        self._ledger.allow(actor, Role.VIEWER)
        asker = await self._reach().open(question)
        return self._told(await self._ask(asker, "read", question))

    async def change(
        self, actor: Actor, wanted: CounterChange, *, reason: str = "", validate_only: bool = False
    ) -> CountersAnswer:
        """Grant or reset. Needs the role editor. With ``validate_only`` the answer is how the counters stand.

        A node that does not answer is told with its error; where none does, Unavailable is raised.
        """
        operation, resource = wanted.operation, wanted.resource[:_RESOURCE_CHARS]
        which = {name: value for name, value in wanted.question.items() if name != "tokens"}
        asker, before, problem = await self._looked(actor, which)
        job = _Job(actor, f"counters.{operation}", resource, reason)
        if problem is not None or validate_only:
            await self._only_tried(job, problem, validate_only=validate_only)
            return before

        async def work() -> tuple[CountersAnswer, dict[str, Any]]:
            assert asker is not None, "who is to be asked was found"
            after = self._told(await self._ask(asker, operation, wanted.question))
            return after, {
                "wanted": wanted.question, "before": _for_audit(before.nodes), "after": _for_audit(after.nodes)
            }  # fmt: skip

        after = await self._done(job, {"wanted": wanted.question}, work)
        given = (state["given"] for each in after.nodes for state in each.counters)
        return CountersAnswer(after.shared, after.nodes, changed=any(given) or any(each.reset for each in after.nodes))

    async def refund(
        self, actor: Actor, decision_id: str, *, reason: str = "", validate_only: bool = False
    ) -> dict[str, Any]:
        """Give back what a decision charged, wherever its receipt is: ``{"node": NAME, "refunded": COUNTERS}``. Needs the role editor.

        Raises NotFound where no node that answers knows it, Conflict where nodes cannot be asked.
        """
        job = _Job(actor, "counters.refund", f"decision:{decision_id:.64}", reason)
        problem, asker = None, None
        try:
            self._ledger.allow(actor, Role.EDITOR)
            asker = None if self.nodes is None else await self.nodes.open({})
        except ControlError as error:
            problem = error
        if problem is None and asker is None:
            problem = Conflict(
                "receipts are kept by the nodes, and this service cannot ask them: give it their API token"
            )
        if problem is not None or validate_only:
            await self._only_tried(job, problem, validate_only=validate_only)
            return {"node": "", "refunded": 0}

        async def work() -> tuple[dict[str, Any], dict[str, Any]]:
            assert asker is not None, "who is to be asked was found"
            told = await self._refunded(asker, decision_id)
            return told, told

        return await self._done(job, None, work)

    async def _refunded(self, asker: Asker, decision_id: str) -> dict[str, Any]:
        self.operations["refund"] += 1
        answers = await asker.ask("refund", {"decision_id": decision_id})
        found = next((each for each in answers if each.status == _OK), None)
        if found is None:
            failed = [each for each in answers if each.status not in (_OK, _UNKNOWN)]
            if failed:
                raise Unavailable(f"{len(failed)} of {len(answers)} nodes did not answer: {failed[0].error}")
            raise NotFound("receipt", f"{decision_id:.64}")
        return {"node": found.node, "refunded": found.answer.get("refunded", 0)}

    async def _only_tried(self, job: _Job, problem: ControlError | None, *, validate_only: bool) -> None:
        """Nothing is to be done; what is refused is audited."""
        async with self._ledger.change(*job.line(), reason=job.reason, validate_only=validate_only):
            if problem is not None:
                raise problem

    async def _done(self, job: _Job, wanted: Any, work: Callable[[], Awaitable[tuple[T, dict[str, Any]]]]) -> T:
        """Do it, with a line in the audit trail before and one after. ``work`` gives its answer, and what the second line is to say."""
        async with self._ledger.change(*job.line(".begin"), reason=job.reason) as change:
            change.record(wanted)
        # Whoever asked for it may go away; what has begun is finished, and its line written.
        task = asyncio.ensure_future(self._worked(job, work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _worked(self, job: _Job, work: Callable[[], Awaitable[tuple[T, dict[str, Any]]]]) -> T:
        try:
            told, diff = await work()
        except Unavailable as error:
            # Nobody knows what was done of it.
            await self._finish(job, {"error": str(error)})
            raise
        except ControlError as error:
            await self._only_tried(job, error, validate_only=False)
            raise
        await self._finish(job, diff)
        return told

    async def _finish(self, job: _Job, diff: dict[str, Any]) -> None:
        async with self._ledger.change(*job.line(), reason=job.reason) as change:
            await change.touch("epoch")
            change.record(diff)

    async def explain(self, actor: Actor, question: Question) -> dict[str, Any]:
        """Why a request would be decided as it is now: ``{"nodes": [{"node", "error", "explanation"}], "unknown"}``. Needs the role viewer.

        ``unknown``: why nobody knows how the counters stand, "" where somebody does. Rules, lists, subjects and pauses are explained all the
        same; the verdict is that for a client who has used nothing, and no counter is told.
        """
        self._ledger.allow(actor, Role.VIEWER)
        self.operations["explain"] += 1
        unknown = ""
        try:
            answers = _good(await (await self._reach().open(question)).ask("explain", question))
        except (Conflict, Unavailable) as error:
            if self.rules is None:
                raise
            answers = _good(await (await self.rules.open(question)).ask("explain", question))
            unknown = str(error)
        async with self._ledger.database.read() as connection:
            paused = await held_pauses(connection, self._ledger.clock.now_us())
        return {
            "nodes": [
                {
                    "node": each.node,
                    "error": each.error,
                    "explanation": _explanation(each, paused, known=not unknown) if each.status == _OK else None,
                }
                for each in answers
            ],
            "unknown": unknown,
        }

    async def _looked(
        self, actor: Actor, question: Question
    ) -> tuple[Asker | None, CountersAnswer, ControlError | None]:
        """Who is to be asked, how the counters stand, and what is wrong with the question. Nothing is done for who may not ask."""
        try:
            self._ledger.allow(actor, Role.EDITOR)
            asker = await self._reach().open(question)
            return asker, self._told(await self._ask(asker, "read", question)), None
        except ControlError as error:
            return None, CountersAnswer(shared=False, nodes=[]), error

    def _reach(self) -> Reach:
        reach = self.store or self.nodes
        if reach is None:
            raise Conflict(
                "this service reaches no counters: give it the store that nodes share (--store), or their API token (--node-api-token)"
            )
        return reach

    async def _ask(self, asker: Asker, operation: Operation, question: Question) -> Sequence[NodeAnswer]:
        """The answers, of which one at least is good. Raises Invalid, Conflict and Unavailable."""
        self.operations[operation] += 1
        return _good(await asker.ask(operation, question))

    def _told(self, answers: Sequence[NodeAnswer]) -> CountersAnswer:
        return CountersAnswer(
            self.store is not None,
            [
                NodeCounters(each.node, each.answer.get("counters", []), each.answer.get("reset", 0), each.error)
                for each in answers
            ],
        )


def _good(answers: Sequence[NodeAnswer]) -> Sequence[NodeAnswer]:
    """These answers, where one at least is good. Raises Invalid, Conflict and Unavailable."""
    if any(each.status == _OK for each in answers):
        return answers
    bad = next((each for each in answers if each.status == _BAD), None)
    if bad is not None:
        raise Invalid([Fault(bad.error, bad.pointer)])
    if not answers:
        raise Conflict("no node is alive that says where it can be asked")
    raise Unavailable(f"no counter was reached: {answers[0].error}")


def _explanation(answer: NodeAnswer, paused: Sequence[PauseRow], *, known: bool) -> dict[str, Any]:
    """An explanation with what a node does not know: who paused a rule, and why. ``known`` False: without what it says of counters."""
    told = dict(answer.answer)
    if not known:
        told["store_answers"] = False
    told["rules"] = rows = []
    for row in answer.answer.get("rules", []):
        # A rule on trial has the name of its file before the sign.
        name = str(row.get("rule")).partition("@")[0]
        pause = next((each for each in paused if each.rule in (None, name)), None)
        more: dict[str, Any] = {} if known else {"counters": []}
        if pause is not None and row.get("mode") == Mode.OFF.value:
            more["reason"] = _why_paused(pause)
        rows.append({**row, **more})
    return told


def _why_paused(pause: PauseRow) -> str:
    until = "until it is resumed"
    if pause.until_us is not None:
        until = f"until {_moment(pause.until_us)}"
    because = f": {pause.reason}" if pause.reason else ""
    what = "every rule is paused" if pause.rule is None else "paused"
    return f"{what} {until}, by {pause.actor}{because}"


def _moment(us: int) -> str:
    try:
        return datetime.fromtimestamp(us // US_PER_S, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        # Times of the service reach further than calendars.
        return f"{us} us"


def _for_audit(nodes: Sequence[NodeCounters]) -> list[dict[str, Any]]:
    """What is worth keeping for ever: whose counters, and how much was used."""
    return [
        {
            "node": each.node,
            "error": each.error,
            "reset": each.reset,
            "counters": [
                {name: state.get(name) for name in ("counter", "subject", "used", "limit", "given")}
                for state in each.counters
            ],
        }
        for each in nodes
    ]
