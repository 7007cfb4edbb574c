"""``sluicegate suggest``: what limits would suit the traffic, and drafts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from sluicegate.analytics.home import Home
from sluicegate.app.analytics.homes import open_home
from sluicegate.app.control.suggestions import proposed
from sluicegate.cli.options import NumberType, flag, option
from sluicegate.cli.remote.connect import Session, call, changing, connection_options
from sluicegate.cli.remote.render import print_json, when
from sluicegate.cli.remote.times import End, EndType
from sluicegate.cli.rule_files import read_files, source_of
from sluicegate.cli.suggesting.draft import draft_file, draft_rollout, picked
from sluicegate.cli.suggesting.view import show
from sluicegate.cli.traffic_options import chosen_clickhouse, clickhouse_option
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.control.suggestions import SuggestionsQuestion
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.rules.document import load_document
from sluicegate.rules.file_set import check_files, document_of_files
from sluicegate.rules.model import RuleSet
from sluicegate.rules.notation import NotationError, parse_span
from sluicegate.rules.problems import RulesInvalid
from sluicegate.rules.proposals import Suggestion

__all__ = ["suggest"]

_WHEN: Final = EndType()
_OWN: Final = (
    "rule",
    "tier",
    "window",
    "at",
    "since",
    "until",
    "floor",
    "target",
    "explain",
    "draft",
    "output",
    "rules",
    "clickhouse",
)


@click.command()
@option("rule", metavar="NAME", help="Only for this rule.")
@option("tier", metavar="NAME", help="Only for this tier.")
@option("window", default="7d", metavar="SPAN", help="How long a time is looked at: 24h, 7d, 4w.")
@option("at", type=_WHEN, metavar="WHEN", help="The window ends then, not now: a time, or a span such as 2h ago.")
@option("since", type=_WHEN, metavar="WHEN", help="The window begins then, whatever --window says.")
@option("until", type=_WHEN, metavar="WHEN", help="The window that --since begins ends then.")
@option(
    "floor",
    multiple=True,
    metavar="RULE[:TIER]=QUOTA",
    help="Propose nothing below this, such as api:paid=600/minute, which was promised; may be repeated.",
)
@option(
    "target",
    type=NumberType(0.5, 0.9999),
    default=0.995,
    metavar="SHARE",
    help="Of the clients that shall never be refused.",
)
@flag("explain", help="Print the numbers behind each proposal.")
@flag(
    "draft", help="Make a draft of what is proposed, which a person applies: a rollout with nobody inside, or a file."
)
@option("output", type=click.Path(path_type=Path), metavar="FILE", help="With --rules and --draft: the file written.")
@option("rules", type=click.Path(path_type=Path), metavar="FILE", help="Rules that numbers are proposed for, offline.")
@clickhouse_option()
@changing
@connection_options
def suggest(**values: Any) -> int:
    """Propose quotas that suit the traffic, of a rules service or of a data directory.

    Nothing is applied. Exit status 1: nothing is proposed that a draft could be made of.
    """
    context = click.get_current_context()
    asked = {name: values.pop(name) for name in _OWN}
    data: Path = values["data"]
    named_data = context.get_parameter_source("data") is ParameterSource.COMMANDLINE
    named_server = context.get_parameter_source("server") is ParameterSource.COMMANDLINE
    named_clickhouse = context.get_parameter_source("clickhouse") is ParameterSource.COMMANDLINE
    if named_clickhouse and not named_data and asked["rules"] is None and values["server"] is not None:
        raise click.UsageError(
            "--clickhouse: a service looks where it was told to; give --data or --rules with it", context
        )
    asked["clickhouse"] = chosen_clickhouse(context, asked["clickhouse"])
    if named_server and (named_data or asked["rules"] is not None):
        raise click.UsageError("give --server, or --data and --rules, not both", context)
    _check(context, asked)
    if asked["rules"] is not None:
        return _offline(asked, data, as_json=values["json"], dry_run=values["dry_run"])

    async def work(session: Session) -> int:
        return await _online(session, asked, data)

    return call(values, work)


async def _online(session: Session, asked: dict[str, Any], data: Path) -> int:
    """Of the rules in service."""
    question = _question(asked)
    document: dict[str, Any] = (await session.get("/v1/ruleset")).data
    if session.is_local:
        made = _asked_of(data, load_document(document, "rules in service", 1), question, asked["clickhouse"])
    else:
        params = {
            "since_us": str(question.since_us),
            "until_us": str(question.until_us),
            "target": f"{question.target_share:g}",
        }
        params |= {name: asked[name] for name in ("rule", "tier") if asked[name] is not None}
        if question.floors:
            params["floor"] = ",".join(question.floors)
        answer = await session.client.ask("GET", "/v1/suggestions", params=params)
        made = msgspec.convert(answer.data["suggestions"], list[Suggestion])
    found = msgspec.to_builtins(made)
    if not session.as_json:
        show(made, explain=asked["explain"])
    picks = picked(made)
    draft = await draft_rollout(session, document, picks) if asked["draft"] and picks else None
    return _end(asked, found, draft, as_json=session.as_json, is_empty=not picks)


def _offline(asked: dict[str, Any], data: Path, *, as_json: bool, dry_run: bool) -> int:
    """Of a rules file and a data directory, without a service."""
    rules: Path = asked["rules"]
    document, ruleset = _read(rules)
    made = _asked_of(data, ruleset, _question(asked), asked["clickhouse"])
    if not as_json:
        show(made, explain=asked["explain"])
    picks, draft = picked(made), None
    if asked["draft"] and picks and dry_run:
        click.echo("\nwould be done: a file with the proposed numbers", err=as_json)
    elif asked["draft"] and picks:
        path, said = draft_file(rules, document, picks, asked["output"])
        click.echo(f"\n{said}", err=as_json)
        draft = {"file": str(path)}
    return _end(asked, msgspec.to_builtins(made), draft, as_json=as_json, is_empty=not picks)


def _end(asked: dict[str, Any], found: Any, draft: Any, *, as_json: bool, is_empty: bool) -> int:
    if as_json:
        print_json({"suggestions": found, "draft": draft})
    if asked["draft"] and is_empty:
        click.echo("there is nothing to draft: nothing is to be raised or lowered", err=True)
        return 1
    return 0


def _asked_of(data: Path, ruleset: RuleSet, question: SuggestionsQuestion, clickhouse: str | None) -> list[Suggestion]:
    home = open_home(data, clickhouse)
    try:
        made = proposed(home, ruleset, question)
        _hint(home, made, question)
        return made
    finally:
        home.close()


def _hint(home: Home, made: Sequence[Suggestion], question: SuggestionsQuestion) -> None:
    """Where nothing was recorded of the span, say of what it was."""
    if any(each.evidence.clients or each.evidence.matched for each in made):
        return
    status = home.status()
    if status.first_us is None or status.last_us is None:
        click.echo("nothing is recorded there yet", err=True)
        return
    hours = (status.last_us - status.first_us) // (3_600 * US_PER_S) + 2
    click.echo(
        f"nothing is recorded between {when(question.since_us)} and {when(question.until_us)}; what there is begins {when(status.first_us)}: "
        f"try --at {when(status.last_us + 60 * US_PER_S)} --window {hours}h",
        err=True,
    )


def _read(path: Path) -> tuple[Mapping[str, Any], RuleSet]:
    files = read_files([path])
    ruleset, problems = check_files(files, source_of([path]))
    if ruleset is None:
        raise RulesInvalid(str(path), problems)
    return document_of_files(files), ruleset


def _question(asked: dict[str, Any]) -> SuggestionsQuestion:
    """What is asked now. Raises ConfigurationError, and InvalidRequest."""
    now_us = SystemClock().now_us()
    until_us = _moment_us(asked["until"] or asked["at"], now_us)
    if asked["since"] is not None:
        since_us = _moment_us(asked["since"], now_us)
    else:
        try:
            since_us = max(0, until_us - parse_span(asked["window"]))
        except NotationError as error:
            raise ConfigurationError(f"--window: {error}") from error
    try:
        return SuggestionsQuestion(since_us, until_us, asked["rule"], asked["tier"], asked["floor"], asked["target"])
    except InvalidRequest as error:
        raise ConfigurationError(f"--{error}") from error


def _moment_us(end: End | None, now_us: int) -> int:
    """A time, or one that is a span ago; None: now."""
    if end is None:
        return now_us
    return max(0, end.at_us if end.at_us is not None else now_us - (end.after_us or 0))


def _check(context: click.Context, asked: dict[str, Any]) -> None:
    """Raises UsageError for flags that contradict each other, or do nothing."""
    if asked["at"] is not None and (asked["since"] is not None or asked["until"] is not None):
        raise click.UsageError("--at: give it, or --since and --until, not both", context)
    if asked["until"] is not None and asked["since"] is None:
        raise click.UsageError("--until: it needs --since; a window that ends then is --at", context)
    if asked["output"] is not None and (asked["rules"] is None or not asked["draft"]):
        raise click.UsageError("--output: it is for --rules with --draft", context)
    if any("," in floor for floor in asked["floor"]):
        raise click.UsageError("--floor: one a flag, without commas", context)
