"""Checks that need more than one rule."""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.rules.identity import IdentityConfig
from sluicegate.rules.model import Rule
from sluicegate.rules.problems import Problems

__all__ = ["check_rule_set"]


def check_rule_set(
    rules: Sequence[Rule], identity: IdentityConfig | None, *, has_identity: bool, problems: Problems
) -> None:
    """Note what is wrong between rules."""
