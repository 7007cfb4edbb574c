"""The whole rule set between files and a service: ``rules diff``, ``apply`` and ``export``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from sluicegate.bounds import WHATIF_S_MAX
from sluicegate.cli.options import DurationType, flag, option
from sluicegate.cli.remote.connect import Session, changing, connected
from sluicegate.cli.remote.operating import is_silent
from sluicegate.cli.remote.render import span, told
from sluicegate.cli.replay import replayed
from sluicegate.cli.rule_files import RULE_PATH, read_files, source_of
from sluicegate.clock import SystemClock
from sluicegate.errors import ConfigurationError
from sluicegate.rules.diff import Change, diff_rules, render_diff
from sluicegate.rules.document import load_document
from sluicegate.rules.file_set import check_files, document_of_files
from sluicegate.rules.identity import IdentityConfig
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import RulesInvalid
from sluicegate.rules.yaml_text import arranged, yaml_of

__all__ = ["apply", "compare", "export", "say_outcome", "say_tried"]

_NOTHING = RuleSet(rules=(), identity=IdentityConfig())
_POLL_S = 0.2
_TRIAL_S = WHATIF_S_MAX + 10.0


@dataclass(frozen=True, slots=True)
class _Plan:
    """``document``: what would be in service. ``kept``: rules that the files do not name."""

    document: dict[str, Any]
    kept: list[str]
    current: dict[str, Any] | None
    etag: str


async def compare(
    session: Session, path: Path, *, prune: bool, logs: Sequence[str] = (), minutes: int | None = None
) -> int:
    """Say what applying a file or a directory would change; 0 nothing, 1 something.

    ``logs``: decided by both, here. ``minutes``: of sampled traffic, decided by both at the service.
    """
    plan = await _plan(session, (path,), prune=prune)
    old = _NOTHING if plan.current is None else _meaning(plan.current, "the rules in service")
    new = _meaning(plan.document, str(path))
    changes = diff_rules(old, new)
    report = replayed(old, new, logs) if logs else None
    tried = None
    if minutes is not None:
        body = {"document": plan.document, "minutes": minutes}
        tried = (await session.client.ask("POST", "/v1/whatif", body=body, timeout_s=_TRIAL_S)).data

    def say() -> None:
        click.echo(render_diff(changes) if changes else "no difference in meaning")
        _say_kept(plan.kept)
        if report is not None:
            click.echo("\n" + report.text())
        if tried is not None:
            say_tried(tried)

    document: Any = msgspec.to_builtins(changes)
    if report is not None or tried is not None:
        document = {"changes": document, "replay": None if report is None else report.to_dict(), "whatif": tried}
    session.show(document, say)
    return 1 if changes else 0


def say_tried(tried: dict[str, Any]) -> None:
    """What sampled traffic says, and how sure that is."""
    report, sampled = tried["report"], tried["sampled"]
    against = report["against"]
    click.echo(
        f"\nof {sampled['requests']:,} requests {sampled['samples']:,} were drawn at random; each stands for {sampled['weight']:,}"
    )
    click.echo(f"refused {report['refused']:,}, by the rules in service {against['refused']:,}")
    for what in ("newly_refused", "newly_allowed"):
        low, high = sampled[f"{what}_low"], sampled[f"{what}_high"]
        sure = "" if low == high else f" ({low:,} to {high:,} with 95 % confidence)"
        click.echo(f"{what.replace('_', ' ')} {against[what]:,}{sure}")
        for rule, count in sorted(against[f"{what}_by_rule"].items(), key=lambda each: -each[1]):
            click.echo(f"  {count:>10,}  {told(rule)}")
        for client, count in against[f"top_{what}"]:
            click.echo(f"  {count:>10,}  {told(client)}")


@click.command("apply")
@click.argument("paths", nargs=-1, required=True, type=RULE_PATH, metavar="FILE...")
@flag("prune", help="Remove rules, tiers and settings that FILE... does not name; without it they are kept.")
@option(
    "managed-by",
    metavar="NAME",
    help='Who manages the rules from now on: others must give the same name, or --force. "" with --force: nobody.',
)
@flag("force", help="Change rules that something else manages, too.")
@flag("wait", help="Wait until every live node decides by what was applied; exit status 1 where one does not in time.")
@option("wait-timeout", type=DurationType(), default="30s", help="How long to wait for nodes.")
@changing
@connected()
async def apply(
    session: Session,
    paths: tuple[Path, ...],
    prune: bool,
    managed_by: str | None,
    force: bool,
    wait: bool,
    wait_timeout: float,
) -> int:
    """Put the rules of FILE... into service, all or nothing: files of one set, or a directory of them.

    The same again changes nothing. Whoever has changed the rules since they were compared is not overwritten. Exit status 0 done,
    with --dry-run 0 same and 1 differs, 2 error.
    """
    plan = await _plan(session, paths, prune=prune)
    params = {"force": "true"} if force else {}
    if managed_by is not None:
        params["managed_by"] = managed_by
    answer = await session.change(
        "PUT", "/v1/ruleset", body=plan.document, match=plan.etag, is_new=plan.current is None, params=params
    )
    outcome = answer.data
    lags: dict[str, Any] | None = None
    if wait and not session.dry_run:
        lags = await _converged(session, outcome["version"], wait_timeout)

    def say() -> None:
        say_outcome(session, outcome)
        _say_kept(plan.kept)
        _say_lags(lags, outcome["version"])

    session.show({**outcome, "kept": plan.kept, **({} if lags is None else {"nodes": lags})}, say)
    if session.dry_run:
        return 1 if outcome["changed"] else 0
    return 1 if lags is not None and not all(each["applied"] for each in lags.values()) else 0


@click.command("export")
@option(
    "output",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    metavar="FILE",
    help="Where to write; - prints.",
)
@option("at", type=click.IntRange(1), metavar="N", help="An earlier version.  [default: the one in service]")
@connected()
async def export(session: Session, output: Path, at: int | None) -> int:
    """Write the rules of a service as a rules file."""
    if at is None:
        document = (await session.get("/v1/ruleset")).data
    else:
        document = (await session.get(f"/v1/versions/{at}")).data["document"]
    text = (
        msgspec.json.format(msgspec.json.encode(arranged(document))).decode() + "\n"
        if session.as_json
        else yaml_of(document)
    )
    if str(output) == "-":
        click.echo(text, nl=False)
    else:
        _write(output, text)
    return 0


def say_outcome(session: Session, outcome: Mapping[str, Any]) -> None:
    """What a change of the rules came to, for people."""
    changes = msgspec.convert(outcome["changes"], list[Change])
    if changes:
        click.echo(render_diff(changes))
    for warning in outcome["warnings"]:
        click.echo(f"warning: {warning['detail']} ({warning['pointer']})", err=True)
    if not outcome["changed"]:
        click.echo(f"nothing to change: version {outcome['version']} is the same")
    elif session.dry_run:
        click.echo(f"would be version {outcome['version']}")
    else:
        click.echo(f"version {outcome['version']} is in service" + ("" if changes else ", of the same meaning"))


async def _plan(session: Session, paths: tuple[Path, ...], *, prune: bool) -> _Plan:
    files, source = read_files(paths), source_of(paths)
    ruleset, problems = check_files(files, source)
    if ruleset is None:
        raise RulesInvalid(source, problems)
    for problem in problems:
        click.echo(str(problem), err=True)
    wanted = document_of_files(files)
    found = await session.found("/v1/ruleset")
    if found is None:
        return _Plan(wanted, [], None, "")
    if prune:
        return _Plan(wanted, [], found.data, found.etag)
    named = {rule["name"] for rule in wanted["rules"]}
    left = [rule for rule in found.data["rules"] if rule["name"] not in named]
    parts = [name for name in found.data if name not in wanted]
    document = {**found.data, **wanted, "rules": _among(found.data["rules"], wanted["rules"], named)}
    return _Plan(document, [*(rule["name"] for rule in left), *(f"[{name}]" for name in parts)], found.data, found.etag)


def _among(current: list[dict[str, Any]], wanted: list[dict[str, Any]], named: set[str]) -> list[dict[str, Any]]:
    """The wanted rules in their order, in the places that rules of these names have; what is new comes last, what is kept stays."""
    rest = list(wanted)
    made = [rest.pop(0) if rule["name"] in named else rule for rule in current]
    return made + rest


def _meaning(document: dict[str, Any], source: str) -> RuleSet:
    try:
        return load_document(document, source, 1)
    except RulesInvalid as error:
        faults = "; ".join(
            f"{problem.pointer}: {problem.message}" for problem in error.problems if problem.severity == "error"
        )
        raise ConfigurationError(
            f"together with what is kept of the rules in service, {source} is not valid: {faults}"
        ) from error


def _say_kept(kept: list[str]) -> None:
    if kept:
        click.echo(f"kept, though not in the files: {', '.join(kept)} (--prune removes them)", err=True)


async def _converged(session: Session, version: int, timeout_s: float) -> dict[str, Any]:
    """Of every live node, whether it decides by a version or a newer one, and how long it is behind; when all do, or time is up."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while True:
        nodes = await _live_nodes(session, version)
        if all(node["applied"] for node in nodes.values()) or loop.time() >= until:
            return nodes
        await asyncio.sleep(min(_POLL_S, timeout_s))


async def _live_nodes(session: Session, version: int) -> dict[str, Any]:
    found = {}
    async for answer in session.pages("/v1/nodes", "nodes"):
        now_us = answer.at_us or SystemClock().now_us()
        for row in answer.data["nodes"]:
            report = row["report"]
            if is_silent(row, now_us):
                continue
            applied = report["applied"]["ruleset"]
            found[report["node"]] = {
                "applied": applied >= version,
                "version": applied,
                "lag_us": row["lag_us"],
                "error": report["error"],
            }
    return found


def _say_lags(nodes: dict[str, Any] | None, version: int) -> None:
    if nodes is None:
        return
    if not nodes:
        click.echo("no node has reported to this service lately", err=True)
    for name, node in nodes.items():
        if node["applied"]:
            click.echo(f"node {told(name)}: version {node['version']}")
        else:
            why = f": {told(node['error'])}" if node["error"] else ""
            click.echo(
                f"node {told(name)}: version {node['version']}, not {version}, {span(node['lag_us'])} behind{why}"
            )


def _write(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
