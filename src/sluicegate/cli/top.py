"""``sluicegate top``: who is refused most, live like top(1), or once."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from sluicegate.analytics.home import Home
from sluicegate.analytics.offenders import Names, load_secrets
from sluicegate.app.analytics.homes import open_home
from sluicegate.app.control.offenders import answer
from sluicegate.bounds import TOP_ROWS_MAX
from sluicegate.cli.options import DurationType, flag, option
from sluicegate.cli.remote.connect import Session, call, connection_options
from sluicegate.cli.remote.render import print_json
from sluicegate.cli.remote.times import End, EndType
from sluicegate.cli.topping.live import watch
from sluicegate.cli.topping.named import named
from sluicegate.cli.topping.view import View, lines
from sluicegate.cli.traffic_options import chosen_clickhouse, clickhouse_option, secret_option
from sluicegate.clock import SystemClock
from sluicegate.control.offenders import OffendersQuestion, parse_window

__all__ = ["top"]

WINDOWS: Final = ("1m", "15m", "1h", "24h")
"""What the key ``w`` goes through."""

_SINCE: Final = ""
"""Instead of a window: from ``--since`` on. The key ``w`` leaves it."""

_WHEN: Final = EndType()
_EVERY_S_MIN: Final = 0.2
_SCREEN_ROWS: Final = 100
"""Asked for where a terminal shows them: as many as any has, also one that becomes larger meanwhile."""


@click.command()
@option("window", default="15m", metavar="SPAN", help="How long a time: 10s, 1m, 15m, 1h, 24h or any other.")
@option("rule", default="", metavar="NAME", help="Only of this rule; * counts over all rules. Left out: of each.")
@option("kind", type=click.Choice(["refused", "asked"]), default="refused", help="Who was refused, or who asked.")
@option(
    "find", default="", metavar="CLIENT", help="Only this client, such as user:8123; it is looked up by its digest."
)
@option(
    "names",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Clients, one a line, such as ip:203.0.113.9 or an address: rows of these show them instead of digests.",
)
@option("limit", type=click.IntRange(1, TOP_ROWS_MAX), default=20, metavar="N", help="Rows shown at most.")
@option("at", type=_WHEN, metavar="WHEN", help="The window ends then, not now: a time, or a span such as 2h ago.")
@option("since", type=_WHEN, metavar="WHEN", help="The window begins then, whatever --window says.")
@option("until", type=_WHEN, metavar="WHEN", help="The window that --since begins ends then.")
@option("every", type=DurationType(), default="2s", metavar="SPAN", help="On a terminal, how often it is shown anew.")
@flag("once", help="Print once and end; so it is where standard output is no terminal.")
@clickhouse_option()
@secret_option()
@connection_options
def top(**values: Any) -> int:
    """Show who is refused most, of a rules service or of a data directory.

    On a terminal it shows itself anew: q ends it, r goes through the rules, w through windows, s through what to sort by, k between who was
    refused and who asked. It shows as many rows as fit, or --limit.
    """
    context = click.get_current_context()
    data: Path = values["data"]
    is_once = values.pop("once") or values["json"]
    is_live = not is_once and sys.stdout.isatty() and sys.stdin.isatty()
    asked = {
        name: values.pop(name) for name in ("window", "rule", "kind", "find", "names", "limit", "at", "since", "until")
    }
    if is_live and context.get_parameter_source("limit") is ParameterSource.DEFAULT:
        asked["limit"] = min(max(asked["limit"], _SCREEN_ROWS), TOP_ROWS_MAX)
    every_s = max(values.pop("every"), _EVERY_S_MIN)
    _check(context, asked)
    clickhouse, secret_file = chosen_clickhouse(context, values.pop("clickhouse")), values.pop("analytics_secret_file")
    given = {
        name
        for name in values | {"clickhouse": ""}
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    is_local = bool(given & {"data", "clickhouse"}) or values["server"] is None
    if not is_local:
        if asked["names"] is not None:
            raise click.UsageError(
                "--names: digests are made with the secret of a data directory; give --data, or ask for one client with --find",
                context,
            )

        async def remote(session: Session) -> int:
            async def ask(view: View) -> dict[str, Any]:
                found = await session.get("/v1/offenders", **_params(asked, view))
                told: dict[str, Any] = found.data
                return told

            return await _show(ask, asked, every_s, is_live=is_live, as_json=session.as_json)

        return call(values, remote)
    if "db" in given:
        raise click.UsageError(
            "--db: what is known of traffic is in no database of rules; give --server or --data", context
        )
    if "server" in given:
        raise click.UsageError(f"give --server or --{min(given & {'data', 'clickhouse'})}, not both", context)
    secrets = partial(load_secrets, data, make=False, file=secret_file)
    known = {} if asked["names"] is None else named(asked["names"], secrets())
    home = open_home(data, clickhouse)
    try:
        return asyncio.run(
            _show(_local(home, secrets, asked, known), asked, every_s, is_live=is_live, as_json=values["json"])
        )
    finally:
        home.close()


def _local(
    home: Home, secrets: Callable[[], Sequence[bytes]], asked: dict[str, Any], known: Mapping[str, str]
) -> Callable[[View], Awaitable[dict[str, Any]]]:
    def look(view: View) -> dict[str, Any]:
        keys = secrets() if asked["find"] else ()
        found = answer(home, _question(asked, view), SystemClock().now_us(), Names(keys) if keys else None)
        told: dict[str, Any] = msgspec.to_builtins(found)
        for row in told["rows"]:
            if row["subject"] in known:
                row["name"] = known[row["subject"]]
        return told

    async def ask(view: View) -> dict[str, Any]:
        return await asyncio.to_thread(look, view)

    return ask


def _params(asked: dict[str, Any], view: View) -> dict[str, str]:
    """The query. A window up to now is left to the clock of the service."""
    question = _question(asked, view)
    params = {"rule": view.rule, "kind": view.kind, "subject": asked["find"], "limit": str(asked["limit"])}
    if asked["at"] is None and view.window != _SINCE:
        return {**params, "window": view.window}
    assert question.until_us is not None
    return {
        **params,
        "since_us": str(max(0, question.until_us - question.window_us)),
        "until_us": str(question.until_us),
    }


async def _show(
    ask: Callable[[View], Awaitable[dict[str, Any]]],
    asked: dict[str, Any],
    every_s: float,
    *,
    is_live: bool,
    as_json: bool,
) -> int:
    view = View(
        _SINCE if asked["since"] is not None else asked["window"], asked["rule"], find=asked["find"], kind=asked["kind"]
    )
    if is_live:
        await watch(ask, view, every_s, WINDOWS)
        return 0
    found = await ask(view)
    if as_json:
        print_json(found)
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000
    click.echo("\n".join(line.text.rstrip() for line in lines(found, view, width)))
    return 0


def _question(asked: dict[str, Any], view: View) -> OffendersQuestion:
    """What is asked now. Raises InvalidRequest."""
    now_us = SystemClock().now_us()
    until_us = _moment_us(asked["until"] or asked["at"], now_us)
    window = WINDOWS[1] if view.window == _SINCE else view.window
    window_us = parse_window(window)
    if view.window == _SINCE:
        window_us = until_us - _moment_us(asked["since"], now_us)
    return OffendersQuestion(window_us, until_us, view.rule, view.kind, asked["find"], asked["limit"])


def _moment_us(end: End | None, now_us: int) -> int:
    """A time, or one that is a span ago; None: now."""
    if end is None:
        return now_us
    return max(0, end.at_us if end.at_us is not None else now_us - (end.after_us or 0))


def _check(context: click.Context, asked: dict[str, Any]) -> None:
    """Raises UsageError for flags that contradict each other."""
    if asked["at"] is not None and (asked["since"] is not None or asked["until"] is not None):
        raise click.UsageError("--at: give it, or --since and --until, not both", context)
    if asked["until"] is not None and asked["since"] is None:
        raise click.UsageError("--until: it needs --since; a window that ends then is --at", context)
