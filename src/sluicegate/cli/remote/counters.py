"""``sluicegate counters``, and why a request would be decided as it is: one client's counters at the nodes of a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sluicegate.cli.facts import facts_options, taken_facts
from sluicegate.cli.options import Group, option
from sluicegate.cli.remote.connect import Session, changing, connected
from sluicegate.cli.remote.render import table, told
from sluicegate.clock import US_PER_S
from sluicegate.stores.keys import EVERYBODY

__all__ = ["counters", "explain_remote"]

Function = TypeVar("Function", bound=Callable[..., Any])

_MS_PER_S = US_PER_S // 1_000


def _which(function: Function) -> Function:
    """The flags that name counters."""
    decorators: tuple[Callable[[Any], Any], ...] = (
        facts_options,
        option("subject", metavar="SUBJECT", help="In place of a request: the client of --rule, such as user:8123."),
        option("rule", metavar="NAME", help="Only counters of this rule."),
    )
    for decorator in decorators:
        function = decorator(function)
    return function


@click.group(cls=Group)
def counters() -> None:
    """Read and mend counters at the nodes of a service: those of a request, or of a SUBJECT of a rule."""


@counters.command("read")
@_which
@connected()
async def _read(session: Session, **values: Any) -> int:
    """Show how counters stand. Charges nothing."""
    answer = (await session.client.ask("POST", "/v1/counters/read", body=_question(values))).data
    session.show(answer, lambda: _say(answer))
    return _status(answer)


@counters.command("grant")
@click.argument("tokens", type=click.IntRange(1))
@_which
@changing
@connected()
async def _grant(session: Session, tokens: int, **values: Any) -> int:
    """Give back up to TOKENS of what each of the counters has used, at once on all nodes."""
    body = {**_question(values), "tokens": tokens}
    answer = (await session.change("POST", "/v1/counters/grant", body=body)).data
    session.show(answer, lambda: _say(answer, session))
    return _status(answer)


@counters.command("reset")
@_which
@changing
@connected()
async def _reset(session: Session, **values: Any) -> int:
    """Forget counters, at once on all nodes: they begin anew."""
    answer = (await session.change("POST", "/v1/counters/reset", body=_question(values))).data
    session.show(answer, lambda: _say(answer, session))
    return _status(answer)


@counters.command("refund")
@click.argument("decision_id")
@changing
@connected()
async def _refund(session: Session, decision_id: str) -> int:
    """Give back what a decision charged, by its id; good once, for an hour."""
    answer = (await session.change("POST", "/v1/counters/refund", body={"decision_id": decision_id})).data
    where = f" at node {told(answer['node'])}" if answer["node"] else ""
    session.done(answer, f"{answer['refunded']} counters got something back{where}")
    return 0


async def explain_remote(session: Session, facts: dict[str, Any], cost: int) -> int:
    """Say why a request would be decided as it is now, by each place where counters are."""
    answer = (await session.client.ask("POST", "/v1/explain", body={"facts": facts, "cost": cost})).data

    def people() -> None:
        if answer["unknown"]:
            click.echo(f"how the counters stand is not known: {told(answer['unknown'])}", err=True)
        for each in answer["nodes"]:
            if each["node"]:
                click.echo(f"node {told(each['node'])}")
            if each["explanation"] is None:
                click.echo(f"no answer: {told(each['error'])}")
            else:
                _say_explanation(each["explanation"], known=not answer["unknown"])

    session.show(answer, people)
    return 1 if any(each["explanation"] is None for each in answer["nodes"]) else 0


def _question(values: dict[str, Any]) -> dict[str, Any]:
    tier, facts = values.get("tier"), None
    if values["subject"] is not None:
        # What a subject's numbers are depends on its tier.
        values["tier"] = None
    facts = taken_facts(values)
    if (facts is None) == (values["subject"] is None):
        raise click.UsageError("say of what request (--facts, --user, --path, ...), or --rule and --subject")
    if values["subject"] is not None and values["rule"] is None:
        raise click.UsageError("--subject: say of which rule, with --rule")
    if values["subject"] is not None and ":" not in values["subject"] and values["subject"] != EVERYBODY:
        raise click.UsageError(f"--subject: say what it is as well, such as user:{values['subject']}")
    named = {"facts": facts, "rule": values["rule"], "subject": values["subject"]}
    if facts is None:
        named["tier"] = tier
    return {name: value for name, value in named.items() if value is not None}


def _say(answer: dict[str, Any], session: Session | None = None) -> None:
    rows = [
        (
            each["node"] or "(shared store)", state["counter"], state["subject"], f"{state['used']} of {state['limit']}",
            _seconds(state["wait_ms"], "never"), _seconds(state["full_ms"], "-"), state["given"] or "-",
        )
        for each in answer["nodes"]
        for state in each["counters"]
    ]  # fmt: skip
    if rows:
        table(("AT", "COUNTER", "CLIENT", "USED", "NEXT PASSES", "EMPTY IN", "GIVEN"), rows, "")
    for each in answer["nodes"]:
        where = told(each["node"]) or "(shared store)"
        if each["reset"]:
            click.echo(f"{where}: {each['reset']} counters forgotten")
        if each["error"]:
            click.echo(f"{where}: no answer: {told(each['error'])}", err=True)
    if session is not None and session.dry_run:
        click.echo("so they stand now; nothing was changed")
    elif session is not None and not answer["changed"]:
        click.echo("nothing to change: nothing is used")
    elif not rows and session is None:
        click.echo("no rule counts such a request")


def _say_explanation(explanation: dict[str, Any], *, known: bool) -> None:
    decision = explanation["decision"]
    verdict = "allowed" if decision["allowed"] else "refused"
    by = "" if decision.get("rule") is None else f" by {decision['rule']}"
    wait = decision.get("retry_after_ms")
    if not known and decision["allowed"]:
        rows = explanation["rules"]
        counted = any(row["subject"] is not None for row in rows) and not any(row["mode"] == "allow" for row in rows)
        verdict, by = "allowed, unless a counter is used up" if counted else "allowed", ""
    click.echo(
        f"{verdict}{by}" + ("" if decision["allowed"] or wait is None else f": try again in {_seconds(wait, '')}")
    )
    if known and not explanation["store_answers"]:
        click.echo("the store gives no answer; the rules' policies for that are the verdict")
    rows = []
    for row in explanation["rules"]:
        states = ", ".join(f"{state['used']} of {state['limit']} used" for state in row["counters"])
        if not known and row["subject"] is not None:
            states = "not known"
        override = row["override"]
        # Where the client is not among those of a rollout, the reason says its bucket as well.
        notes = [
            row["reason"],
            "" if row["arm"] in row["reason"] else row["arm"],
            "" if override is None else f"limits times {override['factor']}",
        ]
        what = ("applies" if row["applies"] else "no", row["quota"] or "", row["subject"] or "", states)
        mode = row["mode"] if row["tier"] is None else f"{row['mode']}, tier {row['tier']}"
        rows.append((row["rule"], *what, mode, "; ".join(filter(None, notes))))
    table(("RULE", "", "QUOTA", "CLIENT", "STATE", "MODE", "WHY"), rows, "there are no rules")


def _seconds(ms: int | None, none: str) -> str:
    if ms is None:
        return none
    return "now" if ms == 0 else f"{f'{ms / _MS_PER_S:.3f}'.rstrip('0').rstrip('.')} s"


def _status(answer: dict[str, Any]) -> int:
    """1 where some of the nodes gave no answer."""
    return 1 if any(each["error"] for each in answer["nodes"]) else 0
