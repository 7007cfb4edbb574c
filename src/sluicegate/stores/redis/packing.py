"""From requests to a command for the scripts, and from its reply to answers. No input or output.

One ``Packing`` serves all connections of a store, synchronous and asynchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple, cast

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.algorithms.spec import State
from sluicegate.bounds import REDIS_FORMS_MEMO_MAX, REDIS_READ_TOGETHER_MAX
from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Charge, Counter, LeaseItem, Receipt, Request
from sluicegate.stores.keys import LEDGER_SUFFIX, PART_SUFFIXES, BucketSubjects
from sluicegate.stores.redis.definitions import CounterForm, row, row_of_bytes
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.records import BAN, TOKEN, Record
from sluicegate.stores.redis.scripts import MOVING, PACKED, PARTS, PLAIN, Script
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.standing import Standing
from sluicegate.stores.region_parts import PartStep, PartView

__all__ = ["Command", "Decided", "Granted", "Leasings", "Packing", "Parted", "Refunded"]


class Command(NamedTuple):
    """One command: a script with its keys and arguments, or (``script`` None) the deletion of ``keys``.

    The first key says where it belongs; all keys of a command have one hash slot.
    """

    script: Script | None
    keys: Sequence[str | bytes]
    arguments: Sequence[bytes]

    def parts(self) -> tuple[bytes | str, ...]:
        """The command as it is sent; a script by its digest."""
        if self.script is None:
            return (b"UNLINK", *self.keys)
        return (b"EVALSHA", self.script.digest, str(len(self.keys)), *self.keys, *self.arguments)

    def parts_in_full(self) -> tuple[bytes | str, ...]:
        """The command with the script's text, for a server that does not know the digest."""
        assert self.script is not None
        return (b"EVAL", self.script.text, str(len(self.keys)), *self.keys, *self.arguments)


class Decided(NamedTuple):
    """The reply to ``Packing.decide``. ``answers``: one per request, or None where the command must be made again.

    ``now_us``: the server's time; for a command that is made again, the new guess.
    """

    now_us: int
    answers: list[StateAnswer | StoreError] | None


class Refunded(NamedTuple):
    """The reply to ``Packing.refund``. ``changed``: None where the command must be made again, with the guess ``now_us``.

    ``problem``: what kept a counter from being changed.
    """

    now_us: int
    changed: int | None
    problem: StoreError | None


class Granted(NamedTuple):
    """The reply to ``Packing.grant``, as ``Refunded``; ``given``: the tokens given back of each counter."""

    now_us: int
    given: list[int] | None
    problem: StoreError | None


class Leasings(NamedTuple):
    """The reply to ``Packing.lease``, as ``Granted``; a StoreError in the place of a counter that cannot be read."""

    now_us: int
    grants: list[LeaseGrant | StoreError] | None
    problem: StoreError | None


class Parted(NamedTuple):
    """The reply to ``Packing.parts``, as ``Leasings``."""

    now_us: int
    views: list[PartView | StoreError] | None
    problem: StoreError | None


_REFUSED, _CHARGED, _PASSES, _REFUSED_NONE, _PASSES_NONE, _FAULT = range(6)
_DESCRIBED_AT_COST = (_REFUSED, _CHARGED, _REFUSED_NONE)  # a charge that passed and was not made is described as a look
_CALENDAR, _TOGETHER = 2, 4  # places in a call's first argument
_NOW_BYTES = 8
_GIVEN_BYTES = 5
_LIFE_BYTES = 16
_leasing = Struct("<BIBQIHIHH")
_parted = Struct("<BIBIHIHIHQQH")
_WANTED, _LOST, _UNREADABLE = 1, 2, 4
_PART_UNREADABLE = 2
_NO_RECORD = Record.of(BAN, 0, None)


