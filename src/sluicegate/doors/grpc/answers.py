"""Decisions as RateLimitResponse messages.

What does not change with every answer of a counter (its limit, the names of the fields, its metadata) is encoded once. Times are whole
seconds, rounded up: Envoy tells clients the seconds of ``duration_until_reset`` and drops what is smaller, which would be too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sluicegate.algorithms.verdict import ALLOWED, Outcome, Verdict
from sluicegate.bounds import GRPC_ANSWERS_MAX, GRPC_TEXTS_MAX, POLICY_TEXTS_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.doors.grpc.codec import (
    OK,
    OVER_LIMIT,
    UINT32_MAX,
    UNIT_OF_SECONDS,
    encode_duration,
    encode_header,
    encode_limit,
    encode_struct,
)
from sluicegate.doors.grpc.protobuf import delimited, varint
from sluicegate.doors.headers import RateHeaders, seconds_up
from sluicegate.doors.refusals import Refusals
from sluicegate.limiter.decision import Decision, RuleResult, Summary
from sluicegate.limiter.sets import PlannedSets
from sluicegate.stores.base import Counter

__all__ = ["Answers", "Part"]

_RESPONSE_HEADER: Final = 3
_RAW_BODY: Final = 5
_METADATA: Final = 6

_OVERALL_OK: Final = b"\x08\x01"
_OVERALL_OVER: Final = b"\x08\x02"
_STATUS_OK: Final = b"\x08" + bytes((OK,))
_STATUS_OVER: Final = b"\x08" + bytes((OVER_LIMIT,))
_PLAIN_OK: Final = delimited(2, _STATUS_OK)
_PLAIN_OVER: Final = delimited(2, _STATUS_OVER)


class Part(NamedTuple):
    """One descriptor's share of a decision: its charges are at ``places`` of the decision's plan.

    ``verdicts``: what is said of these places. ``refused``: it is over its limit whatever they say.
    """

    counters: Sequence[Counter]
    verdicts: Sequence[Verdict]
    refused: bool


class _Fixed(NamedTuple):
    """What is always said of one rule with these numbers: two header fields, and metadata when it lets a request pass."""

    fields: bytes
    passed: bytes


class Answers:
    """Encodes answers. ``refusals`` knows what the rules want their refusals to look like."""

    def __init__(self, headers: RateHeaders, clock: Clock, refusals: Refusals) -> None:
        self._refusals = refusals
        self._headers = headers
        self._clock = clock
        # By identity: to hash a counter takes longer than to decide by it. The entry keeps its counter, so no id is used twice.
        self._limits: dict[int, tuple[Counter, bytes]] = {}
        self._usual: dict[tuple[int, int, int], tuple[Counter, bytes]] = {}
        self._fixed: dict[tuple[str, int, int, str], _Fixed] = {}
        self._remaining: dict[int, bytes] = {}
        self._reset: dict[int, bytes] = {}
        self._durations: dict[int, bytes] = {}
        self._refused: dict[tuple[str, int, int, int, int], bytes] = {}
        self._rules: object = None
        """Those whose refusals are kept ready: the same numbers under other rules may have another body."""

    def passed(self, decision: Decision, planned: PlannedSets) -> bytes | None:
        """``encode`` for the usual pass, straight from what the store said; None where there is more to it.

        It is usual that every rule passed, shadow ones included, nothing is to be waited for, and the dialect tells of one rule.
        """
        answer = decision.answer
        if answer is None or decision.degraded or not answer.unanimous or not self._headers.delta_only:
            return None
        charges = planned.plan.charges
        verdicts = answer.verdicts()
        nearest: Counter | None = None
        least = wait_us = 0
        for (counter, _, _), (_, remaining, _, reset_us, delay_us) in zip(charges, verdicts):  # noqa: B905 - as long by contract; strict costs time here
            if delay_us:
                return None
            if not counter[3] and (nearest is None or remaining < least):
                nearest, least, wait_us = counter, remaining, reset_us
        if nearest is None:
            return None
        sets = planned.places
        if len(sets) > 1 or len(sets[0]) != 1 or charges[sets[0][0]][0] is not nearest:
            return self._passed(planned, verdicts, nearest, least, wait_us)
        # One descriptor, by one rule, which is the one that is told of: of these there are few different answers.
        key = (id(nearest), least, -(-wait_us // US_PER_S))
        known = self._usual.get(key)
        if known is None:
            if len(self._usual) >= GRPC_ANSWERS_MAX:
                self._usual.clear()
            known = self._usual[key] = (nearest, self._passed(planned, verdicts, nearest, least, wait_us))
        return known[1]

    def _passed(
        self, planned: PlannedSets, verdicts: Sequence[Verdict], nearest: Counter, least: int, wait_us: int
    ) -> bytes:
        charges = planned.plan.charges
        out = [_OVERALL_OK]
        for places in planned.places:
            if len(places) == 1:
                place = places[0]
                counter = charges[place][0]
                _, remaining, _, reset_us, _ = verdicts[place]
                out.append(_PLAIN_OK if counter[3] else self._status_of(counter, remaining, reset_us, _STATUS_OK))
            else:
                out.append(self._status([(charges[place][0], verdicts[place]) for place in places]))
        name, spec = nearest[0], nearest[1]
        out.append(self._told_of((name, spec.capacity, spec.window_us, spec.algorithm), least, wait_us))
        return b"".join(out)

    def encode(self, decision: Decision, planned: PlannedSets) -> bytes:
        """The answer to a request whose descriptors are the sets of ``planned``, all of which ``decision`` decided."""
        summary = decision.summary
        verdicts = summary.verdicts
        charges = planned.plan.charges
        out = [_OVERALL_OK if decision.allowed else _OVERALL_OVER]
        for places, refused in zip(planned.places, planned.refused, strict=True):
            if refused:
                out.append(_PLAIN_OVER)
            elif len(places) == 1 and verdicts:
                place = places[0]
                out.append(self._status(((charges[place][0], verdicts[place]),)))
            elif verdicts:
                out.append(self._status([(charges[place][0], verdicts[place]) for place in places]))
            else:
                out.append(_PLAIN_OK)
        out.append(self._told(decision, summary))
        return b"".join(out)

    def encode_parts(self, parts: Sequence[Part], told: Decision | None, *, over: bool) -> bytes:
        """The answer to a request whose descriptors were decided in several steps; ``told`` is what the headers say."""
        out = [_OVERALL_OVER if over else _OVERALL_OK]
        for part in parts:
            pairs = list(zip(part.counters, part.verdicts, strict=True))
            out.append(_PLAIN_OVER if part.refused else self._status(pairs))
        if told is not None:
            out.append(self._told(told, told.summary))
        return b"".join(out)

    # ------------------------------------------------------------------ a descriptor

    def _status(self, pairs: Sequence[tuple[Counter, Verdict]]) -> bytes:
        """DescriptorStatus: the first enforced counter that refuses, else the one with the least remaining."""
        nearest: Counter | None = None
        least = 0
        wait_us = 0
        code = _STATUS_OK
        for counter, (outcome, remaining, retry_us, reset_us, _) in pairs:
            if counter[3]:
                continue
            if outcome is not ALLOWED:
                if outcome is Outcome.UNDECIDED and retry_us == 0:
                    continue
                nearest, least, wait_us, code = counter, remaining, reset_us, _STATUS_OVER
                break
            if nearest is None or remaining < least:
                nearest, least, wait_us = counter, remaining, reset_us
        if nearest is None:
            return _PLAIN_OK
        return self._status_of(nearest, least, wait_us, code)

    def _status_of(self, counter: Counter, least: int, wait_us: int, code: bytes) -> bytes:
        known = self._limits.get(id(counter))
        limit = self._limit(counter) if known is None else known[1]
        reset_s = seconds_up(wait_us)
        duration = self._durations.get(reset_s)
        if duration is None:
            duration = _kept(self._durations, reset_s, delimited(4, encode_duration(reset_s * US_PER_S)))
        if least:
            limit += b"\x18" + varint(min(UINT32_MAX, least))
        return delimited(2, code + limit + duration)

    def _limit(self, counter: Counter) -> bytes:
        """``current_limit`` where its units can express the counter's window; else nothing, for any unit would be a wrong one."""
        seconds, rest_us = divmod(counter.spec.window_us, US_PER_S)
        unit = None if rest_us else UNIT_OF_SECONDS.get(seconds)
        field = b"" if unit is None else delimited(2, encode_limit(counter.name, counter.spec.capacity, unit))
        if len(self._limits) >= POLICY_TEXTS_MAX:
            self._limits.clear()
        self._limits[id(counter)] = (counter, field)
        return field

    # ------------------------------------------------------------------ the whole

    def _told(self, decision: Decision, summary: Summary) -> bytes:
        """Header fields, metadata, and the body of a refusal."""
        result = summary.decisive
        if result is None and decision.allowed:
            return b""
        if not decision.allowed:
            return self._refusal(decision, summary, result)
        return self._told_at_length(decision, result)

    def _told_of(self, key: tuple[str, int, int, str], least: int, wait_us: int) -> bytes:
        """Header fields and metadata of the usual pass, decided by the rule with these numbers."""
        fixed = self._fixed.get(key) or self._fix(key)
        remaining = self._remaining.get(least)
        if remaining is None:
            text = encode_header(_RESPONSE_HEADER, "x-ratelimit-remaining", str(least))
            remaining = _kept(self._remaining, least, text)
        reset_s = seconds_up(wait_us)
        reset = self._reset.get(reset_s)
        if reset is None:
            reset = _kept(self._reset, reset_s, encode_header(_RESPONSE_HEADER, "x-ratelimit-reset", str(reset_s)))
        return fixed.fields + remaining + reset + fixed.passed

    def _refusal(self, decision: Decision, summary: Summary, result: RuleResult | None) -> bytes:
        """What is told of a refusal. Where one rule alone refused, it depends on few numbers, which come again and again."""
        later = self._refusals.told(decision)
        if later is not decision or result is None or decision.degraded or self._others_speak(decision, summary):
            return self._told_at_length(later, result)
        retry_us = summary.retry_after_us
        wait_s = -1 if retry_us is None else seconds_up(retry_us)
        rules = self._refusals.rules
        if rules is not self._rules:
            self._rules = rules
            self._refused.clear()
        key = (result.rule, result.limit, result.window_us, result.remaining, wait_s)
        told = self._refused.get(key)
        if told is None:
            if len(self._refused) >= GRPC_TEXTS_MAX:
                self._refused.clear()
            told = self._refused[key] = self._told_at_length(decision, result)
        return told

    def _others_speak(self, decision: Decision, summary: Summary) -> bool:
        """Whether more than one rule has something to say: one that refuses too, in shadow or not, or a dialect that lists them all."""
        if not self._headers.delta_only or decision.plan.unidentified:
            return True
        refusing = 0
        for verdict in summary.verdicts:
            if verdict[0] is not ALLOWED:
                refusing += 1
        return refusing != 1

    def _told_at_length(self, decision: Decision, result: RuleResult | None) -> bytes:
        now_us = self._clock.now_us() if self._headers.needs_now else 0
        pairs = self._headers.items(decision, now_us)
        out = [encode_header(_RESPONSE_HEADER, name.lower(), value) for name, value in pairs]
        if not decision.allowed:
            _, content_type, body = self._refusals.reply(decision)
            out.append(encode_header(_RESPONSE_HEADER, "content-type", content_type))
            out.append(delimited(_RAW_BODY, body))
        out.append(_metadata(decision, result))
        return b"".join(out)

    def _fix(self, key: tuple[str, int, int, str]) -> _Fixed:
        policy = self._headers.policy(*key)
        lines = (f"{policy.x_start}0\r\n{policy.x_end}").split("\r\n")
        pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines if line)]
        fields = [encode_header(_RESPONSE_HEADER, *pair) for pair in pairs if pair[0] != "x-ratelimit-remaining"]
        metadata = encode_struct((("rule", key[0]), ("outcome", ALLOWED.value)))
        if len(self._fixed) >= POLICY_TEXTS_MAX:
            self._fixed.clear()
        found = self._fixed[key] = _Fixed(b"".join(fields), delimited(_METADATA, metadata))
        return found


def _kept(table: dict[int, bytes], number: int, text: bytes) -> bytes:
    if len(table) >= GRPC_TEXTS_MAX:
        table.clear()
    table[number] = text
    return text


def _metadata(decision: Decision, result: RuleResult | None) -> bytes:
    """``dynamic_metadata``: what an access log wants to know."""
    members: list[tuple[str, str | bool | Sequence[str]]] = []
    if result is not None:
        members.append(("rule", result.rule))
    members.append(("outcome", decision.outcome.value))
    if decision.degraded:
        members.append(("degraded", True))
    shadows = [
        each.rule for each in decision.results if each.shadow and each.outcome in (Outcome.DENIED, Outcome.NEVER_FITS)
    ]
    if shadows:
        members.append(("shadow_refused", shadows))
    return delimited(_METADATA, encode_struct(members))
