"""Rules one by one, the whole set, tiers and identity settings."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.control.errors import NotFound
from sluicegate.control.http.answers import Outcome, RulesPage, ok, ok_unless_known
from sluicegate.control.http.bodies import MERGE_PATCH, read_data
from sluicegate.control.http.callers import How, Page, Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.operations import Operations, ref
from sluicegate.control.http.preconditions import Expected, etag
from sluicegate.control.http.problems import FieldError
from sluicegate.control.model import IDENTITY, TIERS, Applied, Version
from sluicegate.control.paging import read_token, write_token
from sluicegate.control.service import RulesService
from sluicegate.rules.document import pointer_of

__all__ = ["RULES", "outcome"]

RULES: Final = Operations("rules")

_WRITES: Final = (409, 412, 428)
Force = Annotated[bool, Query(description="Change rules that something else manages, too.")]


def outcome(applied: Applied, how: How, revision: int | None = None, status: int = 200, location: str = "") -> Response:
    """What a change of the rules came to. ``revision``: of what was changed; None: it is gone."""
    warnings = [
        FieldError(
            f"{problem.field}: {problem.message}" if problem.field else problem.message, f"#{pointer_of(problem)}"
        )
        for problem in applied.problems
    ]
    told = Outcome(
        version=applied.version.info.version,
        changed=applied.changed,
        validated_only=how.validate_only,
        digest=applied.version.info.digest,
        etag="" if revision is None else etag(revision),
        changes=applied.changes,
        warnings=warnings,
    )
    # What was only tried has no tag that could be sent back.
    shown = None if how.validate_only else revision
    headers = {"Location": location} if location and status == 201 else {}
    return ok(told, status, revision=shown, headers=headers)


async def _current(service: RulesService) -> Version:
    current = await service.rulesets.current()
    if current is None:
        raise NotFound("version", "1")
    return current


@RULES.add("GET", "/v1/rules", answer=RulesPage)
async def _list_rules(_actor: Viewer, context: Shared, page: Page) -> Response:
    """Rules in their order.

    All pages are of the version of the first one, also where the rules change in between.
    """
    position = read_token(page.token, "rules", int, int)
    rulesets = context.service.rulesets
    version = await rulesets.current() if position is None else await rulesets.version(position[0])
    if version is None:
        return ok(RulesPage([], {}, 0, ""))
    start = 0 if position is None else max(0, position[1])
    rules = version.document["rules"]
    shown = rules[start : start + page.size]
    end = start + len(shown)
    number = version.info.version
    tags = {rule["name"]: etag(version.revisions[rule["name"]]) for rule in shown}
    return ok(RulesPage(shown, tags, number, write_token("rules", number, end) if end < len(rules) else ""))


@RULES.add("POST", "/v1/rules", answer=Outcome, status=201, also=(200,), body="NewRule", refusals=(409,), tagged=True)
async def _create_rule(
    request: Request, actor: Writer, context: Shared, how: Writing, force: Force = False
) -> Response:
    """Make a rule, after all others.

    200 where it was only tried. A field `reason` beside those of the rule goes to the audit trail.
    """
    body = await read_data(request)
    options = how.taken_from(body)
    applied = await context.service.rulesets.create_rule(actor, body, force=force, **options)
    name = body["name"]
    status = 200 if how.validate_only else 201
    return outcome(applied, how, applied.version.revisions[name], status, f"/v1/rules/{name}")


@RULES.add(
    "GET",
    "/v1/rules/{name}",
    answer="Rule",
    refusals=(304, 404),
    tagged=True,
)
async def _get_rule(request: Request, name: str, _actor: Viewer, context: Shared) -> Response:
    """One rule, as in a rules file."""
    version = await context.service.rulesets.current()
    if version is None:
        raise NotFound("rule", name)
    rule, revision = version.rule(name)
    return ok_unless_known(request, rule, etag(revision))


@RULES.add(
    "PUT",
    "/v1/rules/{name}",
    answer=Outcome,
    also=(201,),
    body="PutRule",
    refusals=(404, *_WRITES),
    tagged=True,
)
async def _put_rule(
    request: Request, name: str, actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Replace a rule in its place, or make a new one with `If-None-Match: *`.

    `name` may be left out; another one than in the path renames the rule.
    """
    body = await read_data(request)
    options = how.taken_from(body)
    applied = await context.service.rulesets.put_rule(actor, name, body, expect=expect, force=force, **options)
    named = body.get("name", name)
    revision = applied.version.revisions[named]
    status = 201 if expect == 0 and not how.validate_only else 200
    return outcome(applied, how, revision, status, f"/v1/rules/{named}")


