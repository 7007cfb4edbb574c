"""``sluicegate versions`` and ``sluicegate rollback``: what was in service, and going back to it."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from sluicegate.cli.options import Group
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.render import cut, pairs, table, told, when
from sluicegate.cli.remote.rules import forced, seen, tag
from sluicegate.cli.remote.ruleset import say_outcome
from sluicegate.rules.diff import Change, render_diff
from sluicegate.rules.yaml_text import yaml_of

__all__ = ["rollback", "versions"]

_NUMBER = click.IntRange(1)


@click.group(cls=Group)
def versions() -> None:
    """Show the versions of the rules of a service."""


@versions.command("list")
@limited
@connected()
async def _list_versions(session: Session, limit: int) -> int:
    """List versions, the newest first."""
    rows = await session.rows("/v1/versions", "versions", limit)

    def people() -> None:
        made = [
            (row["version"], when(row["created_us"]), row["actor"], cut(told(row["summary"])), row["reason"])
            for row in rows
        ]
        table(("VERSION", "MADE", "BY", "CHANGE", "REASON"), made, "there is no version yet")

    session.show(rows, people)
    return 0


@versions.command("show")
@click.argument("number", type=_NUMBER)
@connected()
async def _show_version(session: Session, number: int) -> int:
    """Print a version with its rules, as a rules file with a head of comments."""
    version = (await session.get(f"/v1/versions/{number}")).data

    def people() -> None:
        info: dict[str, Any] = version["info"]
        for name in ("version", "created_us", "actor", "action", "reason", "managed_by", "digest"):
            value = when(info[name]) if name == "created_us" else info[name]
            if value != "":
                click.echo(f"# {name.removesuffix('_us')}: {told(value)}")
        click.echo(yaml_of(version["document"]), nl=False)

    session.show(version, people)
    return 0


@versions.command("diff")
@click.argument("old", type=_NUMBER)
@click.argument("new", type=_NUMBER)
@connected()
async def _diff_versions(session: Session, old: int, new: int) -> int:
    """Say what lies between two versions. Exit status 0 same, 1 differs."""
    found = (await session.get(f"/v1/versions/{old}/diff/{new}")).data
    changes = msgspec.convert(found["changes"], list[Change])

    def people() -> None:
        if changes:
            click.echo(render_diff(changes))
        elif found["patches"]:
            pairs({"written otherwise, no difference in meaning": list(found["patches"])})
        else:
            click.echo("no difference")

    session.show(found, people)
    return 1 if changes or found["patches"] else 0


@click.command("rollback")
@click.argument("number", type=_NUMBER)
@seen
@forced
@changing
@connected()
async def rollback(session: Session, number: int, if_match: str | None, force: bool) -> int:
    """Put the rules of an earlier version into service, as a new version."""
    match = await tag(session, "/v1/ruleset", if_match)
    params = {"force": "true"} if force else {}
    answer = await session.change("POST", f"/v1/versions/{number}/rollback", match=match, params=params)
    session.show(answer.data, lambda: say_outcome(session, answer.data))
    return 0
