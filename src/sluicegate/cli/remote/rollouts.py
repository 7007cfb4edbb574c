"""``sluicegate rollout``: rules tried on real traffic before they are the rules for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sluicegate.cli.options import DurationType, Group, NumberType, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.render import pairs, table, told, when
from sluicegate.cli.remote.rules import forced
from sluicegate.cli.remote.ruleset import say_outcome
from sluicegate.cli.remote.times import ShareType, StepType
from sluicegate.cli.rule_files import RULE_PATH, read_files, source_of
from sluicegate.errors import ConfigurationError
from sluicegate.rules.file_set import check_files, document_of_files
from sluicegate.rules.problems import RulesInvalid
from sluicegate.rules.yaml_text import yaml_of

__all__ = ["rollout"]

_ROWS_LOOKED_AT: Final = 500

_number = click.argument("number", type=click.IntRange(1), required=False)


@click.group(cls=Group)
def rollout() -> None:
    """Try rules as a shadow, or on a share of the clients, before they are the rules for everybody.

    NUMBER is that of a rollout; left out, it is the one that runs, and for status, report and candidate else the last one.
    """


@rollout.command("start")
@click.argument("paths", nargs=-1, required=True, type=RULE_PATH, metavar="FILE...")
@option("kind", type=click.Choice(["canary", "shadow"]), default="canary", help="shadow refuses nobody.")
@option(
    "share", type=ShareType(), metavar="SHARE", help="Clients inside at the beginning, such as 1%.  [default: nobody]"
)
@option("node", multiple=True, metavar="NAME", help="A node that decides everything by FILE...; may be repeated.")
@option(
    "step",
    type=StepType(),
    multiple=True,
    metavar="SHARE@SPAN",
    help="A step of the schedule, such as 10%@15m: the share, and how long after the step before; may be repeated.",
)
@option(
    "guard-refusals",
    type=NumberType(0, 1),
    metavar="RATIO",
    help="Undo it where new rules refuse more than this, such as 0.05.",
)
@option(
    "guard-store-errors",
    type=NumberType(0, 1),
    metavar="RATIO",
    help="Undo it where more requests than this fail at the store.",
)
@option(
    "guard-requests",
    type=click.IntRange(1),
    metavar="N",
    help="A share of fewer requests says nothing.  [default: 100]",
)
@option("guard-window", type=DurationType(), help="How far back the guard looks.  [default: 60s]")
@changing
@connected()
async def _start(
    session: Session,
    paths: tuple[Path, ...],
    kind: str,
    share: int | None,
    node: tuple[str, ...],
    step: tuple[dict[str, int], ...],
    guard_refusals: float | None,
    guard_store_errors: float | None,
    guard_requests: int | None,
    guard_window: float | None,
) -> int:
    """Try the rules of FILE..., a whole set, beside those in service."""
    files, source = read_files(paths), source_of(paths)
    ruleset, problems = check_files(files, source)
    if ruleset is None:
        raise RulesInvalid(source, problems)
    body: dict[str, Any] = {"kind": kind, "document": document_of_files(files)}
    if share is not None:
        body["basis_points"] = share
    body |= {name: list(given) for name, given in (("nodes", node), ("steps", step)) if given}
    guard = {
        "refusal_ratio_max": guard_refusals,
        "store_error_ratio_max": guard_store_errors,
        "min_requests": guard_requests,
        "window_s": None if guard_window is None else round(guard_window),
    }
    guard = {name: value for name, value in guard.items() if value is not None}
    if guard:
        body["guard"] = guard
    row = (await session.change("POST", "/v1/rollouts", body=body)).data
    session.done(
        row, f"rollout {row['id']}: {row['kind']} of {source} beside version {row['base_version']}{_inside(row)}"
    )
    return 0


@rollout.command("list")
@limited
@connected()
async def _list_rollouts(session: Session, limit: int) -> int:
    """List rollouts, the newest first."""
    rows = await session.rows("/v1/rollouts", "rollouts", limit)

    def people() -> None:
        made = [
            (
                row["id"],
                row["kind"],
                row["state"],
                _percent(row["basis_points"]),
                when(row["created_us"]),
                row["actor"],
                row["reason"],
            )
            for row in rows
        ]
        table(("NUMBER", "KIND", "STATE", "SHARE", "SINCE", "BY", "REASON"), made, "there was no rollout yet")

    session.show(rows, people)
    return 0


@rollout.command("status")
@_number
@connected()
async def _status(session: Session, number: int | None) -> int:
    """Show a rollout."""
    row = (await session.get(f"/v1/rollouts/{await _which(session, number, or_last=True)}")).data
    session.show(row, lambda: pairs(_told(row)))
    return 0


@rollout.command("candidate")
@_number
@connected()
async def _candidate(session: Session, number: int | None) -> int:
    """Print the rules on trial, as a rules file."""
    document = (await session.get(f"/v1/rollouts/{await _which(session, number, or_last=True)}/candidate")).data
    session.show(document, lambda: click.echo(yaml_of(document), nl=False))
    return 0


@rollout.command("report")
@_number
@connected()
async def _report(session: Session, number: int | None) -> int:
    """Show what old and new rules did, and whom the new ones refuse most."""
    found = (await session.get(f"/v1/rollouts/{await _which(session, number, or_last=True)}/report")).data

    def people() -> None:
        pairs({**_told(found["rollout"]), "requests": found["requests"], "store errors": found["store_errors"]})
        for rule in found["rules"]:
            click.echo(f"\n{told(rule['rule'])}: {rule['change']}")
            for line in (*rule["details"], rule["worst_case"], rule["note"]):
                if line:
                    click.echo(f"    {told(line)}")
        click.echo()
        rows = [
            (rule["rule"], name, counts["matched"], counts["refused"], counts["shadow_refused"], _ratio(counts))
            for rule in found["rules"]
            for name, counts in (("old", rule["old"]), ("new", rule["new"]))
            if counts is not None
        ]
        table(("RULE", "", "MATCHED", "REFUSED", "WOULD REFUSE", "SHARE"), rows, "nothing was counted yet")
        if found["clients"]:
            click.echo()
            table(("REFUSED BY", "CLIENT", "TIMES"), found["clients"], "")

    session.show(found, people)
    return 0


@rollout.command("advance")
@click.argument("share", type=ShareType())
@_number
@changing
@connected()
async def _advance(session: Session, share: int, number: int | None) -> int:
    """Go to another SHARE of the clients, such as 10%, larger or smaller."""
    which = await _which(session, number)
    row = (await session.change("POST", f"/v1/rollouts/{which}/advance", body={"basis_points": share})).data
    session.done(
        row, f"rollout {row['id']}: {_percent(row['basis_points'])} of the clients from {when(row['step_us'])} on"
    )
    return 0


@rollout.command("promote")
@_number
@forced
@changing
@connected()
async def _promote(session: Session, number: int | None, force: bool) -> int:
    """Put the rules on trial into service for everybody."""
    which = await _which(session, number)
    answer = await session.change("POST", f"/v1/rollouts/{which}/promote", params={"force": "true"} if force else {})
    session.show(answer.data, lambda: say_outcome(session, answer.data))
    return 0


@rollout.command("abort")
@_number
@changing
@connected()
async def _abort(session: Session, number: int | None) -> int:
    """End a rollout; all clients are back with the rules in service."""
    row = (await session.change("POST", f"/v1/rollouts/{await _which(session, number)}/abort")).data
    session.done(row, f"rollout {row['id']} is aborted")
    return 0


async def _which(session: Session, number: int | None, *, or_last: bool = False) -> int:
    """The number that was given, else that of the rollout that runs, else of the last one, where that will do."""
    if number is not None:
        return number
    rows = (await session.get("/v1/rollouts", page_size=str(_ROWS_LOOKED_AT))).data["rollouts"]
    running = [int(row["id"]) for row in rows if row["state"] == "running"]
    if not running and or_last and rows:
        click.echo(f"no rollout runs; this is the last one, {rows[0]['id']}", err=True)
        return int(rows[0]["id"])
    if not running:
        last = f"; the last one is {rows[0]['id']}, {rows[0]['state']}" if rows else ""
        raise ConfigurationError(f"no rollout runs{last}")
    return running[0]


def _told(row: dict[str, Any]) -> dict[str, Any]:
    guard = row["guard"] or {}
    return {
        "rollout": row["id"],
        "kind": row["kind"],
        "state": row["state"],
        "beside": f"version {row['base_version']}",
        "share": _percent(row["basis_points"]),
        "nodes": row["nodes"],
        "steps": [f"{_percent(step['basis_points'])} after {step['after_s']} s" for step in row["steps"]],
        "guard": [f"{name} {value}" for name, value in guard.items() if value is not None],
        "since": when(row["created_us"]),
        "by": row["actor"],
        "reason": row["reason"],
    }


def _inside(row: dict[str, Any]) -> str:
    if row["kind"] == "shadow":
        return ", refusing nobody"
    return f", {_percent(row['basis_points'])} of the clients" + (
        f" and nodes {told(row['nodes'])}" if row["nodes"] else ""
    )


def _percent(basis_points: int) -> str:
    return f"{basis_points / 100:g}%"


def _ratio(counts: dict[str, int]) -> str:
    refused = counts["refused"] + counts["shadow_refused"]
    return f"{100 * refused / counts['matched']:.3g}%" if counts["matched"] else "-"
