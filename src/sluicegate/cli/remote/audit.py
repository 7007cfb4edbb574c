"""``sluicegate audit``: who changed what, and whether the trail of it is whole."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from sluicegate.cli.options import Group, option
from sluicegate.cli.remote.connect import Session, connected, limited
from sluicegate.cli.remote.render import cut, pairs, print_json, table, told, when
from sluicegate.cli.remote.times import End, EndType
from sluicegate.clock import SystemClock
from sluicegate.errors import ConfigurationError

__all__ = ["audit"]


@click.group(cls=Group)
def audit() -> None:
    """Read and check the audit trail of a service. Nothing can change it."""


@audit.command("list")
@option("action", metavar="NAME", default="", help="Only this action, such as rule.put.")
@option("by", metavar="ACTOR", default="", help="Only by this actor.")
@option("resource", metavar="NAME", default="", help="Only about this, such as rule:login.")
@option("outcome", type=click.Choice(["accepted", "refused"]), help="Only with this outcome.")
@option("since", type=EndType(), metavar="WHEN", help="Only lines of the last while, such as 2h, or since a time.")
@limited
@connected()
async def _list_audit(
    session: Session, action: str, by: str, resource: str, outcome: str | None, since: End | None, limit: int
) -> int:
    """List the audit trail, the newest line first."""
    sought = {"action": action, "by": by, "resource": resource, "outcome": outcome or ""}
    if since is not None:
        begin_us = since.at_us if since.after_us is None else SystemClock().now_us() - since.after_us
        sought["since_us"] = str(max(begin_us or 0, 0))
    rows = await session.rows("/v1/audit", "rows", limit, **sought)

    def people() -> None:
        made = [
            (
                row["id"],
                when(row["at_us"]),
                row["actor"],
                row["action"],
                row["resource"],
                row["outcome"],
                _versions(row),
                _why(row),
            )
            for row in rows
        ]
        headings = ("LINE", "WHEN", "BY", "ACTION", "ABOUT", "OUTCOME", "VERSION", "REASON")
        table(headings, made, "the trail has no such line")

    session.show(rows, people)
    return 0


@audit.command("show")
@click.argument("line", type=click.IntRange(1))
@connected()
async def _show_line(session: Session, line: int) -> int:
    """Show one line of the audit trail with all that it holds, such as what a change changed."""
    row = (await session.get(f"/v1/audit/{line}")).data

    def people() -> None:
        fields = {name.removesuffix("_us"): value for name, value in row.items() if name != "diff"}
        pairs({**fields, "at": when(row["at_us"])})
        if row["diff"] is not None:
            print_json(row["diff"])

    session.show(row, people)
    return 0


@audit.command("verify")
@option("head", metavar="ID:HASH", default="", help="A head that was noted elsewhere, which must be in the trail.")
@option("head-file", type=click.Path(path_type=Path), metavar="FILE", help="File with that head.")
@connected()
async def _verify(session: Session, head: str, head_file: Path | None) -> int:
    """Walk the audit trail and say whether it is whole. Exit status 1 where it is not.

    Note the head it prints where another owner keeps it: only against that can rows be missed that were cut off at the end.
    """
    if head_file is not None:
        if head:
            raise click.UsageError("give --head or --head-file, not both")
        try:
            head = head_file.read_text().strip()  # noqa: ASYNC240 - one small local file
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read {head_file}: {getattr(error, 'strerror', None) or 'not text'}"
            ) from error
    verdict = (await session.get("/v1/audit/verify", head=head)).data

    def people() -> None:
        for fault in verdict["faults"]:
            click.echo(told(fault))
        if not verdict["faults"]:
            click.echo(f"{verdict['rows']} lines, whole")
        click.echo(f"head {verdict['head']}")

    session.show(verdict, people)
    return 1 if verdict["faults"] else 0


@audit.command("export")
@option("after", type=click.IntRange(0), default=0, metavar="LINE", help="Only lines above this number.")
@option(
    "output",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    metavar="FILE",
    help="Where to write; - prints.",
)
@connected()
async def _export(session: Session, after: int, output: Path) -> int:
    """Write the audit trail, the oldest line first, a JSON object a line; the export itself is its last line."""
    last: dict[str, Any] = {}
    lines = 0
    with _opened(output) as stream:
        async for line in session.client.lines("/v1/audit/export", {"after": str(after)}):
            stream.write(f"{line}\n")
            lines += 1
            last = json.loads(line)
        stream.flush()
    if str(output) != "-":
        told_of = {"lines": lines, "head": f"{last['id']}:{last['hash']}" if last else ""}
        session.show(told_of, lambda: click.echo(f"{lines} lines, head {told_of['head']}"))
    return 0


@contextlib.contextmanager
def _opened(output: Path) -> Iterator[TextIO]:
    if str(output) == "-":
        yield sys.stdout
        return
    try:
        with output.open("w") as stream:
            yield stream
    except OSError as error:
        raise ConfigurationError(f"cannot write {output}: {error.strerror}") from error


def _why(row: dict[str, Any]) -> str:
    """The reason that was given, and why it was refused."""
    refusal = row["diff"].get("refused") if isinstance(row["diff"], dict) and row["outcome"] == "refused" else None
    return "; ".join(filter(None, (row["reason"], f"refused: {cut(told(refusal), 100)}" if refusal else "")))


def _versions(row: dict[str, Any]) -> str:
    if row["after_version"] is None:
        return ""
    return f"{row['before_version']} -> {row['after_version']}"
