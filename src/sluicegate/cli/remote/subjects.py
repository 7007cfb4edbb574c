"""``sluicegate subjects``: the tier of single clients, and limits that differ for a while."""

from __future__ import annotations

from typing import Any

import click

from sluicegate.cli.options import Group, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.paths import subject_path
from sluicegate.cli.remote.render import pairs, table, told, when
from sluicegate.cli.remote.rules import seen, tag
from sluicegate.cli.remote.times import End, EndType
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
@option("tier", metavar="NAME", help="Its tier, one that the rules declare.")
@option("factor", metavar="FACTOR", help="What its limits are multiplied by, such as 10x or 0.5.")
@option(
    "until",
    type=EndType(),
    metavar="WHEN",
    help="When it ends: a span such as 3d, or a time such as 2026-12-04T18:00:00Z. Left out: never.",
)
@option("rule", multiple=True, metavar="NAME", help="The rules it is about; may be repeated. Left out: all.")
@option("note", metavar="TEXT", default="", help="What people should know of it.")
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
    note: str,
    if_match: str | None,
) -> int:
    """Set the tier of a subject, or a factor of its limits, in place of what was set for it."""
    if tier is None and factor is None:
        raise click.UsageError("give --tier, or --factor, or both")
    path = subject_path(subject)
    body: dict[str, Any] = {"rules": list(rule), "note": note}
    if tier is not None:
        body["tier"] = tier
    if factor is not None:
        body["factor"] = factor
    if until is not None:
        body["until_us"] = until.moment_us(SystemClock().now_us())
    if if_match is None:
        found = await session.found(path)
        match = "" if found is None else found.etag
    else:
        match = await tag(session, path, if_match)
    answer = await session.change("PUT", path, body=body, match=match)
    row = _told(answer.data)
    session.done(answer.data, f"{subject}: tier {told(row['tier'])}, limits {row['limits']}, until {row['until']}")
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


def _told(row: dict[str, Any]) -> dict[str, Any]:
    factor = row["factor_numerator"] / row["factor_denominator"]
    return {
        "subject": row["subject"],
        "tier": row["tier"],
        "limits": "as in the rules" if factor == 1 else f"{factor:g} times",
        "until": when(row["until_us"]),
        "rules": row["rules"] or "all",
        "note": row["note"],
    }