class Packing:
    """Makes commands and reads replies for a store at ``where``. Safe from any thread.

    ``clock`` guesses which calendar windows the server is in; a wrong guess costs a second call, never a wrong decision.
    ``time_source``: for tests only, dates the counters instead of the server; keys then live an hour longer.
    """

    __slots__ = (
        "_as_texts", "_forms", "_hold_ms", "_moving", "_standing", "_subjects", "_time_source", "_where", "clock", "scripts",
    )  # fmt: skip

    def __init__(self, subjects: Subjects, clock: Clock, where: str, time_source: Clock | None = None) -> None:
        self._subjects = subjects
        self.clock = clock
        self._where = where
        self._time_source = time_source
        self._hold_ms = 0 if time_source is None else 3_600_000
        self._forms: dict[int, CounterForm] = {}
        self._standing = Standing()
        self._moving = subjects.moving_from is not None
        self._as_texts = not self._moving and not subjects.layout.packed
        """Every key is a text between the ends of its form's."""
        self.scripts = PLAIN if self._as_texts else MOVING if self._moving else PACKED
        """What decides in this layout."""

    def decide(self, requests: Sequence[Request], guess_us: int = 0, *, peek: bool = False) -> Command:
        """The command that decides these requests, at most ``REDIS_BATCH_MAX``. ``guess_us``: about the server's time; 0: ours."""
        if len(requests) == 1:
            return self._decide_one(requests[0], guess_us, peek=peek)
        call = _Call(self, guess_us)
        message = call.message
        message += (int(peek), 0)
        keys: list[str | bytes] = []
        texts, as_texts = self._subjects.texts, self._as_texts
        # Requests that make the same charges as the one before are only counted: a form is looked up where it changes.
        last_counter, last_cost, place = None, -1, 0
        head = tail = ""
        places: list[int] = []
        counted = 0
        for request in requests:
            before, places = places, []
            for counter, subject, cost in request:
                if counter is not last_counter or cost != last_cost:
                    place = call.place(counter, cost)
                    last_counter, last_cost = counter, cost
                    head, tail = call.frame
                places.append(place)
                keys.append(f"{head}{texts[subject]}{tail}" if as_texts else self.key(counter, subject))
            if counted and places == before:
                message[counted] += 1
            else:
                counted = len(message)
                message += (1, len(places), *places)
        count = len(keys)
        if 1 < count <= REDIS_READ_TOGETHER_MAX and not call.long and len(set(keys)) == count:
            message[_TOGETHER] = 1
        if self._moving:
            keys += [self._key_before(counter, subject) for request in requests for counter, subject, _ in request]
        return Command(self.scripts.decide, keys, call.arguments())

    def _decide_one(self, request: Request, guess_us: int, *, peek: bool) -> Command:
        keys: list[str | bytes] = []
        arguments: list[bytes] = []
        texts, as_texts = self._subjects.texts, self._as_texts
        for counter, subject, cost in request:
            form = self.form(counter)
            if form.calendar is not None:
                guess_us = guess_us or self.clock.now_us()
            keys.append(f"{form.head}{texts[subject]}{form.tail}" if as_texts else self.key(counter, subject))
            arguments.append(form.charge(cost, guess_us))
        if peek or self._time_source is not None:
            now_us, hold_ms, _ = self.begin()
            arguments.append(row((now_us, hold_ms, int(peek))))
        if self._moving:
            keys += [self._key_before(counter, subject) for counter, subject, _ in request]
        return Command(self.scripts.decide_one, keys, arguments)

    @staticmethod
    def is_answer(reply: object) -> bool:
        """Whether the reply to ``decide`` has answers: it is no error, and no command that must be made again."""
        return type(reply) is bytes and len(reply) > _NOW_BYTES

    def decided(self, requests: Sequence[Request], reply: bytes, *, peek: bool = False) -> Decided:
        """What the reply to ``decide`` says."""
        now_us = int.from_bytes(reply[:_NOW_BYTES], "little")
        if len(reply) == _NOW_BYTES and any(requests):
            return Decided(now_us, None)
        answers: list[StateAnswer | StoreError] = []
        append = answers.append
        at = _NOW_BYTES
        last_counter = None
        size, read = _NO_RECORD
        for request in requests:
            if len(request) == 1 and reply[at] == _CHARGED and not request[0][0].standing:
                counter = request[0][0]
                if counter is not last_counter:
                    size, read = self.form(counter).record
                    last_counter = counter
                at += 1
                append(StateAnswer(True, now_us, request, ((0, read(reply, at)),)))
                at += size
            else:
                answer, at = self._answer(request, reply, at, now_us, peek=peek)
                append(answer)
        return Decided(now_us, answers)

    def refund(self, receipts: Sequence[Receipt], guess_us: int = 0) -> Command:
        """The command that gives these charges back, at most ``REDIS_BATCH_MAX``."""
        call = _Call(self, guess_us)
        for counter, _, cost, charged_us in receipts:
            calendar = self.form(counter).calendar
            window_us = (0, 0) if calendar is None else calendar.bounds_us(charged_us)
            # Its limit may have been lowered since. One that stands by its own numbers knows them only where it is.
            most = cost if counter.standing else min(cost, counter.spec.capacity)
            call.message += (call.place(counter, most), charged_us, *window_us)
        keys = self._keys([(receipt.counter, receipt.subject) for receipt in receipts])
        return Command(self.scripts.refund, keys, call.arguments())

    def refunded(self, reply: bytes) -> Refunded:
        """What the reply to ``refund`` says."""
        now_us = int.from_bytes(reply[:_NOW_BYTES], "little")
        if len(reply) == _NOW_BYTES:
            return Refunded(now_us, None, None)
        changed, problem = reply[_NOW_BYTES : _NOW_BYTES + 4], reply[_NOW_BYTES + 4 :]
        return Refunded(now_us, int.from_bytes(changed, "little"), self._problem(problem))

    def grant(self, charges: Sequence[Charge], guess_us: int = 0) -> Command:
        """The command that gives back up to the cost of each, at most ``REDIS_BATCH_MAX``."""
        call = _Call(self, guess_us)
        call.message += [call.place(counter, min(cost, counter.spec.capacity)) for counter, _, cost in charges]
        keys = self._keys([(counter, subject) for counter, subject, _ in charges])
        return Command(self.scripts.grant, keys, call.arguments())

    def granted(self, count: int, reply: bytes) -> Granted:
        """What the reply to a ``grant`` of ``count`` charges says."""
        now_us = int.from_bytes(reply[:_NOW_BYTES], "little")
        if len(reply) == _NOW_BYTES:
            return Granted(now_us, None, None)
        end = _NOW_BYTES + count * _GIVEN_BYTES
        given = [int.from_bytes(reply[at : at + _GIVEN_BYTES], "little") for at in range(_NOW_BYTES, end, _GIVEN_BYTES)]
        return Granted(now_us, given, self._problem(reply[end:]))

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem], guess_us: int = 0) -> Command:
        """The command of a holder's step on these counters, at most ``LEASE_ITEMS_MAX``; they are in one slot."""
        call = _Call(self, guess_us)
        message: list[int | str] = [holder, terms.hold_us]
        keys: list[str | bytes] = []
        before: list[str | bytes] = []
        for counter, subject, ask in items:
            own = self.form(counter).code != TOKEN
            keys += _with_ledger(self.key(counter, subject), own=own)
            if self._moving:
                before += _with_ledger(self._key_before(counter, subject), own=own)
            settled = (ask.life or 1) if ask.settled else 0
            message += (call.place(counter, 1), settled, int(ask.retire) + 2 * ask.cautious)
            message += (ask.serial, ask.want, ask.share, len(ask.reports))
            for serial, spent, closed in ask.reports:
                message += (serial, spent, int(closed))
        call.message += message
        return Command(self.scripts.lease, keys + before, call.arguments())

    def leased(self, count: int, reply: bytes) -> Leasings:
        """What the reply to a ``lease`` of ``count`` counters says."""
        now_us = int.from_bytes(reply[:_NOW_BYTES], "little")
        if len(reply) == _NOW_BYTES:
            return Leasings(now_us, None, None)
        first = _NOW_BYTES + _LIFE_BYTES
        life = reply[_NOW_BYTES:first].decode("ascii")
        end = first + count * _leasing.size
        problem = self._problem(reply[end:])
        grants: list[LeaseGrant | StoreError] = []
        for flags, low, high, lasts_us, level, level_high, out, out_high, leases in _leasing.iter_unpack(
            reply[first:end]
        ):
            if flags & _UNREADABLE:
                assert problem is not None
                grants.append(problem)
                continue
            grants.append(
                LeaseGrant(
                    low + (high << 32),
                    lasts_us,
                    level + (level_high << 32),
                    out + (out_high << 32),
                    bool(flags & _WANTED),
                    bool(flags & _LOST),
                    now_us,
                    life,
                    leases,
                )
            )
        return Leasings(now_us, grants, problem)

    def parts(self, steps: Sequence[PartStep], guess_us: int = 0) -> Command:
        """The command of steps on the parts of counters, at most ``REGION_LOOKS_MAX``; they are in one slot."""
        call = _Call(self, guess_us)
        keys: list[str | bytes] = []
        for step in steps:
            key = self.key(step.counter, step.subject)
            keys += [key + suffix if isinstance(key, str) else key + suffix.encode() for suffix in PART_SUFFIXES]
            record = b"" if step.record is None else step.record
            call.message += (call.place(step.counter, 0), int(step.record is not None), step.expected, record)
            call.message += (step.life.encode(), step.left, step.admitted, step.refused)
        return Command(PARTS, keys, call.arguments_of_bytes())

    def parted(self, count: int, reply: bytes) -> Parted:
        """What the reply to ``parts`` of ``count`` steps says."""
        now_us = int.from_bytes(reply[:_NOW_BYTES], "little")
        if len(reply) == _NOW_BYTES:
            return Parted(now_us, None, None)
        at = _NOW_BYTES + _LIFE_BYTES
        life = reply[_NOW_BYTES:at].decode("ascii")
        found: list[PartView | None] = []
        for _ in range(count):
            flags, *low, admitted, refused, size = _parted.unpack_from(reply, at)
            at += _parted.size
            record = reply[at : at + size]
            at += size
            capacity, used, left, out = [small + (high << 32) for small, high in zip(low[::2], low[1::2], strict=True)]
            view = PartView(
                bool(flags & 1), bool(flags & 4), capacity, used, left, out, admitted, refused, record, now_us, life
            )
            found.append(None if flags & _PART_UNREADABLE else view)
        problem = self._problem(reply[at:])
        views: list[PartView | StoreError] = []
        for each in found:
            assert each is not None or problem is not None
            views.append(cast("StoreError", problem) if each is None else each)
        return Parted(now_us, views, problem)

    def _problem(self, text: bytes) -> StoreError | None:
        return fault_of(text.decode(errors="replace"), self._where) if text else None

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Command:
        """The command that deletes these counters; it replies with how many there were."""
        if self.scripts.forget is None:
            return Command(None, self._keys(keys), ())
        forms = [self.form(counter) for counter, _ in keys]
        now_us, _, _ = self.begin()
        message = row((now_us, *[int(form.packed) + 2 * int(form.old) for form in forms]))
        return Command(self.scripts.forget, self._keys(keys), (message,))

    def key(self, counter: Counter, subject: str) -> str | bytes:
        """The key of a counter, by the secret known now: of one that is a field of hashes, what their keys begin with and its field."""
        form, texts = self.form(counter), self._subjects.texts
        if form.packed and isinstance(texts, BucketSubjects):
            return _key_in(form, texts, subject)
        return f"{form.head}{texts[subject]}{form.tail}"

    def _key_before(self, counter: Counter, subject: str) -> str | bytes:
        """The same in the layout before."""
        form, texts = self.form(counter), self._subjects.before
        assert texts is not None
        if form.old and isinstance(texts, BucketSubjects):
            return _key_in(form, texts, subject)
        return f"{form.head}{texts[subject]}{form.tail}"

    def _keys(self, counters: Sequence[tuple[Counter, str]]) -> list[str | bytes]:
        """The keys of counters, and behind all of them those in the layout before, where there is one."""
        keys = [self.key(counter, subject) for counter, subject in counters]
        if self._moving:
            keys += [self._key_before(counter, subject) for counter, subject in counters]
        return keys

    def begin(self) -> list[int]:
        """The numbers every script's first argument begins with."""
        return [0 if self._time_source is None else self._time_source.now_us(), self._hold_ms, 0]

    def form(self, counter: Counter) -> CounterForm:
        """The form of a counter, known by identity: comparing counters would cost more than making forms anew."""
        form = self._forms.get(id(counter))
        if form is None or form.counter is not counter:
            if len(self._forms) >= REDIS_FORMS_MEMO_MAX:
                self._forms.clear()
            form = self._forms[id(counter)] = CounterForm(
                counter, self._hold_ms, self._subjects.layout, self._subjects.moving_from
            )
        return form

    def _answer(
        self, request: Request, reply: bytes, at: int, now_us: int, *, peek: bool
    ) -> tuple[StateAnswer | StoreError, int]:
        """The answer whose records begin at ``at``, and where they end; of standing counters with the numbers they have."""
        states: list[tuple[int, State | None]] = []
        notes: list[tuple[int, bool]] = []
        all_charged = unanimous = admitted = True
        own: list[Charge] | None = None
        for place, (counter, subject, cost) in enumerate(request):
            code = reply[at]
            at += 1
            if code == _FAULT:
                end = at + 1 + reply[at]
                return fault_of(reply[at + 1 : end].decode(errors="replace"), self._where), end
            state = None
            if code <= _PASSES and counter.standing:
                standing, state, at = self._standing.read(counter, reply, at)
                own = list(request) if own is None else own
                own[place] = standing, subject, cost
            elif code <= _PASSES:
                size, read = self.form(counter).record
                state = read(reply, at)
                at += size
            states.append((0, state))
            passes = code not in (_REFUSED, _REFUSED_NONE)
            notes.append((cost if code in _DESCRIBED_AT_COST else 0, passes))
            if code != _CHARGED:
                all_charged = False
                unanimous = unanimous and passes
                admitted = admitted and (passes or counter.shadow)
        request = request if own is None else own
        if all_charged:
            return StateAnswer(True, now_us, request, states), at
        return StateAnswer(admitted, now_us, request, states, notes, admitted and not peek, unanimous), at


