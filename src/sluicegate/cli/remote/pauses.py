"""``sluicegate pause``, ``resume`` and ``pauses``: the kill switch."""

from __future__ import annotations

from typing import Any

import click

from sluicegate.cli.options import flag, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.render import pairs, table, when
from sluicegate.cli.remote.times import End, EndType

__all__ = ["pause", "pauses", "resume"]

_ALL_ROWS = 10_000

_rules = option("rule", multiple=True, metavar="NAME", help="The rule; may be repeated. Left out: every rule.")


@click.command("pause")
@_rules
@option(
    "for",
    type=EndType(),
    metavar="WHEN",
    help="When it ends by itself: a span such as 15m, or a time. Left out: when it is resumed.",
)
@changing
@connected()
async def pause(session: Session, rule: tuple[str, ...], **values: Any) -> int:
    """Let a rule, or all rules, limit nothing for a while; live on all nodes within a second."""
    # The flag has the name of a keyword.
    ends: End | None = values["for"]
    made = []
    for name in rule or (None,):
        body: dict[str, Any] = {"rule": name, **({} if ends is None else ends.fields("until_us", "for_s"))}
        made.append((await session.change("POST", "/v1/pauses", body=body)).data)
    said = [
        f"{_what(row)} is paused, {'until it is resumed' if row['until_us'] is None else 'until ' + when(row['until_us'])}"
        for row in made
    ]
    session.done(made, "\n".join(said))
    session.warn_of_nodes()
    return 0


@click.command("resume")
@_rules
@flag("all", help="End every pause.")
@changing
@connected()
async def resume(session: Session, rule: tuple[str, ...], all: bool) -> int:  # noqa: A002 - the name of the flag
    """End the pause of all rules, or of single ones. Exit status 1 where there is none."""
    held = await session.rows("/v1/pauses", "pauses", _ALL_ROWS)
    wanted: tuple[str | None, ...] = rule or (None,)
    ended = []
    for row in held:
        if all or row["rule"] in wanted:
            ended.append((await session.change("DELETE", f"/v1/pauses/{row['id']}")).data)
    missing = [] if all else [name for name in wanted if name not in {row["rule"] for row in ended}]
    others = [_what(row) for row in held if row["id"] not in {each["id"] for each in ended}]
    for name in missing:
        click.echo("there is no pause of all rules" if name is None else f"rule {name!r} is not paused", err=True)
    if missing and others:
        click.echo(f"paused: {', '.join(others)}", err=True)
    if ended or not missing:
        session.done(ended, "\n".join(f"{_what(row)} is resumed" for row in ended) or "nothing is paused")
    if ended:
        session.warn_of_nodes()
    return 1 if missing else 0


@click.command("pauses")
@click.argument("number", type=click.IntRange(1), required=False)
@flag("ended", help="Also those that have ended.")
@limited
@connected()
async def pauses(session: Session, number: int | None, ended: bool, limit: int) -> int:
    """List pauses, the newest first, or show the one with a NUMBER."""
    if number is not None:
        row = (await session.get(f"/v1/pauses/{number}")).data
        session.show(row, lambda: pairs(_told(row)))
        return 0
    rows = await session.rows("/v1/pauses", "pauses", limit, ended="true" if ended else "")
    made = [tuple(_told(row).values()) for row in rows]
    headings = ("NUMBER", "WHAT", "SINCE", "UNTIL", "ENDED", "BY", "REASON")
    session.show(rows, lambda: table(headings, made, "nothing is paused"))
    return 0


def _what(row: dict[str, Any]) -> str:
    return "every rule" if row["rule"] is None else f"rule {row['rule']!r}"


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": row["id"],
        "what": _what(row),
        "since": when(row["created_us"]),
        "until": when(row["until_us"], "resumed"),
        "ended": when(row["ended_us"], "-"),
        "by": row["actor"],
        "reason": row["reason"],
    }
