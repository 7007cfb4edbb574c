"""The rules service, and what is done to its database by hand: ``control`` and ``tokens``."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.tls import tls_files
from sluicegate.cli.options import AddressType, DurationType, Group, config_option, flag, option
from sluicegate.clock import SystemClock
from sluicegate.errors import MissingExtra
from sluicegate.rules.notation import NotationError, parse_span

if TYPE_CHECKING:
    from sluicegate.control.model import Actor
    from sluicegate.control.service import RulesService

__all__ = ["control", "tokens"]

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

_PATH: Final = click.Path(path_type=Path)
_DURATION: Final = DurationType()
_NEEDS: Final = frozenset({"sqlalchemy", "alembic", "aiosqlite", "greenlet", "fastapi", "starlette", "uvicorn", "h11"})


def _database_options(function: Function) -> Function:
    """Where the database is."""
    for decorator in (
        option(
            "db",
            metavar="URL",
            help="Database: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.  [default: SQLite in DATA/control.db]",
        ),
        option("data", type=_PATH, default=".sluicegate", metavar="DIR", help="Directory of what is kept."),
        config_option(),
    ):
        function = decorator(function)
    return function


def _serving_options(function: Function) -> Function:
    for decorator in (
        option(
            "log-format",
            type=click.Choice(["auto", "json", "plain"]),
            default="auto",
            help="Lines on standard error; auto is plain on a terminal, else json.",
        ),
        option(
            "drain-timeout", type=_DURATION, default="10s", help="Time for requests in flight to finish at the end."
        ),
        option("drain-delay", type=_DURATION, default="0s", help="After SIGTERM, time to go on while /readyz says no."),
        option(
            "admin-token",
            metavar="TOKEN",
            help="Becomes a token of an admin. Without it one is made where there is none, and printed once.",
        ),
        option("push", metavar="URL", help="Redis on which nodes are told of changes; PostgreSQL needs none."),
        flag("allow-plaintext", help="Listen off loopback without TLS: something in front of it speaks TLS."),
        option(
            "tls-client-ca", type=_PATH, metavar="FILE", help="Authorities that clients' certificates must come from."
        ),
        option("tls-key", type=_PATH, metavar="FILE", help="Key of the certificate."),
        option("tls-cert", type=_PATH, metavar="FILE", help="Certificate of the listener, with its chain (PEM)."),
        option(
            "rules", type=_PATH, metavar="FILE", help="Rule file that owns the rules, watched; each edit is a version."
        ),
        option(
            "control",
            type=AddressType(),
            metavar="ADDRESS",
            default="127.0.0.1:8090",
            help="Listener: HOST:PORT, [IPV6]:PORT or unix:PATH.",
        ),
        _database_options,
    ):
        function = decorator(function)
    return function


@click.group(cls=Group, invoke_without_command=True)
@_serving_options
@click.pass_context
def control(ctx: click.Context, /, **values: Any) -> int | None:
    """Run the rules service: rules, subjects and lists, changed by API while traffic flows."""
    if ctx.invoked_subcommand is not None:
        return None
    settings = ControlSettings(
        listen=values["control"],
        db=values["db"],
        data=values["data"],
        rules=values["rules"],
        tls=tls_files(values["tls_cert"], values["tls_key"], values["tls_client_ca"]),
        allow_plaintext=values["allow_plaintext"],
        push=values["push"],
        admin_token=values["admin_token"],
        drain_delay_s=values["drain_delay"],
        drain_timeout_s=values["drain_timeout"],
        log_format=values["log_format"],
    )
    try:
        from sluicegate.app.control.run import run_control
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return run_control(settings)


@control.command()
@_database_options
def upgrade(db: str | None, data: Path) -> int:
    """Bring the tables of the database to this release, and end. A service does so by itself when it starts."""

    async def work(service: RulesService, _actor: Actor) -> None:
        version = (await service.revisions()).ruleset
        print(f"the tables are those of this release; the rules are at version {version}")

    return _offline(db, data, work)


@control.command()
@_database_options
@option("reason", metavar="TEXT", default="", help="Why, for the audit trail.")
def adopt(db: str | None, data: Path, reason: str) -> int:
    """Begin a new life of a database that was set back to an earlier state, so that nodes take what it says."""

    async def work(service: RulesService, actor: Actor) -> None:
        revisions = await service.adopt(actor, reason=reason)
        print(f"nodes will take the rules as they are here, version {revisions.ruleset}")

    return _offline(db, data, work)


@click.group(cls=Group)
def tokens() -> None:
    """Make, list and revoke tokens of the rules service, in its database, without asking it."""


@tokens.command("create")
@click.argument("name")
@option(
    "role",
    type=click.Choice(["viewer", "editor", "admin", "node"]),
    default="viewer",
    help="What it may do: read; change rules, lists and subjects as well; everything; or, for nodes, ask for their rules.",
)
@option("expires", metavar="SPAN", help="When it ends, such as 90d from now; left out: never.")
@_database_options
def create_token(name: str, role: str, expires: str | None, db: str | None, data: Path) -> int:
    """Make a token. It is printed, and kept nowhere."""
    try:
        span_us = None if expires is None else parse_span(expires)
    except NotationError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from error

    async def work(service: RulesService, actor: Actor) -> None:
        from sluicegate.control.model import Role

        ends_us = None if span_us is None else service.ledger.clock.now_us() + span_us
        _, text = await service.tokens.create(actor, name, Role(role), expires_us=ends_us)
        print(text)

    return _offline(db, data, work)


@tokens.command("list")
@_database_options
def list_tokens(db: str | None, data: Path) -> int:
    """List tokens, the newest first, without their texts."""

    async def work(service: RulesService, actor: Actor) -> None:
        token = ""
        while True:
            page = await service.tokens.page(actor, page_size=500, page_token=token)
            for row in page.items:
                state = "revoked" if row.revoked_us is not None else f"expires {_day(row.expires_us)}"
                print(f"{row.id}\t{row.role}\t{state}\tlast used {_day(row.last_used_us)}\t{row.name}")
            token = page.next_token
            if not token:
                return

    return _offline(db, data, work)


@tokens.command("revoke")
@click.argument("number", type=click.IntRange(min=1))
@option("reason", metavar="TEXT", default="", help="Why, for the audit trail.")
@_database_options
def revoke_token(number: int, reason: str, db: str | None, data: Path) -> int:
    """Revoke a token by its number, at once."""

    async def work(service: RulesService, actor: Actor) -> None:
        row = await service.tokens.revoke(actor, number, reason=reason)
        print(f"token {row.id} ({row.name}) is revoked")

    return _offline(db, data, work)


def _offline(db: str | None, data: Path, work: Callable[[RulesService, Actor], Awaitable[None]]) -> int:
    """Do something to the database as whoever may write it."""
    try:
        from sluicegate.app.control.run import opened
        from sluicegate.control.model import Actor, Role
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    async def run() -> None:
        found: AbstractAsyncContextManager[RulesService] = opened(db, data, SystemClock())
        async with found as service:
            await work(service, Actor(f"offline:{getpass.getuser()}", "local", role=Role.ADMIN))

    asyncio.run(run())
    return 0


def _missing(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").split(".")[0] in _NEEDS:
        return MissingExtra("control", "the rules service")
    return error


def _day(us: int | None) -> str:
    return "never" if us is None else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="minutes")
