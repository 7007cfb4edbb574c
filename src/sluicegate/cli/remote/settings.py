"""The parts of a rule set beside the rules, in a service: ``rules tiers`` and ``rules identity``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from sluicegate.cli.options import Group
from sluicegate.cli.remote.connect import Session, changing, connected
from sluicegate.cli.remote.rules import forced, read_mapping, seen, tag
from sluicegate.cli.remote.ruleset import say_outcome
from sluicegate.cli.rule_files import RULE_PATH
from sluicegate.rules.yaml_text import yaml_of

__all__ = ["PARTS"]

_ABOUT: Final = {
    "tiers": ("Show and change the tiers of a service.", "the tiers", "Declare no tiers any more."),
    "identity": (
        "Show and change how a service's nodes tell who asks.",
        "the identity settings",
        "Go back to the default identity settings: nobody is believed.",
    ),
}


def _group(part: str) -> click.Group:
    about, words, removal = _ABOUT[part]
    path = f"/v1/{part}"
    group = Group(part, help=about)

    @group.command("show", help=f"Print {words}, as in a rules file.")
    @connected()
    async def show(session: Session) -> int:
        answer = await session.get(path)
        session.show(answer.data, lambda: click.echo(yaml_of(answer.data), nl=False))
        return 0

    @group.command("set", help=f"Replace {words} by those of FILE, YAML or JSON; - reads them.")
    @click.argument("file", type=RULE_PATH)
    @seen
    @forced
    @changing
    @connected()
    async def put(session: Session, file: Path, if_match: str | None, force: bool) -> int:
        value = read_mapping(file)
        if if_match is None:
            found = await session.found(path)
            match = "" if found is None else found.etag
        else:
            match = await tag(session, path, if_match)
        params = {"force": "true"} if force else {}
        answer = await session.change("PUT", path, body=value, match=match, is_new=not match, params=params)
        session.show(answer.data, lambda: say_outcome(session, answer.data))
        return 0

    @group.command("remove", help=removal)
    @seen
    @forced
    @changing
    @connected()
    async def remove(session: Session, if_match: str | None, force: bool) -> int:
        match = await tag(session, path, if_match)
        answer = await session.change("DELETE", path, match=match, params={"force": "true"} if force else {})
        session.show(answer.data, lambda: say_outcome(session, answer.data))
        return 0

    return group


PARTS: Final = tuple(map(_group, _ABOUT))
"""The groups, one for each part."""
