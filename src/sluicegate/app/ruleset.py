"""The rule set as a gateway in another language uses it: ``GET /v1/ruleset``.

The document holds all that decides requests on the counters in Redis without this process, and nothing secret: the rules in order
of evaluation, the key of every counter but for its subject, the script with its digest, and for each counter the bytes that tell the
script its numbers. So the reader makes no number itself; it matches, builds subjects, sends, and describes what comes back.

What a reader of this format cannot do stands in the rule as ``ask``: a request that may match such a rule is to be decided by this
server. ``format`` changes where a reader of the old one would decide wrongly; members may be added without that.
``docs/nginx.md`` describes every member.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import msgspec

from sluicegate.algorithms import Ban, FixedWindow, Precision, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.bounds import CLOCK_BEHIND_US_MAX, HEADER_INTEGER_MAX, PATH_CHARS_MAX, SUBJECT_CHARS_MAX
from sluicegate.doors.headers import RateHeaders
from sluicegate.limiter.compiled import CompiledRule
from sluicegate.limiter.engine import Engine
from sluicegate.rules.conditions import METHODS
from sluicegate.rules.identity.config import ClaimSource, HeaderSource, IdentityConfig, Source
from sluicegate.rules.identity.wanted import headers_needed
from sluicegate.rules.model import CostFrom, Match
from sluicegate.rules.paths import Glob, PathPattern, Segment, Wild, parse_pattern
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import TAG_DIMENSIONS
from sluicegate.stores.redis.definitions import CounterForm
from sluicegate.stores.redis.scripts import PLAIN

__all__ = ["FORMAT", "path_regex", "ruleset_document"]

FORMAT: Final = 1
"""The version of the document's form."""

_INT64_MAX: Final = 2**62  # with a factor of two to spare for sums
_encode = msgspec.json.Encoder().encode
_EVERYTHING: Final = r"^(?:/[^/]+)*\z"
_READABLE: Final = frozenset(
    (
        "methods",
        "path",
        "host",
        "headers",
        "tier",
        "tenant",
        "user",
        "authenticated",
        "domain",
        "descriptors",
        "entries",
        "negate",
    )
)
_KNOWN_DIMENSIONS: Final = frozenset(("ip", "user", "api_key", "tenant", "tier", "host", "method", "endpoint", "path"))


def ruleset_document(engine: Engine, headers: RateHeaders, *, keys: str = "digest", partly: bool = False) -> bytes:
    """The document as JSON, the same bytes for the same rules. ``keys``: how subjects stand in the store: ``digest``, ``plain`` (readable),
    ``packed``, where they have no keys, or ``moving`` between layouts; a reader refuses what it does not know. ``partly``: the store decides by a part
    of each limit, so that a reader, who knows the whole ones, has to ask about every rule.
    """
    ruleset = engine.ruleset
    identity = ruleset.identity if isinstance(ruleset.identity, IdentityConfig) else IdentityConfig()
    return _encode(
        {
            "format": FORMAT,
            "version": ruleset.version,
            "digest": ruleset.digest,
            "namespace": engine.namespace,
            "keys": keys,
            "bounds": {
                "clock_behind_us": CLOCK_BEHIND_US_MAX,
                "header_integer": HEADER_INTEGER_MAX,
                "path_chars": PATH_CHARS_MAX,
                "subject_chars": SUBJECT_CHARS_MAX,
            },
            "tag_dimensions": TAG_DIMENSIONS,
            "methods": sorted(METHODS),
            "script": {"digest": PLAIN.decide_one.digest.decode(), "text": PLAIN.decide_one.text.decode()},
            "headers": list(headers.dialects),
            "fields": sorted(name.decode() for name in headers.names),
            "tiers": {"names": sorted({*ruleset.tiers.names}), "default": ruleset.tiers.default},
            "subjects": dict(ruleset.subjects),
            "identity": _identity(identity),
            "wanted_headers": sorted(headers_needed(ruleset.rules)),
            "rules": [_rule(compiled, headers, partly=partly) for compiled in engine.compiled],
        }
    )


