"""``sluicegate check`` and ``sluicegate explain``: one request against a rule file, or explained by a service."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from sluicegate.cli.facts import facts_options, taken_facts
from sluicegate.cli.options import config_option, flag, option
from sluicegate.cli.remote.connect import call, connection_options
from sluicegate.cli.remote.counters import explain_remote
from sluicegate.cli.rule_files import read_rules
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.limiter.decision import Decision, RuleResult
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.explain import Explained
from sluicegate.rules.facts import Facts
from sluicegate.stores.memory import MemoryStore

__all__ = ["check", "explain"]

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_FACTS: Final = "say of what request: --facts JSON, or --method, --path, --ip, --user and the like"


def _cost_option(function: Function) -> Function:
    return option("cost", type=int, default=1, help="What the request costs, >= 1.")(function)


@click.command()
@config_option()
@option("rules", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Rule file.")
@facts_options
@_cost_option
@flag("json", help="Print one JSON object.")
def check(rules: Path, cost: int, json: bool, **values: Any) -> int:
    """Decide one request by a rule file, with every counter fresh. Exit status 0 allowed, 1 refused."""
    engine = Engine(read_rules(rules))
    plan = engine.plan(_facts(values), cost)
    answer = MemoryStore(SystemClock()).decide_one(plan.charges) if plan.charges else None
    decision = engine.conclude(plan, answer)
    if json:
        click.echo(json_format.dumps(decision.to_dict(), indent=2))
    else:
        click.echo("\n".join(_decision_lines(decision)))
    return 0 if decision.allowed else 1


@click.command()
@option(
    "rules",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rule file, in place of a service: nothing is known of counters then.",
)
@facts_options
@_cost_option
@connection_options
def explain(rules: Path | None, cost: int, **values: Any) -> int:
    """Say of every rule whether it applies to a request, and why not; of a service, how its counters stand and what it would get.

    Charges nothing.
    """
    if rules is None:
        facts = taken_facts(values)
        if facts is None:
            raise click.UsageError(_NO_FACTS)
        _say_without_path(facts)
        return call(values, lambda session: explain_remote(session, facts, cost))
    known = _facts(values)
    if known.path is None:
        _say_without_path({})
    rows = Engine(read_rules(rules)).explain(known, cost)
    if values["json"]:
        click.echo(json_format.dumps([row._asdict() for row in rows], indent=2))
    else:
        click.echo("\n".join(_explained_line(row) for row in rows) if rows else "there are no rules")
    return 0


def _say_without_path(facts: dict[str, Any]) -> None:
    if facts.get("path") is None:
        click.echo("no --path was given: rules that match paths do not apply", err=True)


def _facts(values: dict[str, Any]) -> Facts:
    facts = taken_facts(values)
    if facts is None:
        raise click.UsageError(_NO_FACTS)
    return msgspec.convert(facts, Facts)


def _decision_lines(decision: Decision) -> list[str]:
    if decision.rule is None:
        return ["allowed: no rule matches"]
    if decision.allowed:
        first = f"allowed: {decision.remaining} of {decision.limit} left by rule {decision.rule!r}"
    elif decision.retry_after_us is None:
        first = f"refused by rule {decision.rule!r}: it can never pass"
    else:
        first = f"refused by rule {decision.rule!r}: try again in {decision.retry_after_us / US_PER_S:g} s"
    return [first, *(f"  {_result_line(result)}" for result in decision.results)]


def _result_line(result: RuleResult) -> str:
    shadow = " (shadow)" if result.shadow else ""
    return f"{result.rule:<24} {result.outcome:<10} {result.remaining} of {result.limit} left{shadow}"


def _explained_line(row: Explained) -> str:
    head = f"{row.rule:<24} {'applies' if row.matched else 'no':<8}"
    if row.subject is None:
        return f"{head} {row.reason}"
    tier = "" if row.tier is None else f", tier {row.tier}"
    arm = f", {row.arm}" if row.arm else ""
    return f"{head} {row.quota} for {row.subject}, cost {row.cost}{tier}, {row.mode}{arm}"
