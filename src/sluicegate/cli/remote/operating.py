"""``sluicegate tokens``, ``nodes`` and ``control adopt``: who may ask a service, who decides by it, and its database."""

from __future__ import annotations

from typing import Any

import click

from sluicegate.cli.options import Group, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.paths import segment
from sluicegate.cli.remote.render import pairs, span, table, when
from sluicegate.cli.remote.times import End, EndType
from sluicegate.clock import US_PER_S, SystemClock

__all__ = ["adopt", "is_silent", "nodes", "tokens"]

_LIVE_US = 15 * US_PER_S

_NUMBER = click.IntRange(1)


@click.group(cls=Group)
def tokens() -> None:
    """Make, list and revoke tokens of a service."""


@tokens.command("create")
@click.argument("name")
@option(
    "role",
    type=click.Choice(["viewer", "editor", "admin", "node"]),
    default="viewer",
    help="What it may do: read; change rules, lists and subjects as well; everything; or, for nodes, ask for their rules.",
)
@option("namespace", multiple=True, metavar="NAME", help="A namespace it may act in; may be repeated. Left out: all.")
@option("expires", type=EndType(), metavar="WHEN", help="When it ends: a span such as 90d, or a time. Left out: never.")
@option(
    "node",
    metavar="NAME",
    help="For the role node: the only node that may report with it, with its workers NAME-0, NAME-1. Left out: any.",
)
@changing
@connected(make=True)
async def _create_token(
    session: Session, name: str, role: str, namespace: tuple[str, ...], expires: End | None, node: str | None
) -> int:
    """Make a token. It is printed this once, and kept nowhere."""
    body: dict[str, Any] = {"name": name, "role": role}
    if namespace:
        body["namespaces"] = list(namespace)
    if expires is not None:
        body |= expires.fields("expires_us", "expires_s")
    if node is not None:
        body["node"] = node
    made = (await session.change("POST", "/v1/tokens", body=body)).data
    session.show(made, lambda: click.echo(made["text"] or f"would be done: a token {name!r} of the role {role}"))
    return 0


@tokens.command("list")
@limited
@connected()
async def _list_tokens(session: Session, limit: int) -> int:
    """List tokens, the newest first, without their texts."""
    rows = await session.rows("/v1/tokens", "tokens", limit)
    made = [tuple(_told(row).values()) for row in rows]
    headings = ("NUMBER", "NAME", "ROLE", "NAMESPACES", "NODE", "MADE", "ENDS", "LAST USED")
    session.show(rows, lambda: table(headings, made, "there are no tokens"))
    return 0


@tokens.command("show")
@click.argument("number", type=_NUMBER)
@connected()
async def _show_token(session: Session, number: int) -> int:
    """Show a token, without its text."""
    row = (await session.get(f"/v1/tokens/{number}")).data
    session.show(row, lambda: pairs(_told(row)))
    return 0


@tokens.command("revoke")
@click.argument("number", type=_NUMBER)
@changing
@connected()
async def _revoke_token(session: Session, number: int) -> int:
    """Revoke a token by its number, at once."""
    row = (await session.change("DELETE", f"/v1/tokens/{number}")).data
    session.done(row, f"token {row['id']} ({row['name']}) is revoked")
    return 0


@click.command("nodes")
@option("forget", metavar="NODE", help="Take this node off the list. One that lives is back with its next report.")
@limited
@changing
@connected()
async def nodes(session: Session, forget: str | None, limit: int) -> int:
    """List the nodes of a service by their names: what each decides by, how far it is behind, and since when one is silent."""
    if forget is not None:
        await session.change("DELETE", f"/v1/nodes/{segment(forget)}")
        session.done({"forgotten": forget}, f"node {forget} is forgotten")
        return 0
    now_us = (await session.get("/v1/nodes", page_size="1")).at_us or SystemClock().now_us()
    rows = await session.rows("/v1/nodes", "nodes", limit)

    def people() -> None:
        made = []
        for row in rows:
            report = row["report"]
            lag = "none" if not row["lag_us"] else span(row["lag_us"])
            made.append(
                (
                    report["node"],
                    report["applied"]["ruleset"],
                    lag,
                    f"{'silent since ' if is_silent(row, now_us) else ''}{when(row['last_seen_us'])}",
                    report["release"],
                    report["error"] or "",
                )
            )
        table(("NODE", "VERSION", "BEHIND", "LAST SEEN", "RELEASE", "ERROR"), made, "no node has reported yet")

    session.show(rows, people)
    return 0


def is_silent(row: dict[str, Any], now_us: int) -> bool:
    """Whether three reports of a node, and some time, have not come."""
    return bool(now_us - row["last_seen_us"] > max(_LIVE_US, 3 * US_PER_S * row["report"]["interval_s"]))


@click.command("adopt")
@changing
@connected()
async def adopt(session: Session) -> int:
    """Begin a new life of a database that was set back to an earlier state, so that nodes take what it says."""
    revisions = (await session.change("POST", "/v1/adopt")).data
    session.done(revisions, f"nodes will take the rules as they are here, version {revisions['ruleset']}")
    return 0


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": row["id"],
        "name": row["name"],
        "role": row["role"],
        "namespaces": row["namespaces"] if row["namespaces"] is not None else "all",
        "node": row.get("node") or "",
        "made": when(row["created_us"]),
        "ends": f"revoked {when(row['revoked_us'])}" if row["revoked_us"] is not None else when(row["expires_us"]),
        "last used": when(row["last_used_us"]),
    }
