"""``sluicegate lists``: who always passes and who never does."""

from __future__ import annotations

import codecs
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from sluicegate.cli.options import DurationType, Group, flag, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.paths import entry_path, segment, split_value
from sluicegate.cli.remote.render import pairs, table, told, when
from sluicegate.cli.remote.rules import seen, tag
from sluicegate.cli.remote.times import End, EndType
from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError

__all__ = ["lists"]

_LIST: Final = click.Choice(["allow", "block"])
_KIND: Final = click.Choice(["ip", "user", "api_key", "tenant"])
_CHUNK_BYTES: Final = 65_536
_MEDIA: Final = {"text": "text/plain", "ndjson": "application/x-ndjson"}

_list_argument = click.argument("name", type=_LIST, metavar="allow|block")
_ends = option(
    "expires", type=EndType(), metavar="WHEN", help="When it ends: a span such as 15m, or a time. Left out: never."
)

_force = flag("force", help="Take networks wider than /8 (IPv4) or /16 (IPv6).")


@click.group(cls=Group)
def lists() -> None:
    """Show and change the allow and the block list of a service.

    VALUE is an address or a network, user:NAME, api_key:NAME or tenant:NAME.
    """


@lists.command("show")
@click.argument("name", type=_LIST, metavar="[allow|block]", required=False)
@option("kind", type=_KIND, help="Only entries of this kind.")
@option("source", metavar="NAME", help="Only entries of this feed.")
@limited
@connected()
async def _show_lists(session: Session, name: str | None, kind: str | None, source: str | None, limit: int) -> int:
    """Show how many entries the lists have, or the entries of one."""
    if name is None:
        counts = (await session.get("/v1/lists")).data
        rows = [
            (each, source or "(by hand)", number)
            for each, summary in counts.items()
            for source, number in summary["sources"].items()
        ]
        session.show(counts, lambda: table(("LIST", "SOURCE", "ENTRIES"), rows, "both lists are empty"))
        return 0
    found = await session.rows(f"/v1/lists/{name}", "entries", limit, kind=kind or "", source=source or "")

    def people() -> None:
        made = [
            (row["kind"], row["value"], when(row["expires_us"]), row["source"], row["actor"], row["reason"])
            for row in found
        ]
        table(("KIND", "VALUE", "ENDS", "SOURCE", "BY", "REASON"), made, f"the {name} list has no such entry")

    session.show(found, people)
    return 0


@lists.command("get")
@_list_argument
@click.argument("value")
@connected()
async def _get_entry(session: Session, name: str, value: str) -> int:
    """Show one entry, by any spelling of its value. Exit status 1 where there is none; networks that cover an address are named."""
    from sluicegate.cli.client import Refusal

    try:
        row = (await session.get(entry_path(name, value))).data
    except Refusal as error:
        if error.status != 404:
            raise
        wider = error.problem.get("covered_by", ())
        if wider:
            click.echo(f"{value} has no entry on the {name} list, but is within {told(wider)}, which has", err=True)
        else:
            click.echo(f"{value} is not on the {name} list", err=True)
        return 1
    session.show(row, lambda: pairs(_told(row)))
    return 0


@lists.command("add")
@_list_argument
@click.argument("value")
@_ends
@option("source", metavar="NAME", help="The feed it belongs to.  [default: none]")
@flag("update", help="Change the entry where it is there already.")
@_force
@changing
@connected()
async def _add_entry(
    session: Session, name: str, value: str, expires: End | None, source: str | None, update: bool, force: bool
) -> int:
    """Put somebody on a list."""
    settings: dict[str, Any] = {} if expires is None else expires.fields("expires_us", "expires_s")
    if source is not None:
        settings["source"] = source
    params = {"force": "true"} if force else {}
    path = entry_path(name, value)
    found = await session.found(path) if update else None
    if found is not None:
        answer = await session.change("PUT", path, body=settings, match=found.etag, params=params)
    else:
        kind, spelled = split_value(value)
        body = {"kind": kind, "value": spelled, **settings}
        answer = await session.change("POST", f"/v1/lists/{name}", body=body, params=params)
    row = answer.data
    session.done(row, f"{row['kind']} {row['value']} is on the {name} list, ends {when(row['expires_us'])}")
    return 0


@lists.command("remove")
@_list_argument
@click.argument("value", required=False)
@option("source", metavar="NAME", help="In place of a VALUE: all entries of this feed.")
@seen
@changing
@connected()
async def _remove_entries(
    session: Session, name: str, value: str | None, source: str | None, if_match: str | None
) -> int:
    """Take somebody, or a whole feed, off a list."""
    if (value is None) == (source is None):
        raise click.UsageError("give a VALUE, or --source for all entries of a feed")
    if source is not None:
        answer = await session.change("DELETE", f"/v1/lists/{name}/sources/{segment(source)}")
        session.done(answer.data, f"{answer.data['removed']} entries of {source!r} are off the {name} list")
        return 0
    path = entry_path(name, str(value))
    await session.change("DELETE", path, match=await tag(session, path, if_match))
    session.done({"removed": 1}, f"{value} is off the {name} list")
    return 0


@lists.command("import")
@_list_argument
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@option("source", metavar="NAME", required=True, help="The name of the feed.")
@option("kind", type=_KIND, default="ip", help="What the values name, where a line does not say.")
@option(
    "lines",
    type=click.Choice(["auto", *_MEDIA]),
    default="auto",
    help="Form of the lines; auto looks at the first character.",
)
@flag("replace", help="Remove entries of this feed that are not among the lines.")
@_force
@_ends
@option("import-timeout", type=DurationType(), default="10m", help="How long to wait for the service to take it.")
@changing
@connected()
async def _import_entries(
    session: Session,
    name: str,
    file: Path,
    source: str,
    kind: str,
    lines: str,
    replace: bool,
    force: bool,
    expires: End | None,
    import_timeout: float,
) -> int:
    """Take a feed into a list, nothing of it where a line is wrong: a value a line, or JSON objects a line. FILE may be - for standard input."""
    if expires is not None and expires.after_us is None:
        raise click.BadParameter("a feed ends a span from now, such as 7d", param_hint="--expires")
    params = {"source": source, "kind": kind, "replace": "true" if replace else "false"}
    if force:
        params["force"] = "true"
    if expires is not None and expires.after_us is not None:
        params["expires_s"] = str(expires.after_us / US_PER_S)
    try:
        # Opened here, so that what cannot be read is said before the service is asked.
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        with stream:
            first = stream.read(_CHUNK_BYTES)
            start = first.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
            media = _MEDIA[lines] if lines != "auto" else _MEDIA["ndjson" if start == b"{" else "text"]
            answer = await session.change(
                "POST",
                f"/v1/lists/{name}/import",
                params=params,
                content=_chunks(first, stream),
                media=media,
                timeout_s=import_timeout,
            )
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error
    result = answer.data
    parts = [f"{result[part]} {part}" for part in ("added", "changed", "removed", "unchanged")]
    session.done(result, f"{result['lines']} lines of {source!r}: {', '.join(parts)}")
    return 0


async def _chunks(first: bytes, stream: BinaryIO) -> AsyncIterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = stream.read(_CHUNK_BYTES)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "list": row["list"],
        "kind": row["kind"],
        "value": row["value"],
        "ends": when(row["expires_us"]),
        "source": row["source"],
        "reason": row["reason"],
        "since": when(row["created_us"]),
        "by": row["actor"],
    }
