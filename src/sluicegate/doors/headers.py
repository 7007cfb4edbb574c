"""Rate headers: one decision said in the words clients know.

Every number comes from the decision itself, so headers and answer cannot disagree. Times are rounded up to
whole seconds (a client that waits as told is never early), counts are what the counter holds.

===================  ==========================================================================================
dialect              fields
===================  ==========================================================================================
``x-ratelimit``      X-RateLimit-Limit, -Remaining, -Reset (seconds from now), -Policy
``x-ratelimit-epoch``  the same, with -Reset in seconds since the Unix epoch
``ietf``             RateLimit and RateLimit-Policy as draft-ietf-httpapi-ratelimit-headers-11 writes them
``ietf-legacy``      RateLimit-Limit, -Remaining, -Reset (seconds from now) and RateLimit-Policy, as drafts 03 to 06
``off``              none of these; Retry-After is still sent
===================  ==========================================================================================

They describe the rule of the decision: the first that refused, else the one nearest exhaustion. ``Retry-After`` is sent
on a refusal only, at least 1. On a refusal Reset equals Retry-After; on a pass it is the time until the counter is
full (bucket) or its window ends. A cost above the capacity never passes, so it gets neither Retry-After nor Reset:
any number would be a promise that waiting helps. Where no rule matched there is nothing to say and no field is sent.

``ietf`` lists every enforced rule in RateLimit-Policy. In RateLimit it lists, on a pass, all of them, each with a ``t`` long
enough that r/t is never above the quota's own rate (a full bucket: t = w), because the draft lets clients use
that ratio as a rate; on a refusal only the refusing rules, with r=0 and t = their own wait, so that Retry-After never
points into an effective window. ``ietf-legacy`` has no place for a rule's name; its policy list has the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sluicegate.algorithms.verdict import Outcome
from sluicegate.bounds import HEADER_INTEGER_MAX, POLICY_TEXTS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.decision import Decision, RuleResult

__all__ = ["DIALECTS", "Policy", "RateHeaders", "seconds_up"]

DIALECTS: Final = ("x-ratelimit", "x-ratelimit-epoch", "ietf", "ietf-legacy", "off")

_X_NAMES: Final = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Policy")
_FIELDS: Final = {
    "x-ratelimit": _X_NAMES,
    "x-ratelimit-epoch": _X_NAMES,
    "ietf": ("RateLimit", "RateLimit-Policy"),
    "ietf-legacy": ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy"),
    "off": (),
}
_SAFE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~#/:+@*")


def seconds_up(time_us: int) -> int:
    """Whole seconds, rounded up."""
    return -(-time_us // US_PER_S)


class Policy(NamedTuple):
    """The unchanging part of one rule's headers, written once."""

    limit: int
    window_us: int
    x_start: str
    """``X-RateLimit-Limit`` and the name of the next field."""
    x_end: str
    """The line ``X-RateLimit-Policy``."""
    ietf_name: str
    ietf_policy: str
    legacy_policy: str


