"""Where counters live: the protocol every store obeys.

A store has one deciding call, atomic for all charges of a request: it decides every charge first and then
charges all of them or none. It knows specs and keys, never rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from sluicegate.algorithms.leasing import HOLDER_CHARS, LOST, LeaseAsk, Leased, LeaseGrant, LeaseTerms, check_ask
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.spec import OnChange, Spec, State
from sluicegate.algorithms.verdict import Brief, Verdict
from sluicegate.errors import StoreError

__all__ = [
    "Answer",
    "AsyncLeaseStore",
    "AsyncStore",
    "BulkStore",
    "Charge",
    "Counter",
    "Done",
    "FleetStore",
    "Heard",
    "HitStore",
    "Hitter",
    "HitterWays",
    "LeaseItem",
    "LeaseStore",
    "NewsStore",
    "PartialStore",
    "Receipt",
    "Request",
    "ServerHealth",
    "Single",
    "Store",
    "check_leasing",
]


class Counter(NamedTuple):
    """The static part of a charge: which rule, by which numbers. Built once per rule and tier.

    ``prefix`` and a subject make the counter's key; it contains no limit or rate, so a change of numbers
    keeps the counter. ``shadow`` counters are evaluated and never refuse. ``denied_counts`` charges the refusing
    counter on a refusal. ``precision`` is for whoever stands in front of a store; the store itself decides what it is asked.
    ``standing``: the numbers that the counter in the store was last given stand, and ``spec`` is for one that is not there.
    """

    name: str
    spec: Spec
    prefix: str
    shadow: bool = False
    denied_counts: bool = False
    on_change: OnChange = OnChange.KEEP
    precision: Precision = Precision.EXACT
    standing: bool = False


Charge: TypeAlias = tuple[Counter, str, int]
"""(counter, subject, cost). A plain tuple, because one is made per matching rule of every request."""

Request: TypeAlias = Sequence[Charge]
"""The charges of one request, in order of evaluation; their keys are distinct (the engine guarantees it)."""


class Receipt(NamedTuple):
    """What a refund needs: the charge and the store's time at which it was made."""

    counter: Counter
    subject: str
    cost: int
    charged_us: int


Single: TypeAlias = tuple[bool, State | None]
"""(admitted, the counter's state after the decision): what ``spec.verdict`` needs to describe one charge.

Where this process decided without the store, a LocalVerdict stands in the place of the state.
"""


class Answer(Protocol):
    """The store's answer to one request. ``now_us`` is the one reading of time it was decided by."""

    @property
    def admitted(self) -> bool:
        """Every enforced charge passed (and, unless it was a peek, was charged)."""
        ...

    @property
    def now_us(self) -> int: ...

    @property
    def unanimous(self) -> bool:
        """Every charge passed, shadow ones included."""
        ...

    @property
    def asked(self) -> bool:
        """The store said this, or a part of it. False: this process did alone, which says nothing of how the store is."""
        ...

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order. May be computed on the first call; never changes."""
        ...

    def refused(self) -> list[Charge]:
        """The charges that did not pass, shadow ones included, in order: what can be counted without describing anything.

        Those that nobody was asked about are not among them, nor those that a failure policy decided.
        """
        ...

    def receipts(self) -> tuple[Receipt, ...]:
        """One receipt per charge that was really made; empty for a refusal or a peek."""
        ...


class Store(Protocol):
    """A home for counters. Safe to call from any thread."""

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide each request in order, request i charged before i+1 is read; one reading of time for all.

        On a refusal nothing is charged, except that a refusing ``denied_counts`` counter is. Shadow charges
        are made only when all enforced ones pass and the shadow would. ``peek`` decides and charges nothing.
        Raises StoreError where no answer is had, and PartlyDecided where only some requests have one. A store that is
        reached over a network may cut a large batch into several steps, each with its own reading of time.
        """
        ...

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """``decide`` for a batch of one, without building the batch."""
        ...

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """``decide`` for a batch of requests of one charge each: ``(now_us, one Single per charge)``.

        The lean form for callers that describe the answers themselves. Their counters are not shadow. Of PartlyDecided,
        ``answers`` are Answers here too.
        """
        ...

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due of each receipt; returns how many counters changed. Never creates a key."""
        ...

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """Give back up to the cost (>= 1) of each charge of what is used, whoever used it; returns the tokens given back of each.

        Never more than is used; never creates a key. Each counter is changed in one atomic step, and one after the other.
        """
        ...

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters; returns how many existed."""
        ...

    def close(self) -> None:
        """Release what the store holds; a closed store raises StoreError."""
        ...


