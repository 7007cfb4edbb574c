"""All commands on a rules service."""

from __future__ import annotations

from typing import Final

import click

from sluicegate.cli.remote import ruleset
from sluicegate.cli.remote.audit import audit
from sluicegate.cli.remote.counters import counters
from sluicegate.cli.remote.lists import lists
from sluicegate.cli.remote.operating import nodes, tokens
from sluicegate.cli.remote.pauses import pause, pauses, resume
from sluicegate.cli.remote.rollouts import rollout
from sluicegate.cli.remote.rules import delete_rule, get_rule, list_rules, patch_rule, set_rule
from sluicegate.cli.remote.settings import PARTS
from sluicegate.cli.remote.subjects import subjects
from sluicegate.cli.remote.versions import rollback, versions

__all__ = ["ON_RULES", "REMOTE"]

ON_RULES: Final[tuple[click.Command, ...]] = (
    ruleset.apply, ruleset.export, list_rules, get_rule, set_rule, patch_rule, delete_rule, *PARTS,
)  # fmt: skip
"""Those of ``sluicegate rules``."""

REMOTE: Final[tuple[click.Command, ...]] = (
    versions, rollback, lists, subjects, pause, resume, pauses, rollout, counters, audit, tokens, nodes,
)  # fmt: skip
"""Those of ``sluicegate`` itself."""