class RateHeaders:
    """Writes the fields of the chosen dialects.

    ``dialects``: names joined by commas, or a sequence of names. Two that write the same field cannot be combined, and
    ``off`` stands alone; raises ConfigurationError. ``names``: the lower-case fields this writes, which a gateway removes from
    the answers of its upstream (Retry-After is not among them: an upstream's own is its own). ``exposed``: the value for
    Access-Control-Expose-Headers.
    """

    __slots__ = ("_fields", "_memo", "_writers", "delta_only", "dialects", "exposed", "names", "needs_now")

    def __init__(self, dialects: str | Iterable[str] = "x-ratelimit") -> None:
        self.dialects = _parse_dialects(dialects)
        self._fields = tuple(name for dialect in self.dialects for name in _FIELDS[dialect])
        self.names = frozenset(name.lower().encode() for name in self._fields)
        self.exposed = ", ".join((*self._fields, "Retry-After"))
        self.needs_now = "x-ratelimit-epoch" in self.dialects
        """Whether ``now_us`` is looked at; where False, any value will do."""
        self.delta_only = self.dialects == ("x-ratelimit",)
        """Whether ``delta_lines`` says all that ``block`` does."""
        self._writers: tuple[Callable[[RateHeaders, Decision, RuleResult, int], str], ...] = tuple(
            _WRITERS[dialect] for dialect in self.dialects if dialect != "off"
        )
        self._memo: dict[tuple[str, int, int, str], Policy] = {}

    def block(self, decision: Decision, now_us: int) -> bytes:
        """The header lines, each closed by CRLF, Retry-After included; empty where there is nothing to say.

        ``now_us``: wall time of the decision, used by ``x-ratelimit-epoch`` only.
        """
        result = decision.decisive
        lines = ""
        if result is not None:
            if self.delta_only:
                policy = self.policy(result.rule, result.limit, result.window_us, result.algorithm)
                lines = _x_lines(policy, result.remaining, _delta_s(decision))
            else:
                lines = "".join([write(self, decision, result, now_us) for write in self._writers])
        if not decision.allowed:
            lines += _retry_line(decision)
        return lines.encode("ascii")

    def delta_lines(self, policy: Policy, remaining: int, wait_us: int | None, *, refused: bool) -> str:
        """The block of one counter's answer in the dialect ``x-ratelimit``.

        ``wait_us``: until the counter is full, or on a refusal until the request would pass; None for never.
        """
        if wait_us is None:
            return _x_lines(policy, remaining, None)
        if refused:
            wait_s = max(1, seconds_up(wait_us))
            return f"{_x_lines(policy, remaining, wait_s)}Retry-After: {wait_s}\r\n"
        return _x_lines(policy, remaining, seconds_up(wait_us))

    def items(self, decision: Decision, now_us: int) -> list[tuple[str, str]]:
        """The same fields as (name, value) pairs."""
        lines = self.block(decision, now_us).decode("ascii").split("\r\n")
        return [(name, value) for name, _, value in (line.partition(": ") for line in lines if line)]

    def policy(self, rule: str, limit: int, window_us: int, algorithm: str) -> Policy:
        """The prepared texts of one rule with these numbers; remembered, in a bounded memo."""
        key = (rule, limit, window_us, algorithm)
        found = self._memo.get(key)
        if found is None:
            if len(self._memo) >= POLICY_TEXTS_MAX:
                self._memo.clear()
            found = self._memo[key] = _prepare(rule, limit, window_us, algorithm)
        return found


