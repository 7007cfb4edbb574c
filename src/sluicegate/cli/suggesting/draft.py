"""Drafts of proposals: a rollout that begins with nobody, or a rules file beside the one of now. Nothing is applied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from sluicegate.analytics.suggestions import drafted
from sluicegate.bounds import CONTROL_TEXT_CHARS_MAX, WHATIF_S_MAX
from sluicegate.cli.remote.connect import Session
from sluicegate.cli.remote.ruleset import say_tried
from sluicegate.errors import ConfigurationError
from sluicegate.rules.diff import diff_rules, render_diff
from sluicegate.rules.document import load_document
from sluicegate.rules.proposals import Suggestion
from sluicegate.rules.yaml_text import yaml_of

__all__ = ["draft_file", "draft_rollout", "picked"]

_MINUTES: Final = 60
_TRIAL_S: Final = WHATIF_S_MAX + 10.0


def picked(made: Sequence[Suggestion]) -> list[Suggestion]:
    """Those that propose something."""
    return [each for each in made if each.verdict in ("raise", "lower")]


async def draft_rollout(session: Session, document: Mapping[str, Any], made: Sequence[Suggestion]) -> dict[str, Any]:
    """Begin a rollout of the proposed numbers with no client inside, and say what they would do to the requests of the last hour.

    The audit trail has the ids of the proposals and the what-if. Raises Refusal.
    """
    candidate = drafted(document, made)
    tried, said = await _tried(session, candidate)
    reason = "; ".join(filter(None, (session.reason, *(_told(each) for each in made), said)))
    if len(reason) > CONTROL_TEXT_CHARS_MAX:
        reason = f"{reason[: CONTROL_TEXT_CHARS_MAX - 3]}..."
    body = {"kind": "canary", "basis_points": 0, "document": candidate, "reason": reason}
    params = {"validate_only": "true"} if session.dry_run else {}
    row = (await session.client.ask("POST", "/v1/rollouts", params=params, body=body)).data
    if not session.as_json:
        click.echo()
        _say(session, row, tried, said)
    return {"rollout": row, "whatif": tried}


async def _tried(session: Session, candidate: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The what-if and a line about it."""
    from sluicegate.cli.client import Refusal

    body = {"document": candidate, "minutes": _MINUTES}
    try:
        tried: dict[str, Any] = (await session.client.ask("POST", "/v1/whatif", body=body, timeout_s=_TRIAL_S)).data
    except Refusal as error:
        if error.status != 409:
            raise
        return None, f"what-if: none, {error.problem.get('detail', 'it cannot be had')}"
    sampled, against = tried["sampled"], tried["report"]["against"]
    return tried, (
        f"what-if of {sampled['requests']} requests: newly allowed {against['newly_allowed']}, newly refused {against['newly_refused']}"
    )


def _told(each: Suggestion) -> str:
    tier = f":{each.tier}" if each.tier else ""
    return f"suggestion {each.id}: {each.rule}{tier} {each.current} -> {each.proposed}"


def _say(session: Session, row: Mapping[str, Any], tried: dict[str, Any] | None, said: str) -> None:
    if tried is None:
        click.echo(said)
    else:
        say_tried(tried)
    if session.dry_run:
        click.echo(f"\nwould be done: a draft beside version {row['base_version']}")
        return
    number = row["id"]
    click.echo(
        f"\nrollout {number} is a draft beside version {row['base_version']}: no client is inside, nothing has changed\n"
        f"  look at it    sluicegate rollout candidate {number}\n"
        f"  try it        sluicegate rollout advance 1% {number}; sluicegate rollout report {number}\n"
        f"  apply it      sluicegate rollout promote {number}\n"
        f"  drop it       sluicegate rollout abort {number}\n"
        "until one of the last two, other changes of the rules are refused"
    )


def draft_file(
    rules: Path, document: Mapping[str, Any], made: Sequence[Suggestion], output: Path | None
) -> tuple[Path, str]:
    """Write a rules file with the proposed numbers; the file, and what to say: the difference, and how to try both on a log.

    ``output`` None: beside ``rules``. Raises ConfigurationError where it exists or cannot be written.
    """
    path = output or rules.with_name(f"{rules.stem}.suggested.yaml")
    candidate = drafted(document, made)
    old, new = load_document(document, str(rules), 1), load_document(candidate, str(path), 1)
    ids = ", ".join(each.id for each in made)
    text = f"# {rules.name} with the numbers of {ids}; comments of the original are not in it.\n{yaml_of(candidate)}"
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{str(path)!r} exists and is not written over; name another with --output") from None
    except OSError as error:
        raise ConfigurationError(f"cannot write {str(path)!r}: {error.strerror}") from error
    told = [render_diff(diff_rules(old, new)), "", f"written to {path}; nothing is applied. Compare both on a log:"]
    told.append(f"  sluicegate replay --rules {shlex.quote(str(path))} --against {shlex.quote(str(rules))} LOG")
    return path, "\n".join(told)