class Hitter(NamedTuple):
    """A fast path: ``hit(name, cost=1)`` says whether one charge passed, ``retire()`` ends it; ``passed()``: how many it has let pass itself.

    After ``retire`` every hit is handed to ``otherwise``, so that whoever still holds the function gets the rules in force.
    """

    hit: Callable[..., bool]
    retire: Callable[[], None]
    passed: Callable[[], int]


class HitterWays(NamedTuple):
    """What a fast path needs of its limiter; see ``HitStore.hitter``."""

    key_of: Callable[[str], str]
    otherwise: Callable[[str, int], bool]
    refused: Callable[[str], None]
    ration: Callable[[], int] | None


@runtime_checkable
class HitStore(Protocol):
    """An optional ability: saying only yes or no, for one counter, in as little time as the store can."""

    def hitter(
        self,
        counter: Counter,
        key_of: Callable[[str], str],
        otherwise: Callable[[str, int], bool],
        refused: Callable[[str], None],
        ration: Callable[[], int] | None = None,
    ) -> Hitter:
        """The fast path of one counter; ``key_of`` gives the whole key of the counter of a name.

        It does only what it can do fast, and hands the rest to ``otherwise``, having changed nothing: other costs, new
        counters, refusals that are charged. ``refused`` is called with the name for each refusal it gives itself, and must not call the
        store. ``ration``: how many it may let pass before one more is handed to ``otherwise``, which may look at it; None: any number.
        """
        ...


Done: TypeAlias = Callable[[Answer | StoreError], None]
"""What is called with the answer to a submitted request, once; it must not raise."""


@runtime_checkable
class AsyncStore(Protocol):
    """An optional ability: deciding for coroutines and callbacks without blocking their event loop.

    Every method must be called on a running event loop, and belongs to that loop. Where the caller of a coroutine is cancelled, the charge may
    have been made.
    """

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """``Store.decide_one`` by callback: ``done`` gets the answer, or the StoreError, on this loop.

        Requests that wait at the same time ride together, and those that charge the same counter are decided in the order in which they
        were submitted. Where a server did nothing at first (it did not know the script, or the counters have moved) they are sent again, and what
        was sent beside them, beyond one batch or of the other kind (peeks), may have been decided before. ``done`` may be called before
        ``submit`` returns; it is called within the store's deadline, a late loop apart.
        """
        ...

    async def adecide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """``Store.decide_one``."""
        ...

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """``Store.decide``."""
        ...

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        """``Store.refund``."""
        ...

    async def agrant(self, charges: Sequence[Charge]) -> list[int]:
        """``Store.grant``."""
        ...

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """``Store.reset``."""
        ...

    async def awarm(self) -> bool:
        """Connect and make ready, within a second; False where the store is not there. Never raises for that."""
        ...

    async def aclose(self) -> None:
        """``Store.close``, and what belongs to the running event loop is closed when this returns."""
        ...


class ServerHealth(NamedTuple):
    """How one server of a store is, as this process sees it.

    ``state``: "up", "down" (calls fail at once; it is probed), "failing" (the store cannot use it, whatever it answers: another key secret, no
    cluster) or "unknown" (nothing was asked yet). ``since_us``: monotonic time of the last change.
    ``error``: the last failure's text, None where there was none since it is up.
    """

    address: str
    state: str
    since_us: int
    error: str | None


