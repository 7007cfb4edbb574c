"""``sluicegate rules``: rule files as code. What is here needs no server, but for ``diff`` of one FILE."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sluicegate.bounds import REPORT_LOAD_MAX
from sluicegate.cli.near import near_options, report_terms
from sluicegate.cli.options import DurationType, Group, NumberType, all_of, config_option, flag, option
from sluicegate.cli.region_bounds import region_words
from sluicegate.cli.regions import plan_of, region_options
from sluicegate.cli.remote.connect import call, connection_options
from sluicegate.cli.remote.ruleset import compare
from sluicegate.cli.replay import replayed
from sluicegate.cli.rule_files import RULE_PATH, read_bytes, read_files, read_rules
from sluicegate.errors import ConfigurationError
from sluicegate.rules.diff import diff_rules, render_diff
from sluicegate.rules.file_set import check_files
from sluicegate.rules.import_envoy import import_envoy_ratelimit
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import Problem
from sluicegate.rules.report import bounds_report, render_bounds

__all__ = ["rules"]


@click.group(cls=Group)
def rules() -> None:
    """Check, measure, compare and import rule files."""


@rules.command("check")
@config_option()
@click.argument("files", nargs=-1, required=True, type=RULE_PATH, metavar="FILE...")
@flag("json", help="Print one JSON object; of several files, an array of them.")
def _check(files: tuple[Path, ...], json: bool, **_: str) -> int:
    """List every problem of each FILE; a directory holds one set in several. Exit status 0 all valid, 1 one invalid, 2 one unreadable."""
    status, listed = 0, []
    for file in files:
        try:
            ruleset, problems = check_files(read_files([file]), str(file))
        except ConfigurationError as error:
            if len(files) == 1:
                raise
            click.echo(f"sluicegate: {error}", err=True)
            status = 2
            continue
        status = max(status, 0 if ruleset is not None else 1)
        if json:
            listed.append(
                _checked(ruleset, problems) if len(files) == 1 else {"file": str(file), **_checked(ruleset, problems)}
            )
            continue
        for problem in problems:
            click.echo(str(problem))
        if ruleset is not None:
            warnings = f", {len(problems)} warning(s)" if problems else ""
            click.echo(f"{file}: valid, {_count(ruleset)} rule(s), digest {ruleset.digest}{warnings}")
    if json:
        _print_json(listed[0] if len(files) == 1 else listed)
    return status


def _checked(ruleset: RuleSet | None, problems: Sequence[Problem]) -> dict[str, Any]:
    fields = [{item.name: getattr(problem, item.name) for item in dataclasses.fields(problem)} for problem in problems]
    return {"valid": ruleset is not None, "rules": _count(ruleset), "problems": fields}


@rules.command("bounds")
@config_option()
@click.argument("file", type=RULE_PATH)
@option(
    "rps",
    type=NumberType(0, REPORT_LOAD_MAX, min_open=True),
    default=1_000.0,
    help="Requests per second to compute for.",
)
@option("clients", type=click.IntRange(1, REPORT_LOAD_MAX), default=100_000, help="Live clients to compute memory for.")
@option(
    "nodes",
    type=click.IntRange(1, REPORT_LOAD_MAX),
    default=1,
    help="Processes that share the store, and would decide alone while it is away.",
)
@option(
    "lost-writes", type=DurationType(), default="2s", help="Of how long a failover of the store loses its last writes."
)
@all_of(*near_options())
@all_of(*region_options())
@flag("json", help="Print one JSON array.")
def _bounds(file: Path, rps: float, clients: int, nodes: int, json: bool, **values: Any) -> int:
    """Print what each rule of FILE admits at worst, and what it costs in memory and store calls."""
    near, plan = report_terms(values), plan_of(values)
    if near is not None:
        near = dataclasses.replace(near, regional=plan is not None)
    report = bounds_report(
        read_rules(file),
        rps=rps,
        clients=clients,
        nodes=nodes,
        near=near,
        regions=None if plan is None else region_words(plan),
    )
    if json:
        _print_json([dataclasses.asdict(row) for row in report])
    else:
        click.echo(render_bounds(report))
    return 0


@rules.command("diff")
@click.argument("old", type=RULE_PATH, metavar="OLD")
@click.argument("new", type=RULE_PATH, required=False, metavar="[NEW]")
@flag("prune", help="Of one FILE: rules, tiers and settings that it does not name would be removed, not kept.")
@option(
    "replay",
    multiple=True,
    metavar="LOG",
    type=click.Path(allow_dash=True),
    help="Access log that both decide by its own clock: says who would be newly refused; may be repeated.",
)
@option(
    "minutes",
    type=click.IntRange(1),
    metavar="N",
    help="Of one FILE: try it on the requests that the nodes of the service drew at random in the last N minutes.",
)
@connection_options
def _diff(old: Path, new: Path | None, prune: bool, replay: tuple[str, ...], minutes: int | None, **values: Any) -> int:
    """Say what changing from OLD to NEW means, counters included; of one FILE, what `apply` would change in a service.

    Each is a file, or a directory that holds one set in several. Exit status 0 same, 1 differs, 2 error.
    """
    if new is None:
        return call(values, lambda session: compare(session, old, prune=prune, logs=replay, minutes=minutes))
    if minutes is not None:
        raise click.UsageError("--minutes: is of a service; give one FILE, which is compared with the rules in service")
    before, after = read_rules(old), read_rules(new)
    changes = diff_rules(before, after)
    report = replayed(before, after, replay) if replay else None
    if values["json"]:
        told = [dataclasses.asdict(change) for change in changes]
        _print_json(told if report is None else {"changes": told, "replay": report.to_dict()})
        return 1 if changes else 0
    click.echo(render_diff(changes) if changes else "no difference in meaning")
    if report is not None:
        click.echo("\n" + report.text())
    return 1 if changes else 0


@rules.command("import")
@config_option()
@option(
    "from",
    type=click.Choice(["envoy-ratelimit"]),
    required=True,
    help="Whose configuration it is: that of github.com/envoyproxy/ratelimit.",
)
@flag("denied-counts", help="Charge refused requests as they do there; without it a refused request costs nothing.")
@click.argument("files", nargs=-1, required=True, type=RULE_PATH, metavar="FILE...")
def _import(files: tuple[Path, ...], denied_counts: bool, **_: str) -> int:
    """Print rules of the same meaning as FILE..., and on standard error what they leave out or cannot say.

    Exit status 0 printed, 1 nothing printed because something cannot be said in rules, 2 unreadable.
    """
    imported = import_envoy_ratelimit([(str(file), read_bytes(file)) for file in files], denied_counts=denied_counts)
    for problem in imported.problems:
        click.echo(str(problem), err=True)
    if not imported.text:
        return 1
    load_rules(imported.text, "the imported rules")
    click.echo(imported.text, nl=False)
    return 0


def _count(ruleset: RuleSet | None) -> int:
    return 0 if ruleset is None else len(ruleset.rules)


def _print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2, default=str))
