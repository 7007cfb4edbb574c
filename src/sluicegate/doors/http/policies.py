"""Inline policies: the JSON form of one quota, and the counter it stands for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import CAPACITY_MAX, INLINE_POLICIES_MEMO_MAX, INLINE_POLICY_MEMO_BYTES_MAX
from sluicegate.doors.headers import Policy, RateHeaders
from sluicegate.doors.http.bad_json import decode
from sluicegate.doors.http.memo import Memo
from sluicegate.errors import InvalidRequest
from sluicegate.rules.quota import BUCKETS, QuotaError, parse_quota
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix

__all__ = ["INLINE_RULE", "POLICY_FIELDS", "InlinePolicies", "InlinePolicy"]

INLINE_RULE: Final = "inline"
"""The name of an inline policy where a rule's name is due (headers, results, events)."""

_KEY_RULE: Final = "#inline"
"""Its name in keys, which no rule of a rule set can have: an inline check never shares a counter with a rule."""

_NUMBERS: Final = ("capacity", "refill_per_sec", "limit", "window_s")
_OPTIONS: Final = ("strict", "max_delay_ms", "nodelay")
POLICY_FIELDS: Final = ("algorithm", *_NUMBERS, *_OPTIONS)

_NUMBER_START: Final = b"-0123456789"

_SPEC_FAULT: Final = re.compile(r"\b(limit|max_delay_us): (.+)\Z", re.DOTALL)
"""A spec that refused one of its numbers names it in its own units."""


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    """``refill_per_sec`` and ``window_s`` stay text here, so that 0.1 is a tenth."""

    algorithm: str
    capacity: int | msgspec.UnsetType = msgspec.UNSET
    refill_per_sec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    limit: int | msgspec.UnsetType = msgspec.UNSET
    window_s: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    strict: bool | int | msgspec.UnsetType = msgspec.UNSET
    max_delay_ms: int | msgspec.UnsetType = msgspec.UNSET
    nodelay: bool | msgspec.UnsetType = msgspec.UNSET


class InlinePolicy:
    """One policy, ready for use. ``texts`` are its header texts; ``holds``: answers carry ``delay_ms``.

    ``middle``: what stands between two numbers of an answer.
    """

    __slots__ = ("counter", "holds", "middle", "texts")

    def __init__(self, counter: Counter, texts: Policy) -> None:
        self.counter = counter
        self.texts = texts
        self.middle = f',"limit":{texts.limit},"reset_ms":'
        self.holds = counter.spec.algorithm == "leaky_bucket"


class InlinePolicies:
    """From a policy's JSON text to the policy: a pure function, remembered for texts seen lately."""

    def __init__(self, headers: RateHeaders, namespace: str) -> None:
        self._headers = headers
        self._namespace = namespace
        self._decode = msgspec.json.Decoder(_Json).decode
        # One object per spec, however it was written, so that policies can be compared by identity.
        self._by_spec: dict[Spec, InlinePolicy] = {}
        self._memo: Memo[InlinePolicy] = Memo(INLINE_POLICIES_MEMO_MAX, INLINE_POLICY_MEMO_BYTES_MAX)

    def get(self, raw: bytes) -> InlinePolicy:
        """Raises InvalidRequest whose field begins with ``policy``."""
        found = self._memo.recall(raw)
        if found is None:
            found = self._read(raw)
            self._memo.remember(raw, found)
        return found

    def _read(self, raw: bytes) -> InlinePolicy:
        try:
            policy = decode(self._decode, raw, {name: name for name in POLICY_FIELDS})
            numbers = {name: _number(name, value) for name, value in _given(policy, _NUMBERS).items()}
        except InvalidRequest as error:
            raise InvalidRequest(f"policy.{error.field}" if error.field else "policy", error.message) from None
        try:
            spec = parse_quota(numbers, algorithm=policy.algorithm, **_given(policy, _OPTIONS)).specs[0]
        except QuotaError as error:
            field, message = _field_and_message(error, policy)
            raise InvalidRequest(f"policy.{field}", message) from None
        if spec in self._by_spec:
            return self._by_spec[spec]
        if len(self._by_spec) >= INLINE_POLICIES_MEMO_MAX:
            self._by_spec.clear()
        prefix = counter_prefix(self._namespace, _KEY_RULE, spec.algorithm, spec.shape)
        texts = self._headers.policy(INLINE_RULE, spec.capacity, spec.window_us, spec.algorithm)
        found = self._by_spec[spec] = InlinePolicy(Counter(INLINE_RULE, spec, prefix), texts)
        return found


def _given(policy: _Json, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(policy, name)) is not msgspec.UNSET}


def _field_and_message(error: QuotaError, policy: _Json) -> tuple[str, str]:
    if error.field is not None:
        return error.field, error.message + (f"; did you mean {error.suggestion!r}?" if error.suggestion else "")
    match = _SPEC_FAULT.search(error.message)
    if match is not None:
        return {"limit": "limit", "max_delay_us": "max_delay_ms"}[match[1]], f"out of range: {match[1]} {match[2]}"
    # Each number is in order by itself; together they are out of range, for which the count is rarely to blame.
    size, rate = ("capacity", "refill_per_sec") if policy.algorithm in BUCKETS else ("limit", "window_s")
    count = getattr(policy, size)
    return size if isinstance(count, int) and count > CAPACITY_MAX else rate, f"out of range: {error.message}"


def _number(name: str, value: int | msgspec.Raw) -> int | Decimal:
    if isinstance(value, int):
        return value
    text = bytes(value)
    if text[:1] in _NUMBER_START:
        with contextlib.suppress(InvalidOperation):
            return Decimal(text.decode("ascii"))
    raise InvalidRequest(name, "must be a number")