def _identity(identity: IdentityConfig) -> dict[str, object]:
    """``secrets``: headers whose bearer only this server knows. ``stated``: dimensions a trusted peer states, and in which header."""
    return {
        "ipv4_prefix": identity.ipv4_prefix,
        "ipv6_prefix": identity.ipv6_prefix,
        "forwarding": sorted(identity.forwarding_headers),
        "forwarded": identity.forwarded_header or "x-forwarded-for",
        "secrets": sorted(
            {_carrier(source) for _, source in identity.sources() if not isinstance(source, HeaderSource)}
        ),
        "stated": {name: source.header for name, source in identity.sources() if isinstance(source, HeaderSource)},
    }


def _carrier(source: Source) -> str:
    return source.jwt.header if isinstance(source, ClaimSource) else source.header


def _rule(compiled: CompiledRule, headers: RateHeaders, *, partly: bool) -> dict[str, object]:
    rule, reason = compiled.rule, "regions" if partly else _why_ask(compiled)
    document: dict[str, object] = {
        "name": rule.name,
        "match": _match(rule.match, whole=reason is None),
        "per": list(rule.per.dimensions),
        "first_of": rule.per.first_of,
        "on_missing": rule.per.on_missing.value,
        "on_store_failure": rule.on_store_failure.value,
    }
    if reason is not None:
        return {**document, "ask": reason}
    cost = rule.cost
    assert isinstance(cost, int)
    usual = [_counter(counter, cost, headers) for counter in compiled.counters[None]]
    document["cost"] = cost
    document["counters"] = usual
    by_tier = {
        tier: [_counter(counter, cost, headers) for counter in counters]
        for tier, counters in compiled.counters.items()
        if tier is not None
    }
    document["tiers"] = {tier: by_tier[tier] for tier in sorted(by_tier) if by_tier[tier] != usual}
    return document


