"""What a near store decides: which charges of a request are decided here, which the store is asked, and what follows from its answer.

Tokens of leased counters are taken provisionally before the store is asked for the rest, and kept or put back when it has answered. A lease
that has ended meanwhile takes its tokens with it; the store is then asked for that charge too, and what the request has been charged
so far is given back if it refuses.

No clock, no input or output, no lock: its owner holds one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeGuard

from sluicegate.algorithms import FixedWindow, SlidingWindow, TokenBucket
from sluicegate.algorithms.leasing import Spend
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.spec import Spec, State
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NOT_ASKED, Verdict
from sluicegate.errors import PartlyReached, StoreError
from sluicegate.stores.answer import StateAnswer, ToldAnswer
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request
from sluicegate.stores.near.answers import (
    LeasedAnswer,
    MixedAnswer,
    Taken,
    denied,
    left_of,
    never_fits,
    passes,
    receipts_of,
)
from sluicegate.stores.near.counter import LeasedCounter
from sluicegate.stores.near.denials import Denials
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.stats import NearStats

__all__ = ["Asking", "Front", "is_leasable", "takes_last"]

_WHOLE: Final = (TokenBucket, FixedWindow, SlidingWindow)
"""What says in its state when the next charge passes."""
_AUTO, _EXACT, _LEASED = Precision.AUTO, Precision.EXACT, Precision.LEASED

Spent: TypeAlias = tuple[int, LeasedCounter, Spend]
"""(place of the charge, its leased counter, the tokens taken provisionally)."""


class Asking:
    """A request that the store is to be asked about: ``rest``, the charges at ``places``.

    ``known``: verdicts of shadow charges that are known to be refused, None where nothing is. ``short``: by place, leased counters of which there are
    too few tokens here; None where there is none. ``undo``: what is to be given back when the
    request has its answer.
    """

    __slots__ = (
        "epoch", "known", "parts", "places", "request", "rest", "sent_us", "short", "spent", "taken", "undo",
    )  # fmt: skip

    def __init__(self, request: Request, rest: Request, places: Sequence[int], sent_us: int, epoch: int) -> None:
        self.request = request
        self.rest = rest
        self.places = places
        self.sent_us = sent_us
        self.epoch = epoch
        self.known: Sequence[Verdict | None] | None = None
        self.short: Mapping[int, LeasedCounter] | None = None
        self.spent: Sequence[Spent] = ()
        self.taken: Sequence[Taken] = ()
        self.parts: list[tuple[Sequence[int], Answer]] = []
        self.undo: Sequence[Receipt] = ()

    @property
    def plain(self) -> bool:
        """Whether the store's answer is the answer of the request."""
        return self.rest is self.request and not self.parts


