"""Proposals from one home, the same over HTTP and of a file."""

from __future__ import annotations

from sluicegate.analytics.home import Home
from sluicegate.analytics.model import Span
from sluicegate.analytics.suggestions import Policy, read_floors, suggestions_of
from sluicegate.control.suggestions import SuggestionsQuestion
from sluicegate.rules.model import RuleSet
from sluicegate.rules.proposals import Suggestion

__all__ = ["proposed"]


def proposed(home: Home, ruleset: RuleSet, question: SuggestionsQuestion) -> list[Suggestion]:
    """Ask a home. Raises AnalyticsError as homes do, and InvalidRequest for a rule, a tier or a floor of what does not exist."""
    return suggestions_of(
        home,
        ruleset,
        Span(question.since_us, question.until_us),
        rule=question.rule,
        tier=question.tier,
        policy=Policy(target_share=question.target_share),
        floors=read_floors(question.floors),
    )
