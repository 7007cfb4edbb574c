"""Limiters whose store fails when told to, asked in every form there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore

ONE_BY_ONE = ("check", "submit", "acheck")
FORMS = (*ONE_BY_ONE, "check_many", "acheck_many")


class Site:
    """A limiter by rules, and its parts. ``ask`` decides one request in the form of this site."""

    def __init__(self, form: str, runner: asyncio.Runner, rules: tuple[str, ...], nodes: int) -> None:
        self.form = form
        self.clock = ManualClock()
        self.store = FlakyStore(MemoryStore(self.clock))
        text = "version: 1\nrules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
        self.later = LaterStore(self.store)
        store = self.store if form in ("check", "check_many") else self.later
        self.limiter = Limiter.from_rules(load_rules(text, "rules.yaml"), store, self.clock, nodes=nodes)
        self._runner = runner

    def ask(self, facts: Any, cost: int = 1, **options: bool) -> Decision:
        limiter = self.limiter
        if self.form == "check":
            return limiter.check(facts, cost, **options)
        if self.form == "check_many":
            return limiter.check_many([(facts, cost)])[0]
        return self._runner.run(self._ask(facts, cost, options))

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    async def _ask(self, facts: Any, cost: int, options: dict[str, bool]) -> Decision:
        if self.form == "acheck":
            return await self.limiter.acheck(facts, cost, **options)
        if self.form == "acheck_many":
            return (await self.limiter.acheck_many([(facts, cost)]))[0]
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self.limiter.submit(facts, answer.set_result, cost, **options)
        return await answer


SiteOf = Callable[..., Site]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=FORMS)
def site_of(request: pytest.FixtureRequest, runner: asyncio.Runner) -> SiteOf:
    """Makes a site, for every form of asking."""
    return lambda *rules, nodes=1: Site(request.param, runner, rules, nodes)


@pytest.fixture(params=ONE_BY_ONE)
def single_site_of(request: pytest.FixtureRequest, runner: asyncio.Runner) -> SiteOf:
    """Makes a site, for the forms that take options."""
    return lambda *rules, nodes=1: Site(request.param, runner, rules, nodes)
