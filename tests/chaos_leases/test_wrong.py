"""The history of a fleet tells processes that get leases wrong from right ones."""

from __future__ import annotations

from typing import Any

import pytest
from chaos_history import History
from chaos_plays import quiet
from chaos_stage import HARM, NO_HARM, Scene, each, rule, rules

from sluicegate.algorithms import FixedWindow, Spec, TokenBucket

pytestmark = pytest.mark.slow

MS, SECOND = 1_000, 1_000_000

BUCKET = (rules(rule("800/second burst 250")), TokenBucket(250, 800, SECOND))
WINDOW = (rules(rule("400/500ms", "algorithm: fixed_window")), FixedWindow(400, 500 * MS))

SCENES = [
    (Scene(f"who {wrong}", text, play, harm=harm, forks=forks, wrong=wrong), spec)
    for wrong, (text, spec), play, harm, forks in (
        ("counts on lost answers", BUCKET, quiet, {**HARM, "lost": 0.2}, 0),
        ("keeps over forks", WINDOW, quiet, NO_HARM, 3),
        ("gives back what is spent", BUCKET, quiet, NO_HARM, 0),
        ("spends what goes back", WINDOW, quiet, HARM, 0),
    )
]


@each(SCENES, seeds=(0, 1))
def test_it_is_seen(played: Any, spec: Spec) -> None:
    """In one of a few plays at least, some interval holds more than its bound."""

    def never(history: History) -> None:
        assert not history.errors

    played.judge(never, lambda history: history.excess(spec))