def _counter(counter: Counter, cost: int, headers: RateHeaders) -> dict[str, object]:
    """``form`` is an argument of the script; the other numbers are what describing its reply needs."""
    form, spec = CounterForm(counter), counter.spec
    policy = headers.policy(counter.name, spec.capacity, spec.window_us, spec.algorithm)
    document: dict[str, object] = {
        "name": counter.name,
        "algorithm": form.code,
        "head": form.head,
        "tail": form.tail,
        "form": b64encode(form.charge(cost, 0)).decode(),
        "record": form.record.size,
        "limit": spec.capacity,
        "window_us": spec.window_us,
        "shadow": counter.shadow,
        "denied_counts": counter.denied_counts,
        "texts": {
            "policy": policy.x_end.removeprefix("X-RateLimit-Policy: ").rstrip(),
            "ietf_name": policy.ietf_name,
            "ietf_policy": policy.ietf_policy,
            "legacy_policy": policy.legacy_policy,
        },
    }
    if isinstance(spec, TokenBucket):
        document.update(tokens=spec.tokens, period_us=spec.period_us)
    elif isinstance(spec, FixedWindow):
        document.update(origin_us=spec.bounds_us(0)[0] % spec.window_us)
    elif isinstance(spec, SlidingWindow) and spec.sub_windows is not None:
        document.update(sub_windows=spec.sub_windows, step_us=-(-spec.window_us // spec.sub_windows))
    return document


def _why_ask(compiled: CompiledRule) -> str | None:
    """What of this rule a reader cannot do; None where it can do all."""
    rule = compiled.rule
    if rule.trial is not None:
        # Whoever watches the rollout counts what this server decides.
        return "a rollout"
    if isinstance(rule.cost, CostFrom):
        return "cost read from a header"
    if rule.respond != "429":
        return "respond"
    if rule.penalty is not None:
        return "penalty"
    condition = _unreadable(rule.match)
    if condition is not None:
        return f"{condition} in match"
    for dimension in rule.per.dimensions:
        if dimension not in _KNOWN_DIMENSIONS and not dimension.startswith("header."):
            return f"dimension {dimension}"
    for counters in compiled.counters.values():
        for counter in counters:
            reason = _why_ask_counter(counter)
            if reason is not None:
                return reason
    return None


def _why_ask_counter(counter: Counter) -> str | None:
    spec = counter.spec
    if counter.precision is Precision.SPLIT or counter.precision is Precision.ESTIMATED:
        # While it is split whoever charges the whole without its gate admits beside its parts; what is drawn by chance leaves no room for others.
        return f"precision {counter.precision.value}"
    if isinstance(spec, FixedWindow):
        return "windows of a calendar" if spec.unit is not None else None
    if isinstance(spec, Ban | SlidingLog):
        return None
    if isinstance(spec, SlidingWindow):
        return None if spec.capacity * spec.window_us < _INT64_MAX else "numbers above 64 bits"
    if isinstance(spec, TokenBucket):
        largest = 2 * spec.capacity * spec.period_us + CLOCK_BEHIND_US_MAX * spec.tokens
        return None if largest < _INT64_MAX else "numbers above 64 bits"
    return f"algorithm {spec.algorithm}"


def _unreadable(match: Match) -> str | None:
    """The first condition that a reader of this format cannot know, also one that came after it."""
    for each in fields(match):
        if each.name not in _READABLE and getattr(match, each.name):
            return each.name
    return None if match.negate is None else _unreadable(match.negate)


def _match(match: Match, *, whole: bool = True) -> dict[str, object]:
    """Only what restricts. Patterns of paths come with a regular expression (PCRE) for a normal form, ``""`` standing for ``/``.

    Not ``whole``: may hold for more requests than the rule is for, and never for fewer.
    """
    found: dict[str, Any] = {
        "methods": [method.upper() for method in match.methods],
        "path": [_path(parse_pattern(text)) for text in match.path],
        "host": [host.lower().removesuffix(".") for host in match.host],
        "headers": _entries(match.headers),
        "tier": list(match.tier),
        "user": list(match.user),
        "tenant": list(match.tenant),
        "domain": list(match.domain),
        "descriptors": _entries(match.descriptors),
        "entries": [str(entry) for entry in match.entries],
    }
    document: dict[str, object] = {name: value for name, value in found.items() if value}
    if match.authenticated is not None:
        document["authenticated"] = match.authenticated
    if whole and match.negate is not None:
        document["not"] = _match(match.negate)
    return document


def _entries(entries: Mapping[str, str | None]) -> list[list[str]]:
    """[name, value], or [name] alone for mere presence."""
    return [[name.lower()] if value is None else [name.lower(), value] for name, value in entries.items()]


def _path(pattern: PathPattern) -> dict[str, str]:
    return {"pattern": pattern.text, "regex": path_regex(pattern)}


def path_regex(pattern: PathPattern) -> str:
    r"""A pattern as a regular expression for paths without ``%`` in their normal form, which costs time linear in the path.

    A literal is found where it stands first (an atomic group), so that nothing is tried twice, as ``Glob.matches`` does.
    """
    if pattern.segments == (Wild.REST,):
        return _EVERYTHING
    return "^" + "".join(_segment_regex(segment) for segment in pattern.segments) + r"\z"


def _segment_regex(segment: Segment) -> str:
    if segment is Wild.ONE:
        return "/[^/]+"
    if segment is Wild.REST:
        return "(?:/[^/]+)*"
    if isinstance(segment, Glob):
        return "/" + _glob_regex(segment.literals, segment.gaps)
    assert isinstance(segment, str)
    return "/" + _quoted(segment)


def _glob_regex(literals: Sequence[str], gaps: Sequence[int | None]) -> str:
    parts: list[str] = []
    last = len(literals) - 1
    for index, (literal, gap) in enumerate(zip(literals, gaps, strict=True)):
        if gap is None:
            parts.append(_quoted(literal))
        elif index == last:
            parts.append(f"[^/]{{{gap},}}{_quoted(literal)}")
        else:
            parts.append(f"(?>[^/]{{{gap},}}?{_quoted(literal)})")
    return "".join(parts)


def _quoted(literal: str) -> str:
    """What no path without ``%`` holds, never matches."""
    return re.escape(literal) if literal.isascii() and literal.isprintable() else "(?!)"
