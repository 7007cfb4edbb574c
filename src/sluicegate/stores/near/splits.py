"""Counters that are split while they are hot: decided on several sub-counters, each in a hash slot of its own, with a part of the limit.

The *whole* is the counter itself, in its own slot. Beside it, in the same slot, stands its *gate*: a strict sliding window that nobody fills.
Who charges the whole charges the gate with it, in one atomic step. Who splits the counter shuts the gate by charging all of it,
and does so again every ``SPLIT_RENEW_US``: for at least ``SPLIT_HOLD_US`` after that nobody is admitted by the whole, whoever they are and
whatever they know; they are refused by the gate, and so told to use the parts. A process uses the parts only until a while before the gate can
open, by its own clock and counted from the send. So the whole and the parts never admit at the same time, and no process has to be told anything.

To split, in this order (``splitting.begin``): take the claim, so that one process does it; empty the parts; shut the gate; look what the whole has left; put
that into the parts, each its share. While it is split every process charges the whole with what it was admitted by the parts, at the latest
``SPLIT_RENEW_US`` later. So the whole knows what was used, and goes on from there when the counter is cold and nobody shuts the gate any more.

Errors. Let B and r be the limit and its rate.

- Admitted too much. At a split: what comes back (or, of a window, is used) in the one exchange between emptying the parts and looking at the
  whole, r * exchange; nothing at a merge, except what processes were admitted by the parts and could not tell the whole: at
  most their last ``SPLIT_USE_US``, where they crash or are cut off from the whole's server. A counter that its server loses (eviction, flush) is
  full again: of a part that is 1 / n of the limit. Nothing else, whatever nodes do not agree about.
- Refused too much. A part may be empty while others are not: each process asks one part after the other, so with requests of one cost
  all parts are used alike, to one request per process. At a split the shares are rounded down: fewer than n tokens. At a merge requests are refused for
  at most ``SPLIT_MARGIN_US`` by a gate that is about to open. A cost above half of a part takes of several, all of which must have it. A split whose first exchange fails half way begins with nothing.

Pure: no clock, no lock, no I/O. ``now_us`` is the steady time of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.algorithms.parts import parts_of
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.sliding_window import SlidingWindow
from sluicegate.bounds import (
    CAPACITY_MAX,
    SPLIT_HOLD_US,
    SPLIT_MARGIN_US,
    SPLIT_RENEW_US,
    SPLIT_USE_US,
    SPLITS_IN_PROCESS_MAX,
)
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.keys import beside_prefix, part_subject

__all__ = ["Duty", "Split", "Splits", "Whole", "parts_beside"]

_GATE: Final = SlidingWindow(CAPACITY_MAX, SPLIT_HOLD_US, 4)
_CLAIM: Final = SlidingWindow(1, SPLIT_HOLD_US, 4)


class Whole:
    """How the counters of one ``Counter`` are split; the same in every process.

    ``parts``: the counters of the parts, the larger ones first. ``drains``: the same, charged whether they refuse or not. ``gate``: charged by one with every
    charge of the whole; ``shut``: the same, charged whether it refuses or not. ``told``: the whole, likewise. ``claim``: passes once in a hold.
    """

    __slots__ = ("claim", "counter", "drains", "gate", "parts", "shut", "told")

    def __init__(self, counter: Counter, parts: tuple[Counter, ...]) -> None:
        self.counter = counter
        self.parts = parts
        self.drains = tuple([part._replace(denied_counts=True) for part in parts])
        self.told = counter._replace(denied_counts=True)
        self.gate = _beside(counter, _GATE, "gate")
        self.shut = self.gate._replace(denied_counts=True)
        self.claim = _beside(counter, _CLAIM, "claim")

    @classmethod
    def of(cls, counter: Counter) -> Whole | None:
        """None where a counter is never split: its limit is too small, or it is a shadow, which may not refuse by its gate."""
        specs = parts_of(counter.spec)
        if len(specs) == 1 or counter.shadow or counter.precision is not Precision.SPLIT:
            return None
        plain = counter._replace(precision=Precision.EXACT)
        return cls(plain, tuple([plain._replace(spec=spec) for spec in specs]))


def _beside(counter: Counter, spec: SlidingWindow, word: str) -> Counter:
    return Counter(counter.name, spec, beside_prefix(counter.prefix, spec.algorithm, spec.shape, word))


def parts_beside(
    keys: Sequence[tuple[Counter, str]], whole_of: Callable[[Counter], Whole | None] = Whole.of
) -> list[tuple[Counter, str]]:
    """The parts of those of these counters that may be split, whoever splits them."""
    return [
        (part, part_subject(subject, number))
        for counter, subject in keys
        if counter.precision is Precision.SPLIT and (whole := whole_of(counter)) is not None
        for number, part in enumerate(whole.parts)
    ]


class Duty(Enum):
    """What is to be done for a split counter."""

    BEGIN = "begin"
    RENEW = "renew"
    REPORT = "report"


class Split:
    """What one process knows of one counter that is split, or that it wants to split.

    ``until_us``: the parts are used until then. ``hot``: this process keeps the counter split. ``admitted``: tokens of the parts that the
    whole was not told of. ``busy``: somebody is doing what was due.
    """

    __slots__ = ("_turn", "admitted", "busy", "due_us", "hot", "key", "subject", "subjects", "until_us", "whole")

    def __init__(self, whole: Whole, subject: str, turn: int, now_us: int) -> None:
        self.whole = whole
        self.subject = subject
        self.key = whole.counter.prefix + subject
        self.subjects = tuple([part_subject(subject, number) for number in range(len(whole.parts))])
        self.until_us = 0
        self.due_us = now_us
        self.hot = self.busy = False
        self.admitted = 0
        self._turn = turn

    def charges(self, cost: int) -> list[Charge]:
        """A charge of the whole (``cost`` at most its capacity) as charges of parts: of the next one, or evenly of so many that half of each holds it."""
        parts, turn = self.whole.parts, self._turn
        least = parts[-1].spec.capacity
        if cost <= least // 2:
            self._turn = turn + 1 if turn + 1 < len(parts) else 0
            return [(parts[turn], self.subjects[turn], cost)]
        count = min(len(parts), -(-2 * cost // least))
        size, more = divmod(cost, count)
        # Where it takes nearly all of all parts, what does not divide goes to the larger ones, which are the first.
        begin = 0 if size >= least else turn
        self._turn = (turn + count) % len(parts)
        places = [(begin + step) % len(parts) for step in range(count)]
        return [(parts[place], self.subjects[place], size + (step < more)) for step, place in enumerate(places)]

    def shares(self, tokens: int) -> list[Charge]:
        """``tokens`` of the whole, at most its capacity, as tokens of the parts: by their sizes, the rest to the first ones."""
        parts, capacity = self.whole.parts, self.whole.counter.spec.capacity
        tokens = min(tokens, capacity)
        sizes = [tokens * part.spec.capacity // capacity for part in parts]
        more = tokens - sum(sizes)
        return [
            (part, self.subjects[place], size + (place < more))
            for place, (part, size) in enumerate(zip(parts, sizes, strict=True))
            if size + (place < more)
        ]

    @property
    def duty(self) -> Duty:
        """What is to be done when it is due."""
        if not self.hot:
            return Duty.REPORT
        return Duty.RENEW if self.until_us > self.due_us else Duty.BEGIN


class Splits:
    """The split counters of one process, at most ``SPLITS_IN_PROCESS_MAX``. ``draw(n)`` gives a number below n: the part to begin with."""

    __slots__ = ("_draw", "_splits", "_terms", "_wholes")

    def __init__(self, terms: LeaseTerms, draw: Callable[[int], int]) -> None:
        self._terms = terms
        self._draw = draw
        self._splits: dict[str, Split] = {}
        self._wholes: dict[str, tuple[Counter, Whole | None]] = {}

    def whole(self, counter: Counter) -> Whole | None:
        """How counters of this one are split; None: never."""
        known = self._wholes.get(counter.prefix)
        if known is None or known[0] is not counter:
            if len(self._wholes) >= SPLITS_IN_PROCESS_MAX:
                self._wholes.clear()
            known = self._wholes[counter.prefix] = (counter, Whole.of(counter))
        return known[1]

    def using(self, key: str, now_us: int) -> Split | None:
        """The split counter whose parts are to be asked; None: ask the whole."""
        split = self._splits.get(key)
        return split if split is not None and now_us < split.until_us else None

    def promote(self, counter: Counter, subject: str, now_us: int) -> bool:
        """A counter is hot: split it. False where it cannot be, or there are too many."""
        whole = self.whole(counter)
        split = None if whole is None else self._entry(whole, subject, now_us)
        if split is None:
            return False
        split.hot = True
        split.due_us = min(split.due_us, now_us)
        return True

    def retire(self, key: str, now_us: int) -> None:
        """A counter is cold here. Its parts are used until their time ends."""
        split = self._splits.get(key)
        if split is not None:
            split.hot = False
            split.due_us = now_us

    def gated(self, whole: Whole, subject: str, wait_us: int, sent_us: int, now_us: int) -> Split | None:
        """The gate of a whole has refused, and will for ``wait_us``: the split whose parts are to be asked, None where it opens too soon."""
        until_us = sent_us + self._terms.usable_us(wait_us) - SPLIT_MARGIN_US
        if until_us <= now_us:
            return None
        split = self._entry(whole, subject, now_us)
        if split is not None and until_us > split.until_us:
            split.until_us = until_us
            if not split.hot and not split.busy:
                _schedule(split, now_us)
        return split

    def all(self) -> list[Split]:
        """Every counter that is known to be split."""
        return list(self._splits.values())

    def forget(self, key: str) -> None:
        """A counter has other numbers, or was reset: what is known of its parts is not used any more."""
        self._splits.pop(key, None)

    def clear(self) -> None:
        """Know nothing, as a new process does."""
        self._splits.clear()

    def _entry(self, whole: Whole, subject: str, now_us: int) -> Split | None:
        key = whole.counter.prefix + subject
        split = self._splits.get(key)
        if split is None or split.whole is not whole:
            if split is None and len(self._splits) >= SPLITS_IN_PROCESS_MAX:
                return None
            split = self._splits[key] = Split(whole, subject, self._draw(len(whole.parts)), now_us + SPLIT_RENEW_US)
        return split

    # ------------------------------------------------------------------ what is to be done

    def due(self, now_us: int) -> list[Split]:
        """The counters for which something is to be done now; they are busy until ``done``. Those that are over are let go."""
        found: list[Split] = []
        for split in list(self._splits.values()):
            if split.busy or now_us < split.due_us:
                continue
            split.due_us = now_us
            if split.hot or split.admitted:
                split.busy = True
                found.append(split)
            elif now_us >= split.until_us:
                del self._splits[split.key]
            else:
                split.due_us = now_us + SPLIT_RENEW_US
        return found

    @property
    def next_due_us(self) -> int | None:
        """When ``due`` has something to say; None while nothing is split."""
        return min([split.due_us for split in self._splits.values() if not split.busy], default=None)

    def done(self, split: Split, shut_us: int | None, now_us: int) -> None:
        """What was due is done. ``shut_us``: the gate was shut, by what was sent then; None: it was not."""
        split.busy = False
        if shut_us is not None:
            split.until_us = max(split.until_us, shut_us + SPLIT_USE_US)
        _schedule(split, now_us)


def _schedule(split: Split, now_us: int) -> None:
    """The next turn; the last admissions by the parts are told as soon as they are the last, before the gate opens."""
    split.due_us = now_us + SPLIT_RENEW_US
    if now_us < split.until_us < split.due_us:
        split.due_us = split.until_us
