"""Rules one by one in a service: ``rules list``, ``get``, ``set``, ``patch`` and ``delete``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sluicegate.cli.options import flag, option
from sluicegate.cli.remote.connect import Session, changing, connected, limited
from sluicegate.cli.remote.paths import rule_path
from sluicegate.cli.remote.render import table, told
from sluicegate.cli.remote.ruleset import say_outcome
from sluicegate.cli.rule_files import RULE_PATH, read_bytes
from sluicegate.errors import ConfigurationError
from sluicegate.rules.document import NotJson, document_of_yaml, read_json
from sluicegate.rules.problems import RulesInvalid
from sluicegate.rules.yaml_text import yaml_of

__all__ = ["delete_rule", "forced", "get_rule", "list_rules", "patch_rule", "read_mapping", "seen", "set_rule", "tag"]

_MERGE_PATCH = "application/merge-patch+json"

forced = flag("force", help="Change rules that something else manages, too.")
seen = option(
    "if-match", metavar="TAG", help="The state the change was made from, such as r42.  [default: the one there is now]"
)


@click.command("list")
@limited
@connected()
async def list_rules(session: Session, limit: int) -> int:
    """List the rules of a service in their order."""
    found: list[dict[str, Any]] = []
    tags: dict[str, str] = {}
    async for page in session.pages("/v1/rules", "rules", limit):
        found += page.data["rules"]
        tags |= page.data["etags"]
    newest = [] if session.as_json else (await session.get("/v1/versions", page_size="1")).data["versions"]
    manager = newest[0]["managed_by"] if newest else ""

    def rows() -> None:
        made = [
            (
                rule["name"],
                _short(rule.get("quota")),
                _short(rule.get("per")),
                rule.get("mode", "enforce"),
                tags[rule["name"]].strip('"'),
            )
            for rule in found
        ]
        table(("RULE", "QUOTA", "PER", "MODE", "CHANGED"), made, "there are no rules")
        if manager:
            click.echo(f"managed by {told(manager)}")

    session.show(found, rows)
    return 0


@click.command("get")
@click.argument("name")
@connected()
async def get_rule(session: Session, name: str) -> int:
    """Print one rule of a service, as in a rules file."""
    answer = await session.get(rule_path(name))

    def people() -> None:
        click.echo(f"# {answer.etag.strip(chr(34))}")
        click.echo(yaml_of(answer.data), nl=False)

    session.show(answer.data, people)
    return 0


@click.command("set")
@click.argument("name")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE...]")
@option(
    "file",
    type=RULE_PATH,
    metavar="FILE",
    help="The whole rule, YAML or JSON, in place of the one there is; - reads it.",
)
@flag("create", help="Make a new rule, after all others; it must not exist yet.")
@seen
@forced
@changing
@connected()
async def set_rule(
    session: Session,
    name: str,
    fields: tuple[str, ...],
    file: Path | None,
    create: bool,
    if_match: str | None,
    force: bool,
) -> int:
    """Change fields of a rule in a service, or replace the rule by that of a FILE, or make a new one.

    `sluicegate rules set login quota=10/minute match.path=/login`: VALUE is YAML, null takes a field out.
    """
    if (file is None) == (not fields):
        raise click.UsageError("give FIELD=VALUE, or the whole rule with --file")
    rule = read_mapping(file) if file is not None else _assigned(fields)
    params = {"force": "true"} if force else {}
    if create:
        answer = await session.change("POST", "/v1/rules", body={**rule, "name": rule.get("name", name)}, params=params)
    elif file is not None:
        match = await tag(session, rule_path(name), if_match)
        answer = await session.change("PUT", rule_path(name), body=rule, match=match, params=params)
    else:
        answer = await _patch(session, name, rule, if_match, params)
    session.show(answer.data, lambda: say_outcome(session, answer.data))
    return 0


@click.command("patch")
@click.argument("name")
@click.argument("patch")
@seen
@forced
@changing
@connected()
async def patch_rule(session: Session, name: str, patch: str, if_match: str | None, force: bool) -> int:
    """Change a rule in a service by a JSON merge patch (RFC 7396); - reads it."""
    content = read_bytes(Path("-")) if patch == "-" else patch.encode()
    try:
        data = read_json(content)
    except NotJson as error:
        raise ConfigurationError(f"the patch is not JSON: {error}") from error
    answer = await _patch(session, name, data, if_match, {"force": "true"} if force else {})
    session.show(answer.data, lambda: say_outcome(session, answer.data))
    return 0


@click.command("delete")
@click.argument("name")
@seen
@forced
@changing
@connected()
async def delete_rule(session: Session, name: str, if_match: str | None, force: bool) -> int:
    """Delete a rule in a service. The last one cannot be."""
    match = await tag(session, rule_path(name), if_match)
    params = {"force": "true"} if force else {}
    answer = await session.change("DELETE", rule_path(name), match=match, params=params)
    session.show(answer.data, lambda: say_outcome(session, answer.data))
    return 0


async def tag(session: Session, path: str, given: str | None) -> str:
    """The entity tag to make a change from: the given one, else that of what is there now."""
    if given is not None:
        return given if given == "*" else f'"{given.strip(chr(34))}"'
    return (await session.get(path)).etag


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a file of YAML or JSON; raises RulesInvalid."""
    return document_of_yaml(read_bytes(path), str(path))


async def _patch(session: Session, name: str, patch: Any, if_match: str | None, params: dict[str, str]) -> Any:
    match = await tag(session, rule_path(name), if_match)
    return await session.change("PATCH", rule_path(name), body=patch, media=_MERGE_PATCH, match=match, params=params)


def _assigned(fields: tuple[str, ...]) -> dict[str, Any]:
    """``match.path=/x`` as ``{"match": {"path": "/x"}}``."""
    made: dict[str, Any] = {}
    for field in fields:
        path, equals, text = field.partition("=")
        steps = path.split(".")
        if not equals or not all(steps):
            raise click.BadParameter(f"{field!r} is not FIELD=VALUE", param_hint="FIELD=VALUE")
        try:
            value = document_of_yaml(f"value: {text}", field)["value"]
        except (RulesInvalid, KeyError) as error:
            raise click.BadParameter(f"{field!r}: the value is not YAML: {error}", param_hint="FIELD=VALUE") from error
        within = made
        for step in steps[:-1]:
            inner = within.setdefault(step, {})
            if not isinstance(inner, dict):
                raise click.BadParameter(f"{field!r}: {step} is given twice", param_hint="FIELD=VALUE")
            within = inner
        if steps[-1] in within:
            raise click.BadParameter(f"{path} is given twice", param_hint="FIELD=VALUE")
        within[steps[-1]] = value
    return made


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_short(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return "" if value is None else str(value)
