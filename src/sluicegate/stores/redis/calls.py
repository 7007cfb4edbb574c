"""What is asked of a Redis and what its answers mean, without any input or output.

Each operation is a generator that yields commands, gets the replies and returns the result. The synchronous and the asynchronous
store send what it yields, each in its own way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from sluicegate.algorithms.spec import State
from sluicegate.bounds import REDIS_BATCH_MAX, REDIS_FORMS_MEMO_MAX
from sluicegate.clock import Clock
from sluicegate.errors import PartlyDecided, StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request, Single
from sluicegate.stores.redis.definitions import CounterForm
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.scripts import DECIDE, REFUND, Script
from sluicegate.stores.redis.secret import Subjects

__all__ = ["Calls", "Command", "Steps"]

R = TypeVar("R")


class Command(NamedTuple):
    """One command: a script with its keys and argument, or (``script`` None) the deletion of ``keys``."""

    script: Script | None
    keys: Sequence[str]
    argument: bytes

    def parts(self) -> tuple[bytes | str | int, ...]:
        """The command as it is sent; a script by its digest."""
        if self.script is None:
            return (b"UNLINK", *self.keys)
        return (b"EVALSHA", self.script.digest, len(self.keys), *self.keys, self.argument)

    def parts_in_full(self) -> tuple[bytes | str | int, ...]:
        """The command with the script's text, for a server that does not know the digest."""
        assert self.script is not None
        return (b"EVAL", self.script.text, len(self.keys), *self.keys, self.argument)


