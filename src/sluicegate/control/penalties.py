"""Which penalties a node may report: those that the rules in service, and those on trial, can give."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluicegate.bounds import PENALTY_SLACK_S
from sluicegate.clock import US_PER_S
from sluicegate.rules.document import load_document
from sluicegate.rules.feed import RulesDocument, Snapshot
from sluicegate.rules.model import OnMissing, Rule
from sluicegate.rules.read_match import CLIENT_DIMENSIONS

__all__ = ["Givable", "Penalties"]

_SLACK_US: Final = PENALTY_SLACK_S * US_PER_S


@dataclass(frozen=True, slots=True)
class Givable:
    """What the penalty of a rule can be: a block of clients of these kinds that ends within ``block_us`` from now."""

    kinds: frozenset[str]
    block_us: int


class Penalties:
    """The penalties of the rules of a service. ``snapshot`` gives what nodes decide by."""

    def __init__(self, snapshot: Callable[[], Awaitable[Snapshot]]) -> None:
        self._snapshot = snapshot
        self._made: tuple[Any, Mapping[str, Givable]] = (None, {})

    async def givable(self) -> Mapping[str, Givable]:
        """By the names of rules as people know them. A rule that is paused may still be named: what it gave before is reported late."""
        snapshot = await self._snapshot()
        candidate = snapshot.candidate
        documents = [] if snapshot.rules is None else [snapshot.rules]
        if candidate is not None and candidate.kind == "canary":
            documents.append(candidate.rules)
        made_of = [each.digest for each in documents]
        if self._made[0] != made_of:
            # Rules are many at times, and reading them takes long.
            self._made = (made_of, await asyncio.to_thread(_penalties, documents))
        return self._made[1]


def _penalties(documents: list[RulesDocument]) -> dict[str, Givable]:
    found: dict[str, Givable] = {}
    for document in documents:
        for rule in load_document(document.document, "the rules in service", document.version).rules:
            if rule.penalty is not None:
                before = found.get(rule.name, Givable(frozenset(), 0))
                block_us = max(before.block_us, rule.penalty.block_us + _SLACK_US)
                found[rule.name] = Givable(before.kinds | _kinds(rule), block_us)
    return found


def _kinds(rule: Rule) -> frozenset[str]:
    kinds = CLIENT_DIMENSIONS.intersection(rule.per.dimensions)
    return kinds | {"ip"} if rule.per.on_missing is OnMissing.IP else kinds
