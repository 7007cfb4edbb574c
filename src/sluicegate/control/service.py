"""The rules service, for those who bring it to people: no HTTP, no command line, no framework in it.

Every change is one transaction that holds its check, its rows and its line of the audit trail. What an actor may not do raises
``NotAllowed``; that attempt, and every other refused one, has its line in the audit trail as well. Every method may raise
``Unavailable``.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from sqlalchemy import update

from sluicegate.bounds import CONTROL_CLOSE_S
from sluicegate.clock import Clock
from sluicegate.control import schema
from sluicegate.control.audit import Audit
from sluicegate.control.counters import Counters
from sluicegate.control.database import Database
from sluicegate.control.hub import Hub
from sluicegate.control.ledger import Ledger, read_revisions
from sluicegate.control.lists import Lists
from sluicegate.control.model import DEFAULT_NAMESPACE, Actor, Applied, Publisher, Role
from sluicegate.control.nodes import Nodes
from sluicegate.control.pauses import Pauses, pauses_in
from sluicegate.control.penalties import Penalties
from sluicegate.control.rollouts import Rollouts
from sluicegate.control.rulesets import Rulesets, told
from sluicegate.control.running import candidate_of
from sluicegate.control.shared_counters import SharedCounters
from sluicegate.control.subjects import Subjects
from sluicegate.control.tokens import Tokens
from sluicegate.control.traffic import Traffic
from sluicegate.control.watch import Watch
from sluicegate.control.whatif import WhatIf
from sluicegate.rules.feed import Revisions, Snapshot
from sluicegate.stores.memory import MemoryStore

__all__ = ["RulesService"]


class RulesService:
    """All of it, on one database. ``namespace`` is the one it serves. Several may stand on one database, in several processes.

    ``publisher``: told of every change made through this service, after it is kept.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        publisher: Publisher | None = None,
    ) -> None:
        self.namespace = namespace
        self.hub = Hub(clock)
        self.ledger = Ledger(database, clock, self.hub, namespace=namespace, publisher=publisher)
        self.rulesets = Rulesets(self.ledger)
        self.subjects = Subjects(self.ledger, self.rulesets)
        self.lists = Lists(self.ledger)
        self.pauses = Pauses(self.ledger, self.rulesets)
        self.rollouts = Rollouts(self.ledger, self.rulesets)
        self.counters = Counters(self.ledger)
        self.counters.rules = SharedCounters(MemoryStore(clock), database, self.snapshot, clock, namespace=namespace)
        self.tokens = Tokens(self.ledger)
        self.audit = Audit(self.ledger)
        self.nodes = Nodes(self.ledger, self.lists, Penalties(self.snapshot))
        self.nodes.observers.append(self.rollouts.observe)
        self.traffic: Traffic | None = None
        """What is kept about traffic; None: nothing is. Set by who starts the service."""
        self.more_metrics: Callable[[], Iterable[Any]] = tuple
        """Families of metrics (prometheus-client) beside its own. Set by who starts the service."""
        self.whatif = WhatIf(self.ledger, self.rulesets, self.nodes, clock)
        chores = [self.pauses.sweep, self.lists.sweep, self.tokens.sweep, self.nodes.sweep, self.rollouts.tick]
        self.watch = Watch(self.ledger, list(chores))
        self._snapshot = Snapshot(Revisions(), None)

    @classmethod
    async def open(
        cls,
        url: str,
        clock: Clock,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        publisher: Publisher | None = None,
        watched: bool = True,
    ) -> Self:
        """The service on a database, whose tables are brought to this release first. ``url``: as for ``Database``.

        ``watched``: look for what others change, and for what ends by itself; without it ``watch.once`` does so when called.
        Raises ConfigurationError for a bad URL and for tables of a newer release.
        """
        database = Database(url)
        try:
            await database.upgrade()
            service = cls(database, clock, namespace=namespace, publisher=publisher)
            await service.ledger.refresh()
        except BaseException:
            await database.close()
            raise
        if watched:
            service.watch.start()
        return service

    async def close(self) -> None:
        """Write down what is in memory only, as far as the database answers within seconds, and give everything back."""
        await self.watch.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONTROL_CLOSE_S):
                    await self.tokens.sweep()
                    await self.nodes.flush()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONTROL_CLOSE_S):
                    await self.ledger.database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def allow(self, actor: Actor, needed: Role) -> None:
        """Raises NotAllowed where the actor's role or namespaces do not reach. Writes ask by themselves; whoever reads for people asks first."""
        self.ledger.allow(actor, needed)

    def own_by_file(self, path: str) -> None:
        """From now on writes of rules, tiers and identity raise FileOwned. "": no longer."""
        self.rulesets.file = path

    async def take_file(self, content: bytes, name: str) -> Applied:
        """The content of a rules file as a version by ``file:NAME``. Raises Invalid; its ``problems`` have lines."""
        return await self.rulesets.take_file(content, name)

    async def ping(self) -> None:
        """Raises Unavailable where the database does not answer."""
        await self.ledger.refresh()

    async def revisions(self) -> Revisions:
        """Where the service stands, from memory: not older than the last change made through it, and a second old in what others made."""
        return self.hub.latest

    async def changed(self, etag: str, timeout_s: float) -> Revisions:
        """``revisions`` as soon as their etag is not this one, at the latest after ``timeout_s``."""
        return await self.hub.changed(etag, timeout_s)

    async def snapshot(self) -> Snapshot:
        """What nodes decide by: rules, rollout and pauses of one moment, with the revisions of that moment."""
        async with self.ledger.database.read() as connection:
            revisions = await read_revisions(connection)
            if revisions == self._snapshot.revisions:
                return self._snapshot
            current = await self.rulesets.current_in(connection)
            candidate, pauses = await candidate_of(connection), await pauses_in(connection)
        rules = None if current is None else told(current)
        self._snapshot = Snapshot(revisions, rules, candidate, pauses)
        return self._snapshot

    async def adopt(self, actor: Actor, *, reason: str = "", validate_only: bool = False) -> Revisions:
        """Begin a new life of a database that was set back to an earlier state: nodes take what it says, whatever they had.

        Needs the role admin.
        """
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self.ledger.change(actor, Role.ADMIN, "adopt", "database", **options) as change:
            incarnation = uuid.uuid4().hex
            named = schema.meta.c.key == "incarnation"
            await change.connection.execute(update(schema.meta).where(named).values(value=incarnation))
            change.record({"before": change.revisions.incarnation, "after": incarnation})
        await self.ledger.refresh()
        return self.hub.latest