@runtime_checkable
class FleetStore(Protocol):
    """An optional ability: a store that many processes share knows how many there are, and how it is."""

    @property
    def nodes(self) -> int:
        """The most processes that were seen to use this store at one time, in the last ``REDIS_NODES_MEMORY_US``; >= 1."""
        ...

    async def abeat(self) -> None:
        """Say that this process is here, for processes that decide nothing at the moment. Never raises for an absent store."""
        ...

    def health(self) -> Sequence[ServerHealth]:
        """One entry per server known."""
        ...


@runtime_checkable
class BulkStore(Protocol):
    """An optional ability: many single charges of one counter's spec in one call, with the numbers of the answers."""

    def decide_alike(self, counter: Counter, keys: Sequence[str], cost: int) -> list[Brief] | None:
        """``decide_singles`` of one cost for whole keys of one counter (neither shadow nor ``denied_counts``), as briefs.

        None where the store has no such form for this spec, with nothing changed.
        """
        ...


Heard: TypeAlias = Callable[[Sequence[int] | None], None]
"""Gets the names of counters that may pass again; None: any may. Called from a thread of the store, one call at a time; it must not raise."""


@runtime_checkable
class PartialStore(Protocol):
    """An optional ability of a store: it decides by a part of each counter, others by the rest."""

    def least(self, counter: Counter) -> Spec:
        """The numbers that it decides by whatever happens."""
        ...


@runtime_checkable
class NewsStore(Protocol):
    """An optional ability: processes that share a store tell each other which counters may pass again, sooner than was said before.

    News may be lost, come twice or late, and may say too much; nothing may depend on it but how soon something is asked for again. The store
    tells of what it is asked to give back itself (``refund``, ``grant``, ``reset``), by whichever process; it tells this process too.
    """

    def news_name(self, key: str) -> int:
        """The number of a counter (``prefix + subject``) in news, 64 bits: the same in all processes, while the secret of the keys is the same.

        The store must have decided something before.
        """
        ...

    def publish(self, keys: Iterable[str]) -> None:
        """Tell the others that these counters may pass now. Returns at once, never raises, and may be in vain."""
        ...

    def subscribe(self, heard: Heard) -> Callable[[], None]:
        """Have ``heard`` called with news from now on, until the function that is returned is called, or the store is closed.

        It is called with None whenever something may have been missed: when the subscription begins, and each time after it was cut.
        """
        ...


class LeaseItem(NamedTuple):
    """What a holder says about one counter. Its ``denied_counts`` and ``shadow`` have no meaning here."""

    counter: Counter
    subject: str
    ask: LeaseAsk


def check_leasing(holder: str, items: Sequence[LeaseItem]) -> None:
    """ValueError for what ``LeaseStore.lease`` does not take."""
    if len(holder) != HOLDER_CHARS or not holder.isascii() or holder == LOST:
        raise ValueError(f"holder: must be {HOLDER_CHARS} ASCII characters, got {holder!r}")
    for counter, _, ask in items:
        Leased(counter.spec)
        check_ask(ask)


@runtime_checkable
class LeaseStore(Protocol):
    """An optional ability: granting parts of counters in advance. See ``sluicegate.algorithms.leasing``."""

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """One step of a holder on each of these counters, whose keys are distinct; a StoreError in the place of each that got no answer.

        ``holder``: ``HOLDER_CHARS`` ASCII characters, of one process, drawn anew after a fork. ``terms``: the same in the whole fleet.
        Each counter is changed in one atomic step, those of one server (of one hash slot) in one together. Nothing is sent twice, but all
        of an ask may be: what comes again does nothing. What was asked for where no answer came may have been granted; it is lost with
        its lease. ``decide`` and all else see a leased counter's state and take only what is not granted. ``reset`` forgets its leases too:
        what is out stays with its holders until it ends.
        ValueError for a counter that is never leased (leaky bucket, ban), a holder's name of another form, and numbers out of range.
        """
        ...


@runtime_checkable
class AsyncLeaseStore(Protocol):
    """``LeaseStore`` for coroutines."""

    async def alease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """``LeaseStore.lease``."""
        ...