Steps = Generator[Command, Any, R]
"""An operation under way: yields commands, takes their replies (bytes, int), returns its result."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_RETRIES = 2


class Calls:
    """The operations of a store at ``where``. Safe from any thread.

    ``clock`` guesses which calendar windows the server is in; a wrong guess costs a second call, never a wrong decision.
    ``time_source``: for tests only, dates the counters instead of the server; keys then live an hour longer.
    """

    __slots__ = ("_clock", "_forms", "_hold_ms", "_subjects", "_time_source", "_where")

    def __init__(self, subjects: Subjects, clock: Clock, where: str, time_source: Clock | None = None) -> None:
        self._subjects = subjects
        self._clock = clock
        self._where = where
        self._time_source = time_source
        self._hold_ms = 0 if time_source is None else 3_600_000
        self._forms: dict[int, CounterForm] = {}

    def decide(self, requests: Sequence[Request], *, peek: bool) -> Steps[list[Answer]]:
        """See ``Store.decide``; raises PartlyDecided where some requests have no answer."""
        answers: list[Answer | None] = []
        fault: StoreError | None = None
        for first in range(0, len(requests), REDIS_BATCH_MAX):
            batch = requests[first : first + REDIS_BATCH_MAX]
            try:
                now_us, replies = yield from self._decide_batch(batch, peek=peek)
            except StoreError as error:
                if not answers:
                    raise
                fault = error
                answers += [None] * (len(requests) - len(answers))
                break
            for request, reply in zip(batch, replies, strict=True):
                if isinstance(reply, str):
                    fault = fault_of(reply, self._where)
                    answers.append(None)
                else:
                    answers.append(self._answer(request, reply, now_us, peek=peek))
        if fault is not None:
            raise PartlyDecided(fault, answers)
        return [answer for answer in answers if answer is not None]

    def decide_one(self, request: Request, *, peek: bool) -> Steps[Answer]:
        """See ``Store.decide_one``."""
        now_us, (reply,) = yield from self._decide_batch((request,), peek=peek)
        if isinstance(reply, str):
            raise fault_of(reply, self._where)
        return self._answer(request, reply, now_us, peek=peek)

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool) -> Steps[tuple[int, list[Single]]]:
        """See ``Store.decide_singles``; the time is that of the first call where a batch takes several."""
        answers = yield from self.decide([(charge,) for charge in charges], peek=peek)
        now_us = answers[0].now_us if answers else self._clock.now_us()
        return now_us, [_single_of(answer) for answer in answers]

    def refund(self, receipts: Sequence[Receipt]) -> Steps[int]:
        """See ``Store.refund``. A key that cannot be read raises StoreError after the others are done."""
        changed = 0
        problem = ""
        for first in range(0, len(receipts), REDIS_BATCH_MAX):
            batch = receipts[first : first + REDIS_BATCH_MAX]
            guess_us = self._clock.now_us()
            for _ in range(_RETRIES):
                slots: dict[int, int] = {}
                definitions: list[object] = []
                packed = []
                keys = []
                for receipt in batch:
                    form = self._form(receipt.counter)
                    slot = self._slot(form, slots, definitions, guess_us)
                    packed.append((slot, receipt.cost, *form.cost(receipt.cost), receipt.charged_us))
                    keys.append(self._key(form, receipt.subject))
                message = (self._now_us(), self._hold_ms, definitions, packed)
                reply = _decode((yield Command(REFUND, keys, _encode(message))))
                if len(reply) > 1:
                    break
                guess_us = reply[0]
            else:
                raise StoreError("Redis' time runs away from its calendar windows")
            changed += reply[1]
            problem = problem or reply[2]
        if problem:
            raise fault_of(problem, self._where)
        return changed

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Steps[int]:
        """See ``Store.reset``. Counters that have recovered and are not yet collected count as existing."""
        existed = 0
        for first in range(0, len(keys), REDIS_BATCH_MAX):
            batch = keys[first : first + REDIS_BATCH_MAX]
            existed += yield Command(None, [self._key(self._form(counter), subject) for counter, subject in batch], b"")
        return existed

    def key(self, counter: Counter, subject: str) -> str:
        """The key of a counter, by the secret known now."""
        return self._key(self._form(counter), subject)

    def _decide_batch(self, requests: Sequence[Request], *, peek: bool) -> Steps[tuple[int, list[Any]]]:
        guess_us = 0
        for _ in range(_RETRIES):
            keys, argument = self._packed(requests, guess_us, peek=peek)
            reply = _decode((yield Command(DECIDE, keys, argument)))
            if len(reply) > 1:
                return reply[0], reply[1]
            guess_us = reply[0]
        raise StoreError("Redis' time runs away from its calendar windows")

    def _packed(self, requests: Sequence[Request], guess_us: int, *, peek: bool) -> tuple[list[str], bytes]:
        slots: dict[int, int] = {}
        definitions: list[object] = []
        keys: list[str] = []
        packed: list[list[int]] = []
        texts, forms = self._subjects.texts, self._forms
        for request in requests:
            flat: list[int] = []
            for counter, subject, cost in request:
                form = forms.get(id(counter))
                if form is None or form.counter is not counter:
                    form = self._form(counter)
                slot = slots.get(id(counter)) or self._slot(form, slots, definitions, guess_us)
                flat += (slot, cost, *form.cost(cost))
                keys.append(form.head + texts[subject] + form.tail)
            packed.append(flat)
        return keys, _encode((self._now_us(), self._hold_ms, int(peek), definitions, packed))

    def _now_us(self) -> int:
        return 0 if self._time_source is None else self._time_source.now_us()

    def _form(self, counter: Counter) -> CounterForm:
        """The form of a counter, known by identity: comparing counters would cost more than making forms anew."""
        form = self._forms.get(id(counter))
        if form is None or form.counter is not counter:
            if len(self._forms) >= REDIS_FORMS_MEMO_MAX:
                self._forms.clear()
            form = self._forms[id(counter)] = CounterForm(counter, self._hold_ms)
        return form

    def _slot(self, form: CounterForm, slots: dict[int, int], definitions: list[object], guess_us: int) -> int:
        slot = slots.get(id(form.counter))
        if slot is None:
            definitions.append(form.definition(guess_us or self._clock.now_us()))
            slot = slots[id(form.counter)] = len(definitions)
        return slot

    def _key(self, form: CounterForm, subject: str) -> str:
        return form.head + self._subjects.texts[subject] + form.tail

    def _answer(self, request: Request, reply: list[Any], now_us: int, *, peek: bool) -> StateAnswer:
        states: list[tuple[int, State | None]] = []
        notes: list[tuple[int, bool]] = []
        all_charged = unanimous = True
        for position, (counter, _, cost) in enumerate(request, 1):
            shown = reply[position]
            code = shown[0]
            states.append((0, self._form(counter).state(shown)))
            notes.append((0 if code == _PASSES else cost, code != _REFUSED))
            if code != _CHARGED:
                all_charged = False
                unanimous = unanimous and code == _PASSES
        admitted = reply[0] == 1
        if all_charged:
            return StateAnswer(True, now_us, request, states)
        return StateAnswer(admitted, now_us, request, states, notes, admitted and not peek, unanimous)


_REFUSED, _CHARGED, _PASSES = range(3)


def _single_of(answer: Answer) -> Single:
    """An answer to a request of one charge, in the lean form."""
    assert isinstance(answer, StateAnswer)
    return answer.admitted, answer.states[0][1]
