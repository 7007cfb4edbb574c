"""The published histories of leases, for programs in other languages, are what this one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, Leased, LeaseReport, LeaseTerms, Turn

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "leases.json").read_text())
MAKERS: dict[str, Any] = {
    "token_bucket": TokenBucket,
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "sliding_log": SlidingLog,
}


@pytest.mark.parametrize("history", VECTORS["histories"], ids=lambda history: history["algorithm"])
def test_a_published_history_is_what_is_granted(history: dict[str, Any]) -> None:
    """Every charge and every answer, in order."""
    spec: Spec = MAKERS[history["algorithm"]](**history["numbers"])
    leased, state = Leased(spec), None
    hold_us = LeaseTerms(VECTORS["ttl_us"], VECTORS["drift_ppm"]).hold_us
    for step in history["steps"]:
        if "charge" in step:
            assert state is not None
            after = leased.admit(state, step["at_us"], step["charge"])
            assert (after is not None) is step["admitted"], step
            state = after or state
            continue
        said = {**step["ask"], "reports": [LeaseReport(*report) for report in step["ask"]["reports"]]}
        turn = Turn(step["holder"], LeaseAsk(**said), hold_us, step["life"])
        state, grant = leased.turn(state, step["at_us"], turn)
        assert {name: getattr(grant, name) for name in step["grant"]} == step["grant"], step
        assert (grant.now_us, grant.incarnation) == (step["at_us"], step["life"])


@pytest.mark.parametrize("numbers", VECTORS["terms"], ids=lambda numbers: str(numbers["ttl_us"]))
def test_published_lengths_are_what_is_reckoned(numbers: dict[str, int]) -> None:
    """How long a store waits for a lease, and how long a holder may spend of it."""
    terms = LeaseTerms(numbers["ttl_us"], numbers["drift_ppm"])
    assert terms.hold_us == numbers["hold_us"]
    assert terms.usable_us(numbers["lasts_us"]) == numbers["usable_us"]


def test_the_histories_show_what_matters() -> None:
    """Grants, short ones, repeated ones, returns, losses, cautious holders and refusals all occur."""
    grants = [step["grant"] for history in VECTORS["histories"] for step in history["steps"] if "grant" in step]
    assert any(grant["granted"] for grant in grants)
    assert any(grant["lost"] for grant in grants)
    assert any(grant["lost"] and grant["out"] == 0 for grant in grants)
    assert any(grant["wanted"] for grant in grants)
    assert {step["admitted"] for history in VECTORS["histories"] for step in history["steps"] if "charge" in step} == {
        True,
        False,
    }
