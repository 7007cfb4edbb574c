"""What a limiter calls about its decisions, and the take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluicegate.algorithms.verdict import Brief, Outcome, Verdict
from sluicegate.bounds import FOLLOW_MEMO_MAX, LOOKS_BEYOND_PER_S, LOOKS_PER_S_MAX, REFUSALS_TOLD_MAX, SAMPLES_TOLD_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import ConfigurationError
from sluicegate.events import (
    ALLOWED,
    BYPASSED,
    DENIED,
    GIVEN_BACK,
    NEVER_FITS,
    RESET,
    UNDECIDED,
    Admission,
    Demand,
    Dropped,
    RequestCount,
    RuleCount,
    Watching,
)
from sluicegate.limiter.cells import Cell, Cells, RequestKey, rule_of
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.offenders import Offenders, Reader
from sluicegate.limiter.plan import Plan, plan_of
from sluicegate.limiter.recording.following import Following, digest_of
from sluicegate.limiter.recording.looks import allowed_looks, refused_looks
from sluicegate.limiter.recording.outcomes import outcomes_of
from sluicegate.limiter.recording.passing import Counting
from sluicegate.limiter.recording.taken import Taken
from sluicegate.limiter.recording.telling import Hitters, samples_of, subjects_of
from sluicegate.stores.base import Answer, Charge, Counter, Single
from sluicegate.stores.locks import Locked

__all__ = ["Recorder"]


class Recorder(Locked):
    """Remembers the decisions of one limiter (``Limiter.record``) until they are taken. Safe from any thread.

    ``name_of``: how a subject is told, by default a digest's work; it is called when things are taken. ``follow``: note all that chosen clients ask, which
    demand and watched counters need; it costs every decision a digest of each of its subjects (about 0.1 us) and takes ``hit`` its fast path.

    Every decision made while it is attached is in exactly one take; one under way when it is attached or detached may be left out.
    """

    def __init__(self, clock: Clock, *, name_of: Callable[[str], str], follow: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._name_of = name_of
        self._cells = Cells()
        self._plain = self._cells.plain
        self._allowed = allowed_looks(clock.now_us)
        self._refused = refused_looks(clock.now_us)
        self.following = Following(clock.now_us) if follow else None
        """Who is followed; None: nobody."""
        self._hitters = Hitters()
        self._offenders: Offenders | None = None
        self._reader: Reader | None = None
        self._taking = Locked()
        self._counting = Counting(self._cells, self._allowed, self._refused, clock.now_us)

    @property
    def follows(self) -> bool:
        """Whether chosen clients are followed."""
        return self.following is not None

    # ------------------------------------------------------------------ called by a limiter

    def attach(self, offenders: Offenders) -> None:
        """A limiter begins to tell; refusals are read from its ``offenders``. Raises ConfigurationError where another one does."""
        with self._lock:
            if self._offenders is not None:
                raise ConfigurationError("record: this recorder belongs to a limiter already; each needs its own")
            self._offenders, self._reader = offenders, offenders.reader()

    def detach(self) -> None:
        """It tells no more. What was not taken stays to be taken."""
        with self._lock:
            if self._offenders is not None and self._reader is not None:
                self._hitters.keep(self._reader.take())
                self._offenders.forget(self._reader)
            self._offenders = self._reader = None

    def cell_of(self, counters: Sequence[Counter], tier: str | None, version: int) -> Cell | None:
        """What usual decisions of these counters are to count in: plans bring it along. None: there is no room."""
        return self._cells.of(counters, tier, version)

    def retire(self) -> None:
        """Other rules are in service: no plan brings along a cell that was given before."""
        self._cells.retire()

    def passed(self, plan: Plan, answer: Answer) -> None:
        """A decision of charges that all passed; not called where its plan has a cell, which counts it, and nobody is ``following``."""
        cell = plan.cell
        if cell is None:
            self._counting.usual(plan, answer, None)
        else:
            cell.left -= 1
            if cell.left < 0:
                self._counting.usual(plan, answer, cell)
        following = self.following
        if following is None:
            return
        others = following.chosen[1]
        for charge in plan.charges:
            if charge[1] not in others:
                self._followed(following, charge, plan.tier or "", plan.version, answer.now_us)

    def look(self, plan: Plan, answer: Answer, cell: Cell) -> None:
        """A decision that its cell has counted, which has nothing left."""
        self._counting.usual(plan, answer, cell)

    def told(self, decision: Decision) -> None:
        """A decision that is not the usual one: refused, degraded, by a list, without a rule, or not by all rules."""
        plan, answer = decision.plan, decision.answer
        plainly = not (decision.degraded or decision.allowed or answer is None or plan.unidentified)
        if answer is None or not (plainly and self._counting.refused(plan, answer, decision)):
            self._counting.other(decision)
        following = self.following
        if following is None:
            return
        others = following.chosen[1]
        for charge in plan.charges:
            if charge[1] not in others:
                self._follow(following, decision)
                return

    def bypassed(self, cost: int, version: int, times: int = 1) -> None:
        """Requests that were let pass because the limiter was switched off."""
        self._cells.add(RequestKey("", BYPASSED, "", version), (), (), cost, times)

    def singles(self, charges: Sequence[Charge], singles: Sequence[Single], now_us: int) -> None:
        """Decisions of one charge each that no rule names."""
        for charge, (admitted, state) in zip(charges, singles, strict=True):
            self._single(charge, state if type(state) is Verdict else None, now_us, admitted=admitted)

    def alike(self, counter: Counter, keys: Sequence[str], cost: int, briefs: Sequence[Brief], refused: int) -> None:
        """Decisions of one cost for whole keys of one counter, ``refused`` of which were."""
        skip = len(counter.prefix)
        if refused or cost != 1:
            now_us = self._clock.now_us()
            for name, brief in zip(keys, briefs, strict=True):
                self._single((counter, name[skip:], cost), None, now_us, admitted=brief[0])
            return
        count, key = len(keys), id(counter)
        cell: Cell | None
        try:
            # Found and counted without a call in between, as in ``Counting``.
            cell = self._plain[key]
            cell.left -= count
        except KeyError:
            cell = self._counting.alike(counter, count)
        if cell is not None and cell.left < 0:
            plan = plan_of(counter, keys[0][skip:], 1)
            while cell.left < 0:
                cell.give(self._allowed.look(plan, None) + 1)
        following = self.following
        if following is not None:
            for name in keys:
                subject = name[skip:]
                if subject not in following.chosen[1]:
                    self._followed(following, (counter, subject, 1), "", 0, self._clock.now_us())

    def _followed(self, following: Following, charge: Charge, tier: str, version: int, now_us: int) -> None:
        """A charge that was made, of a client that is not known not to be followed."""
        digest = self._digest_of_followed(following, charge[1])
        if digest is not None:
            following.saw(charge, digest, tier, version, now_us, allowed=True, fits=True)

    def _single(self, charge: Charge, policy: Verdict | None, now_us: int, *, admitted: bool) -> None:
        """One decision. ``policy``: what a failure policy said in the place of the store."""
        counter, subject, cost = charge
        rule = rule_of(counter.name)
        if policy is not None and policy.outcome is Outcome.UNDECIDED:
            said = UNDECIDED
        elif admitted:
            said = ALLOWED
        else:
            said = NEVER_FITS if cost > counter.spec.capacity else DENIED
        request = RequestKey("" if admitted else rule, ALLOWED if admitted else said, "", 0, policy is not None)
        self._counting.single(charge, request, said)
        if said in (DENIED, NEVER_FITS) and self._offenders is not None:
            self._offenders.refused(rule, subject)
        if self.following is not None:
            digest = digest_of(subject)
            if digest < self.following.limit:
                degraded = policy is not None
                self.following.saw(charge, digest, "", 0, now_us, allowed=admitted, fits=admitted, degraded=degraded)

    def hit_refused(self, counter: Counter, subject: str, version: int, *, fits_never: bool) -> None:
        """A fast path refused one token."""
        said = NEVER_FITS if fits_never else DENIED
        rule = rule_of(counter.name)
        self._cells.add(RequestKey(rule, said, "", version), ((counter.name, said),), (1,), 1)
        offenders = self._offenders
        if offenders is not None:
            offenders.refused(rule, subject)

    def given_back(self, charges: Sequence[Charge], at_us: int) -> None:
        """At most so many tokens were given back to counters. ``at_us``: the node's time before the store was told."""
        if self.following is not None and charges:
            self.following.changed(charges, GIVEN_BACK, at_us)

    def reset(self, counters: Sequence[tuple[Counter, str]] | None, at_us: int) -> None:
        """Counters are forgotten; None: any may have been changed by somebody else."""
        if self.following is None:
            return
        if counters is None:
            self.following.reset_all(at_us)
        else:
            self.following.changed([(counter, subject, 0) for counter, subject in counters], RESET, at_us)

    def watch_hits(self, passed: Callable[[], int], counter: Counter, version: int) -> None:
        """Count what a fast path lets pass."""
        self._cells.watch(passed, counter, version)

    def unwatch_hits(self, passed: Callable[[], int]) -> None:
        """The fast path has ended."""
        self._cells.unwatch(passed)

    def next_hits(self, cell: Cell | None) -> int:
        """How many hits a fast path may let pass before one goes the long way, where it is looked at; ``cell``: what counts those."""
        if cell is not None:
            cell.leave(0)
        return self._allowed.skip()

    # ------------------------------------------------------------------ called by who tells of them

    def take(self, at_us: int, until_us: int, *, last: bool = False) -> Taken:
        """All that is new since the last take, told as of ``at_us`` up to ``until_us`` (node's clock). ``last``: also demand whose span is not over.

        Takes milliseconds, on the caller's thread; decisions go on meanwhile. Concurrent calls take turns.
        """
        with self._taking._lock:
            requests, rules = self._cells.take()
            try:
                return self._told_of(requests, rules, at_us, until_us, last=last)
            except BaseException:
                # ``name_of`` is somebody else's; whatever it does, no count is lost by it.
                self._cells.put_back(requests, rules)
                raise

    # ------------------------------------------------------------------ inside

    def _told_of(
        self, requests: list[RequestCount], rules: list[RuleCount], at_us: int, until_us: int, *, last: bool
    ) -> Taken:
        """The take, of which the counts have been made."""
        decided = sum(row.decisions for row in requests)
        span_s = max((until_us - at_us) / US_PER_S, 0.001)
        per_s = decided / span_s
        looks, missed = self._allowed.take(1 if per_s <= LOOKS_PER_S_MAX else round(per_s / LOOKS_BEYOND_PER_S))
        self._counting.restart()
        self._cells.leave(2 * self._allowed.every)
        refused = sum(row.decisions for row in requests if row.rule and row.outcome != ALLOWED)
        refusals, missed_refusals = self._refused.take(refused // REFUSALS_TOLD_MAX)
        name_of = self._name_of
        told, left = samples_of(looks, SAMPLES_TOLD_MAX, name_of)
        told_refusals, left_refusals = samples_of(refusals, REFUSALS_TOLD_MAX, name_of)
        reader = self._reader
        if reader is not None:
            self._hitters.keep(reader.take())
        self._hitters.asked([*looks, *refusals])
        subjects, totals, cut = subjects_of(self._hitters, requests, rules, name_of)
        demand: list[Demand] = []
        admissions: list[Admission] = []
        watching: Watching | None = None
        gone = unwatched = 0
        if self.following is not None:
            demand, admissions, watching, gone, unwatched = self.following.take(at_us, until_us, name_of, last=last)
        samples = missed + missed_refusals + left + left_refusals
        dropped = Dropped(samples=samples, subjects=cut, demand=gone, admissions=unwatched)
        decisions = [*told_refusals, *told]
        return Taken(
            at_us, until_us, requests, rules, subjects, totals, decisions, demand, admissions, watching, dropped
        )

    def _follow(self, following: Following, decision: Decision) -> None:
        """An unusual decision, of which at least one client is not known not to be followed."""
        plan, answer = decision.plan, decision.answer
        tier, version, degraded = plan.tier or "", plan.version, decision.degraded
        now_us: int | None = None
        outcomes: list[str] = []
        for place, charge in enumerate(plan.charges):
            digest = self._digest_of_followed(following, charge[1])
            if digest is None:
                continue
            if now_us is None:
                now_us = self._clock.now_us() if answer is None else answer.now_us
                outcomes = [outcome for _, outcome in outcomes_of(decision)[len(plan.unidentified) :]]
            fits = outcomes[place] in (ALLOWED, UNDECIDED)
            allowed = decision.allowed and fits
            following.saw(charge, digest, tier, version, now_us, allowed=allowed, fits=fits, degraded=degraded)

    @staticmethod
    def _digest_of_followed(following: Following, subject: str) -> int | None:
        """Its digest; None, which is remembered, where it is not followed."""
        limit, others = following.chosen
        digest = digest_of(subject)
        if digest < limit:
            return digest
        if len(others) >= FOLLOW_MEMO_MAX:
            others.clear()
        others.add(subject)
        return None
