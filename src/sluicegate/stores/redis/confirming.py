"""Leases that a replica must have before they are used.

``WAIT`` waits for what its own connection wrote last. The command that granted may have gone over another one, or twice, so another write goes
before it on the same connection: a step on one of the counters that says nothing. The replica that has this has the grants, which came before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseTerms
from sluicegate.bounds import LEASE_CONFIRM_DIVISOR
from sluicegate.clock import US_PER_MS
from sluicegate.errors import StoreError
from sluicegate.stores.base import LeaseItem
from sluicegate.stores.redis.calls import Steps
from sluicegate.stores.redis.core import Core
from sluicegate.stores.redis.packing import Command

__all__ = ["confirmed"]


class _InFull(Command):
    """A script that is sent with its text, so that it is never sent again after what follows it."""

    __slots__ = ()

    def parts(self) -> tuple[bytes | str, ...]:
        return self.parts_in_full()


class _Wait(Command):
    """``WAIT`` at the server of its key."""

    __slots__ = ()

    def parts(self) -> tuple[bytes | str, ...]:
        return (b"WAIT", *self.arguments)


def confirmed(
    core: Core,
    steps: Steps[list[LeaseGrant | StoreError]],
    holder: str,
    terms: LeaseTerms,
    items: Sequence[LeaseItem],
) -> Steps[list[LeaseGrant | StoreError]]:
    """What ``steps`` grant, with ``confirmed`` False where no replica has it in time."""
    grants = yield from steps
    groups = _by_group(core.packing.key, core.router.group_of_key, items, grants)
    if not groups:
        return grants
    wait_ms = max(core.timeout_us // US_PER_MS // LEASE_CONFIRM_DIVISOR // len(groups), 1)
    commands: list[Command] = []
    for places in groups:
        counter, subject, _ = items[places[0]]
        touch = core.packing.lease(holder, terms, [LeaseItem(counter, subject, LeaseAsk(cautious=True))])
        commands += (_InFull(*touch), _Wait(None, touch.keys, (b"1", str(wait_ms).encode())))
    replies = yield commands
    for places, touched, replicas in zip(groups, replies[::2], replies[1::2], strict=True):
        if isinstance(touched, StoreError) or type(replicas) is not int or replicas < 1:
            for place in places:
                grant = grants[place]
                assert isinstance(grant, LeaseGrant)
                grants[place] = grant._replace(confirmed=False)
    return grants


def _by_group(
    key_of: Callable[..., str | bytes],
    group_of: Callable[[str | bytes], int],
    items: Sequence[LeaseItem],
    grants: Sequence[LeaseGrant | StoreError],
) -> list[list[int]]:
    """The places of what was granted, by what is in one place."""
    found: dict[int, list[int]] = {}
    for place, (item, grant) in enumerate(zip(items, grants, strict=True)):
        if isinstance(grant, LeaseGrant) and grant.granted:
            found.setdefault(group_of(key_of(item.counter, item.subject)), []).append(place)
    return list(found.values())
