"""``sluicegate control``: the rules service, and what is done to its database by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.tls import tls_files
from sluicegate.cli.options import AddressType, DurationType, Group, config_option, flag, option
from sluicegate.cli.remote.offline import missing_control, opened_locally
from sluicegate.cli.remote.operating import adopt
from sluicegate.cli.tls import general_tls_options
from sluicegate.cli.traffic_options import secret_option

__all__ = ["control"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)
_DURATION: Final = DurationType()


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
        option(
            "node-api-token",
            metavar="TOKEN",
            help="API token of the nodes (their --api-token), to read and change their counters.",
        ),
        option(
            "node-api-allow",
            multiple=True,
            metavar="CIDR",
            help="Network in which nodes are asked, besides where their reports come from; may be repeated.",
        ),
        option("store", metavar="URL", help="Store that the nodes share, to read and change counters in it."),
        option(
            "clickhouse",
            metavar="URL",
            help="ClickHouse in which traffic is looked up: clickhouse://USER@HOST:PORT/DATABASE.  [default: DATA/analytics.db]",
        ),
        secret_option(),
        flag("no-analytics", help="Keep and tell nothing about traffic."),
        option("push", metavar="URL", help="Redis on which nodes are told of changes; PostgreSQL needs none."),
        flag("allow-plaintext", help="Listen off loopback without TLS: something in front of it speaks TLS."),
        *general_tls_options(),
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
        store=values["store"],
        node_api_token=values["node_api_token"],
        node_api_allow=values["node_api_allow"],
        admin_token=values["admin_token"],
        drain_delay_s=values["drain_delay"],
        drain_timeout_s=values["drain_timeout"],
        log_format=values["log_format"],
        analytics=not values["no_analytics"],
        clickhouse=values["clickhouse"] or None,
        analytics_secret_file=values["analytics_secret_file"],
    )
    try:
        from sluicegate.app.control.run import run_control
    except ModuleNotFoundError as error:
        raise missing_control(error) from error
    return run_control(settings)


@control.command("upgrade")
@_database_options
def _upgrade(db: str | None, data: Path) -> int:
    """Bring the tables of the database to this release, and end. A service does so by itself when it starts."""

    async def work() -> None:
        async with opened_locally(db, data, make=True) as (service, _):
            version = (await service.revisions()).ruleset
            print(f"the tables are those of this release; the rules are at version {version}")

    asyncio.run(work())
    return 0


control.add_command(adopt)