def _key_in(form: CounterForm, texts: BucketSubjects, subject: str) -> bytes:
    """What the keys of a counter's hashes begin with, and its field."""
    tag, field = texts.places[subject]
    head, tail = form.frame
    return head + tag + tail + field


def _with_ledger(key: str | bytes, *, own: bool) -> list[str | bytes]:
    """A key, and that of its leases where they have one of their own."""
    if not own:
        return [key]
    return [key, key + LEDGER_SUFFIX if isinstance(key, str) else key + LEDGER_SUFFIX.encode()]


class _Call:
    """A script's arguments in the making: ``message`` holds what is not a form, ``frame`` belongs to the form placed last."""

    __slots__ = ("_forms", "_guess_us", "_packing", "_places", "frame", "long", "message")

    def __init__(self, packing: Packing, guess_us: int) -> None:
        self._packing = packing
        self._guess_us = guess_us
        self._forms: list[bytes] = []
        self._places: dict[tuple[int, int], int] = {}
        self.frame = ("", "")
        self.long = False
        self.message: list[Any] = packing.begin()

    def place(self, counter: Counter, cost: int) -> int:
        """Where the form of this charge stands among the arguments, as Lua counts."""
        form = self._packing.form(counter)
        self.frame = form.head, form.tail
        known = (id(counter), cost)
        place = self._places.get(known)
        if place is None:
            if form.calendar is not None:
                self.message[_CALENDAR] = 1
                self._guess_us = self._guess_us or self._packing.clock.now_us()
            self.long = self.long or form.long
            self._forms.append(form.charge(cost, self._guess_us))
            place = self._places[known] = len(self._forms) + 1
        return place

    def arguments(self) -> list[bytes]:
        """The message and the forms."""
        return [row(self.message), *self._forms]

    def arguments_of_bytes(self) -> list[bytes]:
        """The same of a message with texts of bytes."""
        return [row_of_bytes(self.message), *self._forms]
