"""``sluicegate check`` and ``sluicegate explain``: one request against a rule file, without a server."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from sluicegate.cli.options import config_option, flag, option
from sluicegate.cli.rules import read_rules
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.doors.http.bad_json import refuse_duplicates
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.decision import Decision, RuleResult
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.explain import Explained
from sluicegate.rules.facts import Facts
from sluicegate.stores.memory import MemoryStore

__all__ = ["check", "explain"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _request_options(function: Function) -> Function:
    decorators: tuple[Callable[[Any], Any], ...] = (
        flag("json", help="Print one JSON object."),
        option("cost", type=int, default=1, help="What the request costs, >= 1."),
        option(
            "facts",
            required=True,
            metavar="JSON",
            help='What is known of the request, as in \'{"method": "POST", "path": "/login", "ip": "203.0.113.9"}\'; - reads it.',
        ),
        option("rules", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Rule file."),
        config_option(),
    )
    for decorator in decorators:
        function = decorator(function)
    return function


@click.command()
@_request_options
def check(rules: Path, facts: str, cost: int, json: bool) -> int:
    """Decide one request by a rule file, with every counter fresh. Exit status 0 allowed, 1 refused."""
    engine = Engine(read_rules(rules))
    plan = engine.plan(_read_facts(facts), cost)
    answer = MemoryStore(SystemClock()).decide_one(plan.charges) if plan.charges else None
    decision = engine.conclude(plan, answer)
    if json:
        click.echo(json_format.dumps(decision.to_dict(), indent=2))
    else:
        click.echo("\n".join(_decision_lines(decision)))
    return 0 if decision.allowed else 1


@click.command()
@_request_options
def explain(rules: Path, facts: str, cost: int, json: bool) -> int:
    """Say of every rule whether it applies to a request, and why not. Charges nothing."""
    rows = Engine(read_rules(rules)).explain(_read_facts(facts), cost)
    if json:
        click.echo(json_format.dumps([row._asdict() for row in rows], indent=2))
    else:
        click.echo("\n".join(_explained_line(row) for row in rows) if rows else "there are no rules")
    return 0


def _read_facts(text: str) -> Facts:
    raw = sys.stdin.read() if text == "-" else text
    try:
        facts = msgspec.json.decode(raw, type=Facts)
        refuse_duplicates(raw.encode())
    except msgspec.ValidationError as error:
        raise InvalidRequest("--facts", str(error)) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest("--facts", f"not JSON: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest("--facts", str(error)) from error
    return facts


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
