"""Proposals put into a rules document, which a person then looks at."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from sluicegate.rules.proposals import Suggestion

__all__ = ["drafted"]


def drafted(document: Mapping[str, Any], made: Iterable[Suggestion]) -> dict[str, Any]:
    """The document with the proposed quotas in place of those of now. Only what is to be raised or lowered is changed.

    A proposal for a rule or tier that the document does not have is left out.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    rules = {rule.get("name"): rule for rule in changed.get("rules", ()) if isinstance(rule, dict)}
    for each in made:
        rule = rules.get(each.rule)
        if rule is None or each.verdict not in ("raise", "lower"):
            continue
        quota = rule.get("quota")
        if not each.tier and not _is_by_tier(quota):
            rule["quota"] = each.proposed
        elif isinstance(quota, dict) and each.tier in quota:
            quota[each.tier] = each.proposed
    return changed


def _is_by_tier(quota: object) -> bool:
    return isinstance(quota, dict) and not {"capacity", "limit"} & quota.keys()
