"""What nodes say of themselves: which rules each decides by, since when, and what it saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from sqlalchemy import delete, or_, select, text

from sluicegate.bounds import (
    NODE_COUNT_MAX,
    NODE_FORGOTTEN_S,
    NODE_NAME_CHARS_MAX,
    NODE_NAME_HELD_S,
    NODE_REPORT_BYTES_MAX,
    NODES_FLUSH_S,
    NODES_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.control import schema
from sluicegate.control.errors import Conflict, Fault, Invalid, NotAllowed, NotFound
from sluicegate.control.ledger import Ledger
from sluicegate.control.lists import Lists
from sluicegate.control.model import UP_AUTH, Actor, NodeRow, Page, Role
from sluicegate.control.paging import check_text, page_of, read_token, rows_of_page
from sluicegate.control.penalties import Penalties
from sluicegate.control.tokens import is_valid
from sluicegate.rules.feed import NodeReport, ReportAnswer

__all__ = ["Nodes"]

_TABLE = schema.nodes
# All at once: a fleet of thousands would keep changes waiting otherwise.
_PUT: Final = text(
    "INSERT INTO nodes (node, last_seen_us, report) VALUES (:node, :at, :report) "
    "ON CONFLICT (node) DO UPDATE SET last_seen_us = excluded.last_seen_us, report = excluded.report"
)
_HELD_US: Final = NODE_NAME_HELD_S * US_PER_S


class _Kept(NodeReport, frozen=True):
    """A report as it is written down, with what the service itself saw of who brought it."""

    source_ip: str = ""
    auth: str = ""


class Nodes:
    """Nodes by name. The last reports are kept in memory and written down together some seconds apart.

    ``observers`` are called with every report, in this process, and must not raise. ``sample_per_s``: how many requests each node is asked to tell of.
    """

    def __init__(self, ledger: Ledger, lists: Lists, penalties: Penalties) -> None:
        self.observers: list[Callable[[NodeReport], None]] = []
        self.sample_per_s = 0.0
        self.file_error = ""
        """What nodes are told of the rules file that is watched here; see ``ReportAnswer``."""
        self._ledger = ledger
        self._lists = lists
        self._penalties = penalties
        self._holders: dict[str, tuple[str, int]] = {}
        """Of each name the token that it was reported with last here, and when."""
        self._unwritten: dict[str, tuple[int, str]] = {}
        self._written_us: int | None = None

    async def report(self, actor: Actor, report: NodeReport) -> ReportAnswer:
        """Take a report; the clients it has penalised are on the block list when this returns. Needs the role node.

        Raises NotAllowed where the token is that of another node, and Conflict where the name was reported with another token, which is
        still valid, in the last ``NODE_NAME_HELD_S``.
        """
        self._ledger.allow(actor, Role.NODE)
        check_text("node", report.node, NODE_NAME_CHARS_MAX, least=1)
        _check_counts(report)
        kept = msgspec.json.encode(_kept(report, actor))
        if len(kept) > NODE_REPORT_BYTES_MAX:
            raise Invalid(
                [
                    Fault(
                        f"the report has {len(kept)} bytes beside its samples; at most {NODE_REPORT_BYTES_MAX} are allowed"
                    )
                ]
            )
        await self._check_name(actor, report.node)
        if report.node not in self._unwritten and len(self._unwritten) >= NODES_MAX:
            await self.flush()
        self._unwritten[report.node] = (self._ledger.clock.now_us(), kept.decode())
        for observer in self.observers:
            observer(report)
        if report.penalties:
            by = Actor(
                f"node:{report.node}", actor.auth, actor.source_ip, actor.request_id, Role.NODE, actor.namespaces
            )
            await self._lists.penalise(by, report.penalties, await self._penalties.givable())
        return ReportAnswer(self._ledger.hub.latest, self.sample_per_s, self.file_error)

    async def page(self, *, page_size: int, page_token: str = "") -> Page[NodeRow]:
        """In order of their names. ``lag_us`` counts from the first change a node lacks, or from when it was last heard of."""
        await self.flush()
        query = select(_TABLE).order_by(_TABLE.c.node).limit(rows_of_page(page_size))
        after = read_token(page_token, "nodes", str)
        if after is not None:
            query = query.where(_TABLE.c.node > after[0])
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, "nodes", self._made, lambda row: (row.node,))

    async def forget(self, actor: Actor, node: str, *, reason: str = "", validate_only: bool = False) -> None:
        """Take a node off the list; it comes back with its next report. Needs the role editor. Raises NotFound."""
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(actor, Role.EDITOR, "node.forget", f"node:{node}", **options) as change:
            check_text("node", node)
            unwritten = self._unwritten.get(node)
            gone = await change.connection.execute(delete(_TABLE).where(_TABLE.c.node == node))
            if not gone.rowcount and unwritten is None:
                raise NotFound("node", node)
            change.record()
        if not validate_only:
            self._unwritten.pop(node, None)
            self._holders.pop(node, None)

    async def sweep(self) -> None:
        """Write down what came in, if it is time to."""
        now_us = self._ledger.clock.monotonic_us()
        if self._written_us is None or now_us - self._written_us >= NODES_FLUSH_S * US_PER_S:
            await self.flush()

    async def flush(self) -> None:
        """Write down what came in. Nodes that were not heard of for days are forgotten; those for longest make room for new ones."""
        self._written_us = self._ledger.clock.monotonic_us()
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        rows = [{"node": node, "at": at_us, "report": report} for node, (at_us, report) in unwritten.items()]
        try:
            async with self._ledger.database.write() as connection:
                await connection.execute(_PUT, rows)
                beyond = select(_TABLE.c.node).order_by(_TABLE.c.last_seen_us.desc(), _TABLE.c.node)
                oldest = beyond.offset(NODES_MAX).limit(NODES_MAX)
                silent = _TABLE.c.last_seen_us < self._ledger.clock.now_us() - NODE_FORGOTTEN_S * US_PER_S
                await connection.execute(delete(_TABLE).where(or_(_TABLE.c.node.in_(oldest), silent)))
        except BaseException:
            # It is written with the next ones.
            self._unwritten = unwritten | self._unwritten
            raise

    def _made(self, row: Any) -> NodeRow:
        kept = msgspec.json.decode(row.report, type=_Kept)
        report = NodeReport(*[getattr(kept, field) for field in NodeReport.__struct_fields__])
        return NodeRow(report, row.last_seen_us, self._ledger.hub.behind_us(report.applied), kept.source_ip, kept.auth)

    async def _check_name(self, actor: Actor, node: str) -> None:
        """Raises where a node of this name may not report with this token."""
        base, _, worker = node.rpartition("-")
        if actor.node not in ("", node) and not (actor.node == base and worker.isdecimal()):
            raise NotAllowed(f"this token is that of the node {actor.node!r}, not of {node!r}")
        if actor.auth != UP_AUTH:
            holder, at_us = self._holders.get(node, ("", 0))
            if holder != actor.auth or self._ledger.clock.now_us() - at_us > _HELD_US:
                await self._check_holder(actor, node)
        if node not in self._holders and len(self._holders) >= NODES_MAX:
            # What is forgotten here is written down there.
            await self.flush()
            self._holders.clear()
        self._holders[node] = (actor.auth, self._ledger.clock.now_us())

    async def _check_holder(self, actor: Actor, node: str) -> None:
        """Raises Conflict where the name is that of a node which lives, and has another token; other processes may have heard of it."""
        held_us = self._ledger.clock.now_us() - _HELD_US
        holder, at_us = self._holders.get(node, ("", 0))
        async with self._ledger.database.read() as connection:
            row = (await connection.execute(select(_TABLE).where(_TABLE.c.node == node))).one_or_none()
            if row is not None and row.last_seen_us > at_us:
                holder, at_us = msgspec.json.decode(row.report, type=_Kept).auth, row.last_seen_us
            if holder in ("", actor.auth) or at_us < held_us:
                return
            if holder == UP_AUTH or await is_valid(connection, holder, self._ledger.clock.now_us()):
                raise Conflict(
                    f"a node {node!r} reported with another token in the last {NODE_NAME_HELD_S} s; give this one a name of its own, "
                    "or revoke that token"
                )


def _check_counts(report: NodeReport) -> None:
    """Raises Invalid for a count that would take others back, or that sums of it could not be kept."""
    counts = [("requests", report.requests), ("store_errors", report.store_errors)]
    for name, rule in report.rules.items():
        counts += [(f"rules.{name}.{field}", getattr(rule, field)) for field in rule.__struct_fields__]
    counts += [("would_refuse", times) for _, _, times in report.would_refuse]
    for field, count in counts:
        if not 0 <= count <= NODE_COUNT_MAX:
            raise Invalid([Fault(f"{field}: must be in 0..{NODE_COUNT_MAX}, got {count}")])


def _kept(report: NodeReport, actor: Actor) -> _Kept:
    """A report without what others keep or nobody needs later."""
    told = msgspec.structs.replace(report, samples=[], penalties=[], would_refuse=[], rules={})
    fields = {name: getattr(told, name) for name in NodeReport.__struct_fields__}
    return _Kept(**fields, source_ip=actor.source_ip, auth=actor.auth)
