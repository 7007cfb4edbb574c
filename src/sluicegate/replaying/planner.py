"""What is charged for a line, worked out once for all lines that look the same to the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Protocol

import msgspec

from sluicegate.bounds import REPLAY_MEMO_CHARS_MAX, REPLAY_MEMO_MAX
from sluicegate.errors import InvalidRequest
from sluicegate.replaying.bad_line import BadLine
from sluicegate.replaying.request_line import Client
from sluicegate.rules.facts import Facts
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.keys import EVERYBODY

__all__ = ["Item", "LineParser", "Planned", "Planner"]

_IP_PART = re.compile(r"ip:[^|]*")


class LineParser(Protocol):
    """A log format. What ``read`` gives beside the time is the same for lines that look the same to the rules."""

    def read(self, line: str) -> tuple[int, Hashable]: ...

    def facts(self, key: Any) -> tuple[Facts, Client]: ...


class Planned(msgspec.Struct, gc=False, eq=False):
    """A request, ready to be decided at its time.

    ``charges``: for the rules replayed. ``group``: what it is counted under in the table of matches. ``unidentified``: counters of rules that refuse because
    a dimension is not known. ``other``: the same request under the rules it is compared with, else None. ``tier``, ``cost``: as it was counted.
    """

    charges: Sequence[Charge]
    group: int
    client: Client
    unidentified: tuple[Counter, ...] = ()
    other: Planned | None = None
    tier: str | None = None
    cost: int = 1

    def key(self, subject: str) -> str:
        """Whom a refusal is counted for: the subject of the counter that refused, with host names as the log has them.

        The client where that counter is shared by all.
        """
        name = self.client.name
        if subject == EVERYBODY:
            known = name or self.client.ip
            return subject if known is None else f"ip:{known}"
        return subject if name is None else _IP_PART.sub(f"ip:{name}", subject)


Item = tuple[int, Planned]
"""A request and its time in microseconds."""


class Planner:
    """Plans lines of one format for one rule set or two. ``seen``: the needed facts that some line knew."""

    __slots__ = ("_memo", "_needed", "_parser", "_plan_others", "_plan_own", "seen")

    def __init__(
        self,
        parser: LineParser,
        needed: Collection[str],
        own: Callable[[Facts, Client], Planned],
        other: Callable[[Facts, Client], Planned] | None,
    ) -> None:
        self._parser = parser
        self._needed = tuple(needed)
        self._plan_own = own
        self._plan_others = other
        self._memo: dict[Hashable, Planned] = {}
        self.seen: set[str] = set()

    def items(self, lines: Sequence[str]) -> tuple[list[Item], list[tuple[int, BadLine]]]:
        """The requests of these lines in their order, and the indexes of the lines that are none."""
        read, known = self._parser.read, self._memo.get
        items: list[Item] = []
        bad: list[tuple[int, BadLine]] = []
        append = items.append
        for index, line in enumerate(lines):
            try:
                now_us, key = read(line)
                append((now_us, known(key) or self._plan(key)))
            except BadLine as error:
                bad.append((index, error))
        return items, bad

    def _plan(self, key: Hashable) -> Planned:
        facts, client = self._parser.facts(key)
        try:
            planned = self._plan_own(facts, client)
            if self._plan_others is not None:
                planned.other = self._plan_others(facts, client)
        except InvalidRequest as error:
            raise BadLine(str(error)) from None
        self.seen.update(name for name in self._needed if _knows(facts, name))
        if sum(len(text) for text in _texts(key)) <= REPLAY_MEMO_CHARS_MAX:
            if len(self._memo) >= REPLAY_MEMO_MAX:
                self._memo.clear()
            self._memo[key] = planned
        return planned


def _texts(key: Hashable) -> Sequence[str]:
    return (
        (key,) if isinstance(key, str) else [text for text in key if text is not None] if isinstance(key, tuple) else ()
    )


def _knows(facts: Facts, name: str) -> bool:
    kind, point, entry = name.partition(".")
    if not point:
        return getattr(facts, name) is not None
    mapping: dict[str, str] | None = getattr(facts, {"header": "headers", "descriptor": "descriptors"}.get(kind, kind))
    return mapping is not None and entry in mapping
