"""From requests to a command for the scripts, and from its reply to answers. No input or output.

One ``Packing`` serves all connections of a store, synchronous and asynchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from sluicegate.algorithms.spec import State
from sluicegate.bounds import REDIS_FORMS_MEMO_MAX
from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Counter, Receipt, Request
from sluicegate.stores.redis.definitions import CounterForm
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.scripts import DECIDE, REFUND, Script
from sluicegate.stores.redis.secret import Subjects

__all__ = ["Command", "Decided", "Packing", "Refunded"]


class Command(NamedTuple):
    """One command: a script with its keys and argument, or (``script`` None) the deletion of ``keys``.

    The first key says where it belongs; all keys of a command have one hash slot.
    """

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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_REFUSED, _CHARGED, _PASSES = range(3)


class Packing:
    """Makes commands and reads replies for a store at ``where``. Safe from any thread.

    ``clock`` guesses which calendar windows the server is in; a wrong guess costs a second call, never a wrong decision.
    ``time_source``: for tests only, dates the counters instead of the server; keys then live an hour longer.
    """

    __slots__ = ("_forms", "_hold_ms", "_subjects", "_time_source", "_where", "clock")

    def __init__(self, subjects: Subjects, clock: Clock, where: str, time_source: Clock | None = None) -> None:
        self._subjects = subjects
        self.clock = clock
        self._where = where
        self._time_source = time_source
        self._hold_ms = 0 if time_source is None else 3_600_000
        self._forms: dict[int, CounterForm] = {}

    def decide(self, requests: Sequence[Request], guess_us: int = 0, *, peek: bool = False) -> Command:
        """The command that decides these requests, at most ``REDIS_BATCH_MAX``. ``guess_us``: about the server's time; 0: ours."""
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
        argument = _encode((self._now_us(), self._hold_ms, int(peek), definitions, packed))
        return Command(DECIDE, keys, argument)

    def decided(self, requests: Sequence[Request], reply: bytes, *, peek: bool = False) -> Decided:
        """What the reply to ``decide`` says."""
        found = _decode(reply)
        now_us = found[0]
        if len(found) == 1:
            return Decided(now_us, None)
        where = self._where
        return Decided(
            now_us,
            [
                fault_of(shown, where) if isinstance(shown, str) else self._answer(request, shown, now_us, peek=peek)
                for request, shown in zip(requests, found[1], strict=True)
            ],
        )

    def refund(self, receipts: Sequence[Receipt], guess_us: int = 0) -> Command:
        """The command that gives these charges back, at most ``REDIS_BATCH_MAX``."""
        slots: dict[int, int] = {}
        definitions: list[object] = []
        packed = []
        keys = []
        for receipt in receipts:
            form = self._form(receipt.counter)
            slot = self._slot(form, slots, definitions, guess_us)
            packed.append((slot, receipt.cost, *form.cost(receipt.cost), receipt.charged_us))
            keys.append(self.key(receipt.counter, receipt.subject))
        return Command(REFUND, keys, _encode((self._now_us(), self._hold_ms, definitions, packed)))

    def refunded(self, reply: bytes) -> Refunded:
        """What the reply to ``refund`` says."""
        found = _decode(reply)
        if len(found) == 1:
            return Refunded(found[0], None, None)
        return Refunded(found[0], found[1], fault_of(found[2], self._where) if found[2] else None)

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Command:
        """The command that deletes these counters; it replies with how many there were."""
        return Command(None, [self.key(counter, subject) for counter, subject in keys], b"")

    def key(self, counter: Counter, subject: str) -> str:
        """The key of a counter, by the secret known now."""
        form = self._form(counter)
        return form.head + self._subjects.texts[subject] + form.tail

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
            definitions.append(form.definition(guess_us or self.clock.now_us()))
            slot = slots[id(form.counter)] = len(definitions)
        return slot

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
