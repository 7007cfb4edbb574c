"""``sluicegate subjects``: the tier of single clients, and limits that differ for a while."""

from __future__ import annotations

import re
from typing import Any

import click

from sluicegate.cli.options import Group, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.paths import subject_path
from sluicegate.cli.remote.render import pairs, table, told, when
from sluicegate.cli.remote.rules import seen, tag
from sluicegate.cli.remote.times import End, EndOrNeverType
from sluicegate.clock import SystemClock

__all__ = ["subjects"]


@click.group(cls=Group)
def subjects() -> None:
    """Show and change subjects of a service: user:NAME, api_key:NAME or tenant:NAME."""


@subjects.command("show")
@click.argument("subject", required=False)
@option("prefix", metavar="TEXT", default="", help="Only subjects whose names begin so, such as user:")
@limited
@connected()
async def _show_subjects(session: Session, subject: str | None, prefix: str, limit: int) -> int:
    """Show one subject, or list them. Exit status 1 where it is not there."""
    if subject is not None:
        found = await session.found(subject_path(subject))
        if found is None:
            click.echo(f"nothing is set for {subject}", err=True)
            return 1
        session.show(found.data, lambda: pairs(_told(found.data)))
        return 0
    rows = await session.rows("/v1/subjects", "subjects", limit, prefix=prefix)

    def people() -> None:
        made = [list(_told(row).values()) for row in rows]
        table(("SUBJECT", "TIER", "LIMITS", "UNTIL", "RULES", "NOTE"), made, "no subject is set")

    session.show(rows, people)
    return 0


@subjects.command("set")
@click.argument("subject")
@option("tier", metavar="NAME", help='Its tier, one that the rules declare; "" for none.')
@option("factor", metavar="FACTOR", help="What its limits are multiplied by, such as 10x or 0.5; 1x for none.")
@option(
    "until",
    type=EndOrNeverType(),
    metavar="WHEN",
    help="When the factor ends: a span such as 3d, a time such as 2026-12-04T18:00:00Z, or never. A tier does not end.",
)
@option("rule", multiple=True, metavar="NAME", help='The rules it is about; may be repeated; "" for all.')
@option("note", metavar="TEXT", help="What people should know of it.")
@seen
@changing
@connected()
async def _set_subject(
    session: Session,
    subject: str,
    tier: str | None,
    factor: str | None,
    until: End | None,
    rule: tuple[str, ...],
    note: str | None,
    if_match: str | None,
) -> int:
    """Set the tier of a subject, or a factor of its limits. What is not named stays as it is."""
    named: dict[str, Any] = {"tier": tier, "factor": factor, "note": note}
    if rule:
        named["rules"] = [name for name in rule if name]
    named = {name: value for name, value in named.items() if value is not None}
    if not named and until is None:
        raise click.UsageError("give --tier, --factor, --until, --rule or --note")
    path = subject_path(subject)
    found = await session.found(path)
    before = None if found is None else found.data
    now_us = SystemClock().now_us()
    body = {**_kept(before, now_us), **named}
    if until is not None:
        body["until_us"] = until.moment_us(now_us)
    if _is_plain(body.get("factor")):
        if until is not None:
            raise click.UsageError("--until: it is a factor that ends, and there is none: give --factor; a tier stays")
        body.pop("until_us", None)
    if body.get("tier") == "":
        body["tier"] = None
    match = ("" if found is None else found.etag) if if_match is None else await tag(session, path, if_match)
    answer = await session.change("PUT", path, body=body, match=match)
    was = "" if before is None else f" (before: {_sentence(before, now_us)})"
    session.done(answer.data, f"{subject}: {_sentence(answer.data, now_us)}{was}")
    return 0


@subjects.command("remove")
@click.argument("subject")
@seen
@changing
@connected()
async def _remove_subject(session: Session, subject: str, if_match: str | None) -> int:
    """Forget what was set for a subject."""
    path = subject_path(subject)
    await session.change("DELETE", path, match=await tag(session, path, if_match))
    session.done({"removed": subject}, f"nothing is set for {subject} any more")
    return 0


def _kept(row: dict[str, Any] | None, now_us: int) -> dict[str, Any]:
    """What stays of a subject where nothing else is said: all but a factor that has ended."""
    if row is None:
        return {}
    made = {name: row[name] for name in ("tier", "rules", "note")}
    if not _has_ended(row, now_us):
        made["factor"] = {"numerator": row["factor_numerator"], "denominator": row["factor_denominator"]}
        made["until_us"] = row["until_us"]
    return made


def _is_plain(factor: Any) -> bool:
    """Whether a factor, as it is sent, is none. What cannot be read is left to the service to refuse."""
    if isinstance(factor, dict):
        return bool(factor["numerator"] == factor["denominator"])
    return factor is None or re.fullmatch(r"0*1(\.0*)?x?", factor, re.ASCII) is not None


def _has_ended(row: dict[str, Any], now_us: int) -> bool:
    return row["until_us"] is not None and row["until_us"] <= now_us


def _limits(row: dict[str, Any], now_us: int) -> str:
    factor = row["factor_numerator"] / row["factor_denominator"]
    if factor == 1:
        return "as in the rules"
    return f"{factor:g} times{', ended' if _has_ended(row, now_us) else ''}"


def _sentence(row: dict[str, Any], now_us: int) -> str:
    """Tier and limits, and which of them ends when."""
    tier = "no tier" if row["tier"] is None else f"tier {told(row['tier'])}"
    ends = "" if row["until_us"] is None else f" until {when(row['until_us'])}"
    rules = f" in {told(row['rules'])}" if row["rules"] else ""
    note = f"; note: {told(row['note'])}" if row["note"] else ""
    return f"{tier}; limits {_limits(row, now_us)}{ends}{rules}{note}"


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "subject": row["subject"],
        "tier": row["tier"],
        "limits": _limits(row, SystemClock().now_us()),
        "until": when(row["until_us"]),
        "rules": row["rules"] or "all",
        "note": row["note"],
    }