def _parse_dialects(dialects: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(dialects, Iterable):
        raise ConfigurationError(f"headers: want names of dialects, got {dialects!r:.64}")
    names = tuple(n.strip() for n in dialects.split(",")) if isinstance(dialects, str) else tuple(dialects)
    for name in names:
        if name not in _FIELDS:
            raise ConfigurationError(f"headers: unknown dialect {name!r}; known are {', '.join(DIALECTS)}")
    if "off" in names and len(names) > 1:
        raise ConfigurationError(f"headers: 'off' cannot be combined with others, got {','.join(names)!r}")
    fields = [field for name in names for field in _FIELDS[name]]
    twice = sorted({field for field in fields if fields.count(field) > 1})
    if twice or not names:
        raise ConfigurationError(f"headers: {','.join(names)!r} would write {', '.join(twice) or 'nothing'} twice")
    return names


def _prepare(rule: str, limit: int, window_us: int, algorithm: str) -> Policy:
    # Rule names are checked when rules are loaded; a name from elsewhere must not be able to break a header line either.
    name = "".join(c if c in _SAFE else "_" for c in rule)
    quota = min(limit, HEADER_INTEGER_MAX)
    window_s = max(1, seconds_up(window_us))
    return Policy(
        limit=limit,
        window_us=window_us,
        x_start=f"X-RateLimit-Limit: {limit}\r\nX-RateLimit-Remaining: ",
        x_end=f"X-RateLimit-Policy: {name};q={limit};w={window_s};alg={algorithm}\r\n",
        ietf_name=f'"{name}"',
        ietf_policy=f'"{name}";q={quota};w={window_s}',
        legacy_policy=f"{quota};w={window_s}",
    )


def _retry_line(decision: Decision) -> str:
    retry_us = decision.retry_after_us
    if retry_us is None:
        # Never fits; but an outage passes, and its clients are to come back.
        return "Retry-After: 1\r\n" if decision.refusal == "store" else ""
    return f"Retry-After: {max(1, seconds_up(retry_us))}\r\n"


def _reset_us(decision: Decision) -> int | None:
    """The time that Reset tells, from now; None where the request can never pass."""
    return decision.reset_after_us if decision.allowed else decision.retry_after_us


def _delta_s(decision: Decision) -> int | None:
    reset_us = _reset_us(decision)
    if reset_us is None:
        return None
    return seconds_up(reset_us) if decision.allowed else max(1, seconds_up(reset_us))


def _x_lines(policy: Policy, remaining: int, reset_s: int | None) -> str:
    if reset_s is None:
        return f"{policy.x_start}{remaining}\r\n{policy.x_end}"
    return f"{policy.x_start}{remaining}\r\nX-RateLimit-Reset: {reset_s}\r\n{policy.x_end}"


def _write_x_delta(headers: RateHeaders, decision: Decision, result: RuleResult, now_us: int) -> str:  # noqa: ARG001
    policy = headers.policy(result.rule, result.limit, result.window_us, result.algorithm)
    return _x_lines(policy, result.remaining, _delta_s(decision))


def _write_x_epoch(headers: RateHeaders, decision: Decision, result: RuleResult, now_us: int) -> str:
    policy = headers.policy(result.rule, result.limit, result.window_us, result.algorithm)
    reset_us = _reset_us(decision)
    return _x_lines(policy, result.remaining, None if reset_us is None else seconds_up(now_us + reset_us))


def _write_ietf(headers: RateHeaders, decision: Decision, result: RuleResult, now_us: int) -> str:  # noqa: ARG001
    policies: list[str] = []
    limits: list[str] = []
    for each in decision.results:
        if each.shadow:
            continue
        policy = headers.policy(each.rule, each.limit, each.window_us, each.algorithm)
        policies.append(policy.ietf_policy)
        text = _ietf_limit(policy, each, refused=not decision.allowed)
        if text:
            limits.append(text)
    first = f"RateLimit: {', '.join(limits)}\r\n" if limits else ""
    return f"{first}RateLimit-Policy: {', '.join(policies)}\r\n"


def _ietf_limit(policy: Policy, each: RuleResult, *, refused: bool) -> str:
    if each.outcome is Outcome.DENIED:
        wait_s = max(1, seconds_up(each.retry_after_us or 0))
        return f"{policy.ietf_name};r=0;t={wait_s}"
    if each.outcome is Outcome.NEVER_FITS:
        return f"{policy.ietf_name};r=0"
    if refused or not each.limit or each.outcome is Outcome.UNDECIDED:
        return ""
    remaining = min(each.remaining, HEADER_INTEGER_MAX)
    fair_us = -(-remaining * each.window_us // each.limit)
    return f"{policy.ietf_name};r={remaining};t={max(1, seconds_up(max(fair_us, each.reset_after_us)))}"


def _write_legacy(headers: RateHeaders, decision: Decision, result: RuleResult, now_us: int) -> str:  # noqa: ARG001
    policies = ", ".join(
        headers.policy(each.rule, each.limit, each.window_us, each.algorithm).legacy_policy
        for each in decision.results
        if not each.shadow
    )
    reset_s = _delta_s(decision)
    reset = "" if reset_s is None else f"RateLimit-Reset: {reset_s}\r\n"
    counts = f"RateLimit-Limit: {result.limit}\r\nRateLimit-Remaining: {result.remaining}\r\n"
    return f"{counts}{reset}RateLimit-Policy: {policies}\r\n"


_WRITERS: Final[dict[str, Callable[[RateHeaders, Decision, RuleResult, int], str]]] = {
    "x-ratelimit": _write_x_delta,
    "x-ratelimit-epoch": _write_x_epoch,
    "ietf": _write_ietf,
    "ietf-legacy": _write_legacy,
}
