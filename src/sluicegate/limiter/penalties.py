"""Penalties: a client that rules refuse again and again is blocked for a while.

Refusals are counted per rule and client in this process, in windows that begin with a client's first refusal: nobody is blocked for
fewer refusals within the time than the rule says, and who goes on is blocked in the next window at the latest. The block is an entry
of this process's own block list; a rules service that takes it puts it on everybody's. While it lasts no rule is asked, so refusals by
the block do not prolong it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from sluicegate.bounds import PENALTIES_UNTOLD_MAX, PENALTY_CLIENTS_MAX
from sluicegate.clock import Clock
from sluicegate.limiter.lists import Lists
from sluicegate.rules.feed import ListEntry, ListKind
from sluicegate.rules.model import Penalty
from sluicegate.stores.locks import Locked

__all__ = ["Penalties", "client_of"]

_KINDS: Final[tuple[ListKind, ...]] = ("api_key", "user", "ip", "tenant")


def client_of(subject: str) -> tuple[ListKind, str] | None:
    """The client in the subject of a counter, as kind and value of a list's entry: the API key, else the user, the address, the tenant.

    None where the subject holds none of them. An address is what the rules take for one client, such as a /64; an identity whose key
    holds only its digest is that digest.
    """
    parts = subject.split("|")
    for kind in _KINDS:
        for part in parts:
            name, _, value = part.partition(":")
            if name == kind:
                return kind, unquote_to_bytes(value).decode("utf-8", "surrogatepass")
    return None


class Penalties(Locked):
    """Counts refusals and blocks. Safe from any thread; never asked where a request is allowed.

    ``given``: clients blocked; ``forgotten``: clients whose count was lost to the bound ``PENALTY_CLIENTS_MAX``; ``dropped``: blocks that act
    here and could not be told, or that found the lists full.
    """

    __slots__ = ("_clock", "_counts", "_lists", "_untold", "dropped", "forgotten", "given")

    def __init__(self, clock: Clock, lists: Lists) -> None:
        super().__init__()
        self._clock = clock
        self._lists = lists
        # (monotonic time of the window's first refusal, refusals since), in order of that time.
        self._counts: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._untold: deque[ListEntry] = deque()
        self.given = 0
        self.forgotten = 0
        self.dropped = 0

    def refused(self, rule: str, penalty: Penalty, subject: str) -> None:
        """A counter of ``rule`` refused ``subject`` once more."""
        client = client_of(subject)
        if client is None:
            return
        kind, value = client
        now_us = self._clock.monotonic_us()
        key = (rule, f"{kind}:{value}")
        with self._lock:
            since_us, count = self._counts.get(key, (now_us, 0))
            if now_us - since_us >= penalty.within_us:
                self._counts.move_to_end(key)
                since_us, count = now_us, 0
            count += 1
            if count < penalty.refusals:
                self._counts[key] = (since_us, count)
                if len(self._counts) > PENALTY_CLIENTS_MAX:
                    self._counts.popitem(last=False)
                    self.forgotten += 1
                return
            self._counts.pop(key, None)
        self._block(ListEntry("block", kind, value, self._clock.now_us() + penalty.block_us, f"penalty:{rule}"))

    def take(self) -> list[ListEntry]:
        """The blocks given since the last call, for who makes them everybody's. Whoever takes them is to keep them until they are told."""
        with self._lock:
            entries = list(self._untold)
            self._untold.clear()
        return entries

    def give_back(self, entries: Iterable[ListEntry]) -> None:
        """Put back what was taken and could not be told."""
        with self._lock:
            self._untold.extendleft(reversed(list(entries)))
            self._bound()

    def _block(self, entry: ListEntry) -> None:
        if not self._lists.penalize(entry):
            self.dropped += 1
            return
        with self._lock:
            self.given += 1
            self._untold.append(entry)
            self._bound()

    def _bound(self) -> None:
        while len(self._untold) > PENALTIES_UNTOLD_MAX:
            self._untold.popleft()
            self.dropped += 1
