"""Of rollouts."""

from __future__ import annotations

from typing import Final

__all__ = [
    "GUARD_REQUESTS_MAX",
    "GUARD_SLOTS",
    "GUARD_WINDOW_S_MAX",
    "GUARD_WINDOW_S_MIN",
    "ROLLOUT_AHEAD_US",
    "ROLLOUT_CLIENTS_KEPT",
    "ROLLOUT_CLIENTS_TOLD",
    "ROLLOUT_NODES_MAX",
    "ROLLOUT_REPORTS_PENDING",
    "ROLLOUT_RULES_TOLD",
    "ROLLOUT_STEPS_MAX",
    "ROLLOUT_STEP_S_MAX",
]

# Steps of a schedule, and seconds until one: a rollout of more than thirty days is two versions of the rules for good.
ROLLOUT_STEPS_MAX: Final = 32
ROLLOUT_STEP_S_MAX: Final = 30 * 86_400

# How long before it begins a step is told to the nodes. They know it within a second where push works, and then take it at one moment;
# a longer time would make an operator wait for nothing.
ROLLOUT_AHEAD_US: Final = 2_000_000

# Nodes that a canary names. It is a part of the fleet; a fleet is divided by clients.
ROLLOUT_NODES_MAX: Final = 256

# Seconds that a guard looks back. Nodes report every few seconds, so a shorter look sees single reports; a longer one reacts too late to
# be worth having.
GUARD_WINDOW_S_MIN: Final = 5
GUARD_WINDOW_S_MAX: Final = 3_600

# Parts of a guard's look back that are forgotten one after another: it reaches back up to a twelfth less far than it says.
GUARD_SLOTS: Final = 12

# The most requests a guard can be told to wait for.
GUARD_REQUESTS_MAX: Final = 1_000_000_000

# Rules on trial whose counts are kept, and so judged by the guard. A rollout of more changes is not looked at rule by rule.
ROLLOUT_RULES_TOLD: Final = 500

# Refused clients that are kept of one rollout, and told of it; below 200 kB in the database.
ROLLOUT_CLIENTS_KEPT: Final = 1_000
ROLLOUT_CLIENTS_TOLD: Final = 100

# Reports of nodes that wait to be counted. They are counted every second; while the database is away the oldest are forgotten.
ROLLOUT_REPORTS_PENDING: Final = 2_000
