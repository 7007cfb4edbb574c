"""Answers of a regional store: decided by parts of the counters that were asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from sluicegate.algorithms.verdict import Verdict
from sluicegate.errors import PartlyDecided, PartlyReached, StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Counter, Receipt, Request

__all__ = ["PartAnswer", "as_asked", "failed", "failed_batch"]


class PartAnswer(StateAnswer, frozen=True, gc=False):
    """The answer to ``request``, which was decided by ``parts``: the same charges with the region's numbers."""

    parts: Request = ()

    @property
    def decided(self) -> Request:
        """The request by whose numbers it was decided."""
        return self.parts

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order; ``remaining`` is what is left of the region's part."""
        return StateAnswer(self.admitted, self.now_us, self.parts, self.states, self.notes).verdicts()


def as_asked(request: Request, answer: Answer) -> Answer:
    """The store's answer as one to ``request``."""
    if type(answer) is not StateAnswer:
        return answer
    return PartAnswer(
        answer.admitted,
        answer.now_us,
        request,
        answer.states,
        answer.notes,
        answer.charged,
        answer.unanimous,
        answer.request,
    )


def failed(request: Request, parts: Request, error: StoreError) -> StoreError:
    """What the store could not do, told of the counters that were asked about."""
    if not isinstance(error, PartlyReached):
        return error
    asked = {part.prefix + subject: charge[0] for charge, (part, subject, _) in zip(request, parts, strict=True)}
    return _reached(asked, error)


def failed_batch(requests: Sequence[Request], parts: Sequence[Request], error: StoreError) -> StoreError:
    """``failed`` of a batch."""
    if not isinstance(error, PartlyDecided):
        return error
    answers: list[object] = []
    for request, part, answer in zip(requests, parts, error.answers, strict=True):
        if answer is None:
            answers.append(None)
        elif isinstance(answer, StoreError):
            answers.append(failed(request, part, answer))
        else:
            answers.append(as_asked(request, cast("Answer", answer)))
    return PartlyDecided(error.cause, answers)


def _reached(asked: Mapping[str, Counter], error: PartlyReached) -> PartlyReached:
    receipts = [
        receipt._replace(counter=asked[receipt.counter.prefix + receipt.subject])
        for receipt in cast("Sequence[Receipt]", error.receipts)
    ]
    return PartlyReached(error.cause, error.verdicts, receipts, error.now_us)