@RULES.add(
    "PATCH",
    "/v1/rules/{name}",
    answer=Outcome,
    media={MERGE_PATCH: ref("RulePatch")},
    refusals=(404, *_WRITES),
    tagged=True,
)
async def _patch_rule(
    request: Request, name: str, actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Change fields of a rule.

    A merge patch (RFC 7396): what is null is taken out, objects are merged, everything else is replaced.
    """
    body = await read_data(request, MERGE_PATCH)
    options = how.taken_from(body)
    applied = await context.service.rulesets.patch_rule(actor, name, body, expect=expect, force=force, **options)
    named = body.get("name", name)
    return outcome(applied, how, applied.version.revisions[named])


@RULES.add("DELETE", "/v1/rules/{name}", answer=Outcome, refusals=(404, *_WRITES))
async def _delete_rule(
    name: str, actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Delete a rule. The last one cannot be."""
    options = how.because(None)
    applied = await context.service.rulesets.delete_rule(actor, name, expect=expect, force=force, **options)
    return outcome(applied, how)


@RULES.add("GET", "/v1/ruleset", answer="Ruleset", refusals=(304, 404), tagged=True)
async def _get_ruleset(request: Request, _actor: Viewer, context: Shared) -> Response:
    """All rules, tiers and settings: a rules file as JSON. The entity tag is that of the version."""
    version = await _current(context.service)
    return ok_unless_known(request, version.document, etag(version.info.version))


@RULES.add("PUT", "/v1/ruleset", answer=Outcome, body="PutRuleset", refusals=_WRITES, tagged=True)
async def _put_ruleset(
    request: Request,
    actor: Writer,
    context: Shared,
    how: Writing,
    expect: Expected,
    force: Force = False,
    managed_by: Annotated[
        str | None, Query(description="Who manages the rules from now on; empty: nobody. Left out: as before.")
    ] = None,
) -> Response:
    """Replace all rules, tiers and settings at once.

    All of it, or nothing. Who names `managed_by` keeps others, who do not, from changing the rules behind its back.
    """
    body = await read_data(request)
    options = how.taken_from(body)
    applied = await context.service.rulesets.put_ruleset(
        actor, body, expect=expect, managed_by=managed_by, force=force, **options
    )
    return outcome(applied, how, applied.version.info.version)


async def _part(request: Request, context: Shared, field: str, name: str) -> Response:
    version = await context.service.rulesets.current()
    if version is None or field not in version.document:
        raise NotFound("block", field)
    return ok_unless_known(request, version.document[field], etag(version.revisions[name]))


@RULES.add("GET", "/v1/tiers", answer="Tiers", refusals=(304, 404), tagged=True)
async def _get_tiers(request: Request, _actor: Viewer, context: Shared) -> Response:
    """The tiers; 404 where the rules declare none."""
    return await _part(request, context, "tiers", TIERS)


@RULES.add("PUT", "/v1/tiers", answer=Outcome, body="PutTiers", refusals=_WRITES, tagged=True)
async def _put_tiers(
    request: Request, actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Replace the tiers."""
    body = await read_data(request)
    options = how.taken_from(body)
    applied = await context.service.rulesets.put_tiers(actor, body, expect=expect, force=force, **options)
    return outcome(applied, how, applied.version.revisions.get(TIERS))


@RULES.add("DELETE", "/v1/tiers", answer=Outcome, refusals=_WRITES)
async def _delete_tiers(
    actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Declare no tiers any more."""
    options = how.because(None)
    return outcome(await context.service.rulesets.put_tiers(actor, None, expect=expect, force=force, **options), how)


@RULES.add("GET", "/v1/identity", answer="Identity", refusals=(304, 404), tagged=True)
async def _get_identity(request: Request, _actor: Viewer, context: Shared) -> Response:
    """The identity settings; 404 where the rules have none, and the defaults apply."""
    return await _part(request, context, "identity", IDENTITY)


@RULES.add("PUT", "/v1/identity", answer=Outcome, body="PutIdentity", refusals=_WRITES, tagged=True)
async def _put_identity(
    request: Request, actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Replace the identity settings."""
    body = await read_data(request)
    options = how.taken_from(body)
    applied = await context.service.rulesets.put_identity(actor, body, expect=expect, force=force, **options)
    return outcome(applied, how, applied.version.revisions.get(IDENTITY))


@RULES.add("DELETE", "/v1/identity", answer=Outcome, refusals=_WRITES)
async def _delete_identity(
    actor: Writer, context: Shared, how: Writing, expect: Expected, force: Force = False
) -> Response:
    """Go back to the default identity settings: nobody is believed."""
    options = how.because(None)
    return outcome(await context.service.rulesets.put_identity(actor, None, expect=expect, force=force, **options), how)
