"""Proposals: what limits would suit the traffic that was seen. They are never applied by themselves.

    home --> rows of demand --> clients laid out in time --> numbers tried by the rule's own algorithm --> proposal, evidence, cautions

Everything but ``suggestions_of``, which asks a home, is pure.
"""

from __future__ import annotations

from sluicegate.analytics.suggestions.asking import Floors, limits_of, read_floors, suggestions_of
from sluicegate.analytics.suggestions.drafting import drafted
from sluicegate.analytics.suggestions.judging import judge
from sluicegate.analytics.suggestions.model import Exact, Limits, Policy
from sluicegate.analytics.suggestions.words import percent, span
from sluicegate.rules.proposals import Bucket, Confidence, Evidence, Quantiles, Refusals, Suggestion, Verdict

__all__ = [
    "Bucket", "Confidence", "Evidence", "Exact", "Floors", "Limits", "Policy", "Quantiles", "Refusals", "Suggestion", "Verdict",
    "drafted", "judge", "limits_of", "percent", "read_floors", "span", "suggestions_of",
]  # fmt: skip
