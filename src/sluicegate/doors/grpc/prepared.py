"""Rate limit requests made ready: from the message to charges, which depends on nothing but the message and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sluicegate.algorithms import Ban, TokenBucket
from sluicegate.bounds import GRPC_OVERRIDES_MAX
from sluicegate.clock import US_PER_S
from sluicegate.doors.grpc.codec import UNIT_SECONDS, Descriptor, Override, RateLimitRequest
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.sets import PlannedSets, SetOfCharges, SetPlanner
from sluicegate.rules.facts import Facts
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.keys import counter_prefix, subject_of

__all__ = ["OVERRIDE_RULE", "Overrides", "Prepared", "client_of", "prepare"]

OVERRIDE_RULE: Final = "override"
"""The name under which a limit that a request brings along appears in answers and metrics."""

# Not a rule's name, so that no rule can share its counters.
_KEY_RULE: Final = "#override"

CHARGE: Final = 0
LOOK: Final = 1
GIVE_BACK: Final = 2


class Prepared(NamedTuple):
    """``charge``, ``look`` (each None where there is nothing of the kind) and ``give_back`` are the groups in which descriptors are decided.

    ``layout``: for each descriptor its group and its place there. ``usual``: all are charged. ``planner``: of the rules it was made for.
    """

    planner: SetPlanner
    charge: PlannedSets | None
    look: PlannedSets | None
    give_back: tuple[tuple[Charge, ...], ...]
    layout: tuple[tuple[int, int], ...]
    usual: bool


class Overrides:
    """Counters of limits that requests bring along. Each limit has counters of its own: its numbers are in their keys."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._counters: dict[Override, Counter] = {}

    def charge(self, domain: str, descriptor: Descriptor, limit: Override, cost: int) -> Charge:
        """The charge of a descriptor with a limit."""
        counter = self._counters.get(limit)
        if counter is None:
            if len(self._counters) >= GRPC_OVERRIDES_MAX:
                self._counters.clear()
            counter = self._counters[limit] = self._made(limit)
        numbers = f"{limit.requests_per_unit}/{limit.unit}"
        subject = subject_of((("domain", domain), ("limit", numbers), *descriptor.entries))
        return counter, subject, cost

    def _made(self, limit: Override) -> Counter:
        count, period_us = limit.requests_per_unit, UNIT_SECONDS[limit.unit] * US_PER_S
        spec: Ban | TokenBucket
        if count == 0:
            spec = Ban()
        else:
            try:
                spec = TokenBucket(count, count, period_us)
            except ValueError as error:
                raise InvalidRequest("limit.requests_per_unit", str(error)) from None
        return Counter(OVERRIDE_RULE, spec, counter_prefix(self._namespace, _KEY_RULE, spec.algorithm, spec.shape))


def prepare(request: RateLimitRequest, planner: SetPlanner, overrides: Overrides) -> Prepared:
    """Put the charges of a request together; raises InvalidRequest for hits that cannot be charged."""
    hits = request.hits_addend or 1
    groups: tuple[list[SetOfCharges], list[SetOfCharges], list[SetOfCharges]] = ([], [], [])
    layout: list[tuple[int, int]] = []
    for descriptor in request.descriptors:
        own = hits if descriptor.hits_addend is None else descriptor.hits_addend
        kind = LOOK if own == 0 else GIVE_BACK if descriptor.negative else CHARGE
        layout.append((kind, len(groups[kind])))
        groups[kind].append(_set_of(request.domain, descriptor, own or 1, overrides))
    charged, looked, returned = groups
    whole = Facts(domain=request.domain, descriptors=_merged(request.descriptors))
    try:
        charge = planner.plan(charged, whole, hits) if charged else None
        look = planner.plan(looked, None if charged else whole, hits) if looked else None
        give_back = _to_give_back(returned, planner)
    except InvalidRequest as error:
        raise InvalidRequest("hits_addend" if error.field == "cost" else error.field, error.message) from None
    return Prepared(planner, charge, look, give_back, tuple(layout), not (looked or returned))


def client_of(request: RateLimitRequest) -> Facts:
    """Who makes a request, to be looked up in the lists: by its entries ``remote_address``, ``api_key``, ``user`` and ``tenant``.

    Of several descriptors with one of them the first counts. What an entry says is the proxy's word, as facts are a caller's.
    """
    named = _merged(request.descriptors).get
    return Facts(ip=named("remote_address"), api_key=named("api_key"), user=named("user"), tenant=named("tenant"))


def _set_of(domain: str, descriptor: Descriptor, cost: int, overrides: Overrides) -> SetOfCharges:
    if descriptor.limit is not None:
        return overrides.charge(domain, descriptor, descriptor.limit, cost)
    return Facts(domain=domain, descriptors=dict(descriptor.entries)), cost


def _merged(descriptors: Sequence[Descriptor]) -> dict[str, str]:
    """The entries of all descriptors; of several with one key the first descriptor's counts."""
    merged: dict[str, str] = {}
    for descriptor in descriptors:
        merged = {**dict(descriptor.entries), **merged}
    return merged


def _to_give_back(returned: Sequence[SetOfCharges], planner: SetPlanner) -> tuple[tuple[Charge, ...], ...]:
    """For each descriptor that gives back, what; by rules that name a domain only: the request as a whole is not undone."""
    if not returned:
        return ()
    planned = [planner.plan([each]) for each in returned]
    return tuple(tuple(each.plan.charges) for each in planned)