class Front:
    """Decides by ``leases`` and ``denials``. ``wall_us`` dates answers that no store has dated. ``poke`` is called when tokens run low,
    again and again until something is done about it. ``saw`` is told of each charge of a counter
    that is not decided by leases though it may be once it is hot. ``remembers`` False: refusals are not remembered.
    """

    __slots__ = ("_poke", "_wall_us", "denials", "leases", "remembers", "saw", "stats")

    def __init__(
        self,
        leases: Leases,
        denials: Denials,
        stats: NearStats,
        wall_us: Callable[[], int],
        poke: Callable[[], None],
        saw: Callable[[Charge, str, int], None] | None = None,
    ) -> None:
        self.leases = leases
        self.denials = denials
        self.stats = stats
        self.saw = saw
        self.remembers = True
        self._wall_us = wall_us
        self._poke = poke

    # ------------------------------------------------------------------ before the store is asked

    def begin(self, request: Request, now_us: int, busy: set[int] | None = None) -> Answer | Asking | None:
        """The answer, or what the store must be asked.

        ``busy``: leased counters (their ids) of which requests before this one, in the same batch, hold tokens provisionally. None where such tokens are
        missing: this request must wait until those have their answers.
        """
        if len(request) == 1:
            return self.begin_one(request, now_us, busy)
        return self._begin_held(request, now_us) or self._begin_several(request, now_us, busy)

    def _begin_held(self, request: Request, now_us: int) -> LeasedAnswer | None:
        """The usual case of a request whose charges are all leased: there are tokens at hand for each, and more. None for any other.

        Says the same as ``_begin_several``, in a third of the time; and as ``Holding.take``, whose quick half it is.
        """
        find = self.leases.find
        found: list[LeasedCounter] = []
        for counter, subject, cost in request:
            precision = counter[6]
            if counter[4] or not (precision is _LEASED or precision is _AUTO):
                return None
            leased = find(counter, subject, now_us)
            if leased is None:
                return None
            held = leased._head
            if held.taken + cost > held.brink or now_us >= held.end_us:
                return None
            found.append(leased)
        left: list[int] = []
        for leased, charge in zip(found, request):  # noqa: B905 -- made as long; strict costs time
            held = leased._head
            held.taken = taken = held.taken + charge[2]
            left.append(leased.level + held.granted - taken)
        self.stats.leased += 1
        return LeasedAnswer(request, found, left, now_us)

    def _begin_several(self, request: Request, now_us: int, busy: set[int] | None) -> Answer | Asking | None:
        """``begin`` at length."""
        denials, stats = self.denials, self.stats
        spent: list[Spent] = []
        rest: list[Charge] = []
        places: list[int] = []
        known: list[Verdict | None] | None = None
        short: dict[int, LeasedCounter] | None = None
        refused = False
        for place, charge in enumerate(request):
            counter, subject, cost = charge
            verdict: Verdict | None = None
            if cost > counter[1].capacity:
                verdict = never_fits()
            elif not counter[4]:
                precision = counter[6]
                leased = None
                if precision is _LEASED or precision is _AUTO:
                    leased = self.leases.find(counter, subject, now_us)
                if leased is not None:
                    if refused:
                        continue
                    spend = leased.spend(cost, now_us)
                    if leased.low:
                        self._poke()
                    if spend is not None:
                        spent.append((place, leased, spend))
                        continue
                    if short is None:
                        short = {}
                    short[place] = leased
                    if busy is not None and id(leased) in busy:
                        self._put_back(spent)
                        return None
                verdict = self._known_of(charge, leased, now_us)
            if verdict is None:
                rest.append(charge)
                places.append(place)
                continue
            if known is None:
                known = [None] * len(request)
            known[place] = verdict
            refused = refused or not counter[3]
        if refused:
            assert known is not None
            self._put_back(spent)
            return self._refusal(request, known)
        if rest:
            stats.asked += 1
            if self.saw is not None:
                self._tell(rest, now_us)
            asking = Asking(request, rest if spent or known else request, places, now_us, denials.epoch)
            asking.known, asking.spent, asking.short = known, spent, short
            return asking
        taken = [(place, leased, left_of(leased)) for place, leased, spend in spent if leased.conclude(spend, now_us)]
        # Nothing has been awaited, so no lease has ended since.
        assert len(taken) == len(spent)
        stats.leased += 1
        wall_us = taken[0][1].store_now_us(now_us) if taken else self._wall_us()
        return MixedAnswer(request, True, (wall_us, now_us), known or [None] * len(request), taken, ())

    def begin_one(self, request: Request, now_us: int, busy: set[int] | None = None) -> Answer | Asking | None:
        """``begin`` for one charge."""
        charge = request[0]
        counter, subject, cost = charge
        if cost > counter[1].capacity:
            return self._refusal(request, (never_fits(),), admitted=counter[3])
        leased = None
        if not counter[4]:
            precision = counter[6]
            if precision is _LEASED or precision is _AUTO:
                leased = self.leases.find(counter, subject, now_us)
                if leased is not None:
                    taken = leased.take(cost, now_us)
                    if leased.low:
                        self._poke()
                    if taken:
                        self.stats.leased += 1
                        return LeasedAnswer(request, (leased,), (left_of(leased),), now_us)
                    if busy is not None and id(leased) in busy:
                        return None
            verdict = self._known_of(charge, leased, now_us)
            if verdict is not None:
                return self._refusal(request, (verdict,), admitted=counter[3])
        self.stats.asked += 1
        if self.saw is not None and counter[6] is not _EXACT:
            self.saw(charge, counter[2] + subject, now_us)
        asking = Asking(request, request, (0,), now_us, self.denials.epoch)
        if leased is not None:
            asking.short = {0: leased}
        return asking

    def _known_of(self, charge: Charge, leased: LeasedCounter | None, now_us: int) -> Verdict | None:
        """The refusal of a charge, where it is known; None where the store must be asked."""
        counter, subject, cost = charge
        if leased is not None:
            wait_us = leased.waits_us(cost, now_us)
        elif self.denials.active:
            key = counter[2] + subject
            wait_us = self.denials.refuses(key, counter[1], cost, now_us)
            if wait_us is not None and self.saw is not None and counter[6] is not _EXACT:
                # However often it is refused here, each token that comes back is a call: leases need fewer.
                self.saw(charge, key, now_us)
        else:
            return None
        return None if wait_us is None else denied(wait_us)

    def _refusal(self, request: Request, known: Sequence[Verdict | None], *, admitted: bool = False) -> ToldAnswer:
        """The answer of a request of which enough is known here. ``admitted``: only shadow charges are refused."""
        verdicts = tuple([NOT_ASKED if verdict is None else verdict for verdict in known])
        if any(verdict.retry_after_us is None for verdict in verdicts):
            self.stats.never += 1
        else:
            self.stats.denied += 1
        return ToldAnswer(admitted, self._wall_us(), request, verdicts)

    def _tell(self, charges: Sequence[Charge], now_us: int) -> None:
        saw = self.saw
        assert saw is not None
        for charge in charges:
            counter = charge[0]
            if counter[6] is not _EXACT:
                saw(charge, counter[2] + charge[1], now_us)

    # ------------------------------------------------------------------ when the store has answered

    def landed(self, asking: Asking, answer: Answer, now_us: int) -> Answer | None:
        """The answer of the whole request; None where the store must be asked about ``asking.rest``, once more."""
        if not answer.unanimous:
            self.learn(asking, answer, now_us)
        elif takes_last(answer):
            self.learn_last(asking, answer, now_us)
        if asking.rest is asking.request and not asking.parts:
            return answer
        asking.parts.append((asking.places, answer))
        lapsed = self._settle(asking, answer, now_us)
        if lapsed and answer.admitted:
            asking.rest = [asking.request[place] for place in lapsed]
            asking.places = lapsed
            asking.sent_us, asking.epoch = now_us, self.denials.epoch
            self.stats.lapsed += len(lapsed)
            return None
        request = asking.request
        if not answer.admitted:
            # What stands although the request is refused: earlier parts of it, and tokens that were kept with them.
            before = asking.parts[:-1]
            asking.undo = receipts_of(request, asking.taken, now_us, before) if before else ()
            self.stats.undone += len(asking.undo)
        known = asking.known or [None] * len(request)
        return MixedAnswer(request, answer.admitted, (answer.now_us, now_us), known, asking.taken, asking.parts)

    def _settle(self, asking: Asking, answer: Answer, now_us: int) -> list[int]:
        """Keep or put back what was taken provisionally; the places of charges whose lease has ended."""
        lapsed: list[int] = []
        taken = list(asking.taken)
        for place, leased, spend in asking.spent:
            if not answer.admitted:
                leased.give_back(spend)
                taken.append((place, leased, left_of(leased)))
            elif leased.conclude(spend, now_us):
                taken.append((place, leased, left_of(leased)))
            else:
                lapsed.append(place)
        asking.spent, asking.taken = (), taken
        return lapsed

    def failed(self, asking: Asking, error: StoreError, now_us: int) -> StoreError:
        """What the caller gets where the store gave no answer: the error, or one that says what of the request stands all the same."""
        request, places = asking.request, asking.places
        reached = error if isinstance(error, PartlyReached) else None
        if asking.rest is request and not asking.parts:
            return error
        if not asking.spent and not asking.parts and not asking.known and reached is None:
            return error
        verdicts: list[Verdict | None] = [None] * len(request)
        refused = False
        if reached is not None:
            for place, verdict in zip(places, reached.verdicts, strict=True):
                if isinstance(verdict, Verdict):
                    verdicts[place] = verdict
                    refused = refused or not (verdict.outcome is ALLOWED or request[place][0].shadow)
        taken = list(asking.taken)
        for place, leased, spend in asking.spent:
            if refused:
                leased.give_back(spend)
                verdicts[place] = passes(leased, left_of(leased))
            elif leased.conclude(spend, now_us):
                taken.append((place, leased, left_of(leased)))
        asking.spent = ()
        for place, leased, left in taken:
            verdicts[place] = passes(leased, left)
        for asked, answer in asking.parts:
            for place, verdict in zip(asked, answer.verdicts(), strict=True):
                verdicts[place] = verdict
        for place, known in enumerate(asking.known or ()):
            if known is not None:
                verdicts[place] = known
        stands = receipts_of(request, taken, now_us, asking.parts)
        if refused:
            asking.undo, stands = stands, []
        elif reached is not None:
            stands += reached.receipts  # type: ignore[arg-type]
        cause = error if reached is None else reached.cause
        return PartlyReached(cause, verdicts, stands, self._wall_us() if reached is None else reached.now_us)

    def abandon(self, asking: Asking) -> None:
        """Put back what a request holds whose caller was interrupted while the store was asked; it does not pass."""
        for _, leased, spend in asking.spent:
            leased.give_back(spend)
        asking.spent = ()

    def learn(self, asking: Asking, answer: Answer, now_us: int) -> None:
        """Remember what the store refused."""
        learn = self.denials.learn if self.remembers else None
        short = asking.short
        for place, charge, verdict in zip(asking.places, asking.rest, answer.verdicts(), strict=True):
            counter, subject, cost = charge
            retry_us = verdict.retry_after_us
            # A LocalVerdict was made up by whoever stands between here and the store.
            if verdict.outcome is not DENIED or not retry_us or counter.denied_counts or type(verdict) is not Verdict:
                continue
            leased = None if short is None else short.get(place)
            if leased is not None:
                leased.denied(cost, retry_us, now_us)
            elif learn is not None:
                learn(counter.prefix + subject, counter.spec, cost, retry_us, asking.sent_us, asking.epoch, now_us)

    def learn_last(self, asking: Asking, answer: StateAnswer, now_us: int) -> None:
        """Remember that the next charge like one that has just passed is refused, where it took what was left: ``takes_last``."""
        if not self.remembers:
            return
        short, at_us = asking.short, answer.now_us
        for place, (counter, subject, cost), (_, state) in zip(asking.places, asking.rest, answer.states, strict=True):
            spec = counter.spec
            if (
                counter.denied_counts
                or (short is not None and place in short)
                or not _took_last(spec, state, at_us, cost)
            ):
                continue
            retry_us = spec.verdict(state, at_us, cost, False).retry_after_us
            if retry_us:
                key = counter.prefix + subject
                self.denials.learn(key, spec, cost, retry_us, asking.sent_us, asking.epoch, now_us, passed=True)

    @staticmethod
    def _put_back(spent: Sequence[Spent]) -> None:
        for _, leased, spend in spent:
            leased.give_back(spend)


def takes_last(answer: Answer) -> TypeGuard[StateAnswer]:
    """Whether a request that passed, and whose charges were all made, left too little of a counter for another like it."""
    if type(answer) is not StateAnswer or answer.notes is not None:
        return False
    now_us = answer.now_us
    for (counter, _, cost), (_, state) in zip(answer.request, answer.states):  # noqa: B905 -- made as long; strict costs time
        if _took_last(counter[1], state, now_us, cost):
            return True
    return False


def _took_last(spec: Spec, state: State | None, now_us: int, cost: int) -> bool:
    # A log is not told whole, and a queue says when its next place is free, which is no refusal.
    return isinstance(spec, _WHOLE) and spec.admit(state, now_us, cost) is None


def is_leasable(counter: Counter) -> bool:
    """Whether charges of this counter may be decided from leases."""
    return counter.precision in (_LEASED, _AUTO) and not counter.denied_counts
