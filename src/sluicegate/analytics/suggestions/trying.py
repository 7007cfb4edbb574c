"""Numbers tried on what clients asked for, by the algorithm that would decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sluicegate.algorithms import LeakyBucket
from sluicegate.algorithms.spec import Spec, State
from sluicegate.analytics.suggestions.series import Client
from sluicegate.rules.proposals import Refusals

__all__ = ["capacity_for", "refusals", "refused_tokens", "share_between", "smallest"]

_NORMAL_95 = 1.96
_PRECISION = 200


def _is_refused(client: Client, spec: Spec) -> bool:
    """Whether a client would be refused anything."""
    if _surely_passes(client, spec):
        return False
    admit, state = spec.admit, None
    for at_us, tokens in client.arrivals:
        state = admit(state, at_us, tokens)
        if state is None:
            return True
    return False


def _surely_passes(client: Client, spec: Spec) -> bool:
    """Whether all that a client ever asked fits at once. A queue may hold less than its capacity."""
    return client.tokens <= spec.capacity and not isinstance(spec, LeakyBucket)


def refused_tokens(client: Client, specs: Sequence[Spec], *, denied_counts: bool = False) -> int:
    """Tokens of a client that would be refused; each arrival is taken as that many requests for one token."""
    if not any(_is_refused(client, spec) for spec in specs):
        return 0
    states: list[State | None] = [None] * len(specs)
    refused = 0
    for at_us, tokens in client.arrivals:
        fits = tokens
        for spec, state in zip(specs, states, strict=True):
            fits = _most(spec, state, at_us, fits)
        refused += tokens - fits
        for place, spec in enumerate(specs):
            if fits:
                states[place] = spec.admit(states[place], at_us, fits)
            if denied_counts and fits < tokens:
                states[place] = spec.charge_refused(states[place], at_us, min(tokens - fits, max(1, spec.capacity)))
    return refused


def _most(spec: Spec, state: State | None, at_us: int, tokens: int) -> int:
    """The most of ``tokens`` that pass now."""
    if not tokens or spec.admit(state, at_us, tokens) is not None:
        return tokens
    low, high = 0, min(tokens, spec.verdict(state, at_us, 0, True).remaining)
    if high and spec.admit(state, at_us, high) is not None:
        return high
    # A queue holds more than may wait in it.
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spec.admit(state, at_us, middle) is not None else (low, middle)
    return low


def refusals(clients: Sequence[Client], specs: Sequence[Spec], *, denied_counts: bool = False) -> Refusals:
    """What some numbers would refuse."""
    hit = asked = lost = total = 0.0
    refused_clients = 0
    for client in clients:
        refused = refused_tokens(client, specs, denied_counts=denied_counts)
        total += client.weight
        asked += client.weight * client.tokens
        lost += client.weight * refused
        if refused:
            hit += client.weight
            refused_clients += 1
    if not total:
        return Refusals(0.0, 0.0, 0.0, 0.0)
    low, high = share_between(refused_clients, len(clients), sampled=any(client.weight > 1 for client in clients))
    return Refusals(hit / total, lost / asked if asked else 0.0, low, high)


def share_between(found: int, of: int, *, sampled: bool) -> tuple[float, float]:
    """Between which a share lies with 95 % confidence (Wilson); where all were looked at it is what it is."""
    if not of:
        return 0.0, 0.0
    share = found / of
    if not sampled:
        return share, share
    square = _NORMAL_95**2 / of
    middle = (share + square / 2) / (1 + square)
    half = _NORMAL_95 * math.sqrt(share * (1 - share) / of + square / (4 * of)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def smallest(
    clients: Sequence[Client], spec_of: Callable[[int], Spec], least: int, most: int, refused_max: float
) -> int | None:
    """The smallest number within ``least``..``most``, to half a percent, under which clients of at most the weight ``refused_max`` are refused.

    None where ``most`` is not enough. Who passes under a number passes under every larger one, so each trial decides for some of the clients.
    """
    found, undecided, surely = None, list(clients), 0.0
    low, high = least - 1, most
    trial = most
    while True:
        spec = spec_of(trial)
        refused = [client for client in undecided if _is_refused(client, spec)]
        weight = surely + sum(client.weight for client in refused)
        if weight <= refused_max * (1 + 1e-12):
            gone = {id(client) for client in refused}
            undecided = [client for client in undecided if id(client) not in gone]
            found, high, surely = trial, trial, weight
        elif found is None:
            return None
        else:
            undecided, low = refused, trial
        if high - low <= max(1, high // _PRECISION):
            return found
        trial = (low + high) // 2


def capacity_for(client: Client, tokens: int, period_us: int) -> int:
    """The smallest capacity of a bucket with this rate that never refuses a client."""
    level = worst = before_us = 0
    for at_us, asked in client.arrivals:
        level = max(0, level - (at_us - before_us) * tokens) + asked * period_us
        worst, before_us = max(worst, level), at_us
    return -(-worst // period_us)
