"""What it means for a request that its client is on a list."""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicegate.algorithms import Ban
from sluicegate.algorithms.verdict import DENIED, NEVER_FITS, Verdict
from sluicegate.bounds import BLOCK_RETRY_AFTER_US_MAX
from sluicegate.rules.feed import ListKind, ListName
from sluicegate.rules.identity.addresses import Block
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix

__all__ = ["ALLOW", "BLOCK", "Listed", "refusal_of"]

ALLOW: Final[ListName] = "allow"
BLOCK: Final[ListName] = "block"


class Listed(NamedTuple):
    """The entry that decided a request.

    ``at``: the block of addresses, or the name, of the ``kind``. ``expires_us``: None for never. ``source``: what put it there. ``left_us``:
    how long it goes on from the decision, None for ever.
    """

    list: ListName
    kind: ListKind
    at: Block | str
    expires_us: int | None
    source: str
    left_us: int | None

    @property
    def value(self) -> str:
        """What stands on the list, in its canonical spelling."""
        return str(self.at)

    @property
    def blocked(self) -> bool:
        """Whether the request is refused; else it passes uncharged."""
        return self.list == BLOCK

    @property
    def rule(self) -> str:
        """What stands for a rule in a refusal: ``block:ip``."""
        return f"{self.list}:{self.kind}"


def refusal_of(listed: Listed) -> tuple[Counter, Verdict]:
    """A refusal in the words of a counter, so that clients are told of it as of any other: as of a quota of 0."""
    left_us = listed.left_us
    if left_us is None:
        return _COUNTERS[listed.kind], Verdict(NEVER_FITS, 0, None, 0)
    wait_us = min(left_us, BLOCK_RETRY_AFTER_US_MAX)
    return _COUNTERS[listed.kind], Verdict(DENIED, 0, wait_us, wait_us)


def _counter(kind: ListKind) -> Counter:
    name = f"{BLOCK}:{kind}"
    spec = Ban()
    return Counter(name, spec, counter_prefix("default", name, spec.algorithm, spec.shape))


_KINDS: Final[tuple[ListKind, ...]] = ("ip", "api_key", "user", "tenant")
# Never charged: no store sees them.
_COUNTERS: Final = {kind: _counter(kind) for kind in _KINDS}
