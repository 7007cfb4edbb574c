"""A limiter as a door uses it: what it is asked, and what clients are told.

    facts of the request --base--> (limiter, facts or key)     the middleware's own rules
                         --declared--> (limiter, facts, cost)  a limit written beside a route
    decisions            --headers--> name, value pairs

The shells (ASGI, WSGI, Flask, Django) bring requests here and carry answers away; they differ in nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from sluicegate.bounds import POLICY_TEXTS_MAX
from sluicegate.doors.headers import RateHeaders, seconds_up
from sluicegate.doors.refusals import Reply, delayed, refusal, respond_of
from sluicegate.doors.web.callables import awaited, no_awaitable, require_function, require_plain
from sluicegate.doors.web.declared import Limit
from sluicegate.doors.web.outages import tell_outages
from sluicegate.doors.web.request import Refusal, RequestLimits, Seen
from sluicegate.doors.web.workers import WorkersWarning
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.keyed import KEY_DIMENSION
from sluicegate.limiter.limiter import FactsOrKey, Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity import IdentityConfig, IdentityResolver
from sluicegate.rules.identity.addresses import IpKeyer
from sluicegate.rules.model import Mode, RuleSet
from sluicegate.stores.memory import MemoryStore

__all__ = ["Asked", "Door"]

_RawPair: TypeAlias = tuple[bytes, bytes]
_KEY = KEY_DIMENSION.partition(".")[2]
_TEXTS: Final = frozenset(Facts.__struct_fields__) - {"headers", "descriptors", "attrs"}
"""The facts that are texts, not mappings."""
_NOBODY: Final = IdentityConfig()
"""What rules without an identity say."""
_TOLD_TO_WAIT: Final = 300
"""The least status with which Retry-After means something (RFC 9110 section 10.2.3)."""
_log = logging.getLogger("sluicegate.doors")
_workers = WorkersWarning()


class Asked(NamedTuple):
    """What a gate asks of which limiter. ``owner``: what is decided once per request."""

    owner: object
    limiter: Limiter
    what: FactsOrKey
    cost: int
    refusal: Refusal = Refusal.FINAL


class Door:
    """One limiter in front of an application. Safe to share between threads and event loops.

    ``limiter``: with rules, or made from a quota; a quota is counted per address unless ``key``, a function of the request, says
    otherwise. ``identify``: for a limiter with rules, a function of the request that returns facts the application vouches
    for, such as ``{"user": "8123", "tier": "paid"}`` (None for none); they replace what the headers said. Both may be coroutine
    functions where ``awaits``. ``headers``: the dialects, see ``RateHeaders``. ``retry_jitter_s``: refused clients are told
    to come back up to this many whole seconds later than they may; 0: exactly then. ``random``: where the jitter comes from.

    Raises ConfigurationError naming what is wrong.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        headers: str = "x-ratelimit",
        key: Callable[[Any], Any] | None = None,
        identify: Callable[[Any], Any] | None = None,
        retry_jitter_s: int = 0,
        random: Random | None = None,
        awaits: bool = False,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: want a Limiter, got {type(limiter).__name__}")
        if type(retry_jitter_s) is not int or retry_jitter_s < 0:
            raise ConfigurationError(f"retry_jitter_s: want whole seconds >= 0, got {retry_jitter_s!r:.64}")
        if not (random is None or isinstance(random, Random)):
            raise ConfigurationError(f"random: want a random.Random, got {type(random).__name__}")
        require_function("key", key)
        require_function("identify", identify)
        self.keyed = limiter._live.keyed is not None
        if key is not None and not self.keyed:
            raise ConfigurationError("key: this limiter has rules, whose `per` says whose a request is; see `identify`")
        if identify is not None and self.keyed:
            raise ConfigurationError("identify: this limiter was made from a quota; say whose a request is with `key`")
        if not awaits:
            require_plain("key", key, "this door")
            require_plain("identify", identify, "this door")
        self.limiter = limiter
        self.headers = RateHeaders(headers)
        _workers.look(limiter.store)
        tell_outages(limiter)
        self._own = frozenset(name.decode() for name in self.headers.names)
        self._own_refused = self._own | {"retry-after"}
        self._owner: object = limiter if key is None else (limiter, key)
        self._key = key
        self._identify = identify
        self._jitter_s = retry_jitter_s
        self._random = random or Random()  # noqa: S311 -- spreads clients out; nothing is kept secret by it
        identity = limiter.ruleset.identity
        # A quota limiter keeps its identity as long as it lives.
        prefixes = (identity.ipv4_prefix, identity.ipv6_prefix) if isinstance(identity, IdentityConfig) else ()
        self._ip_key = IpKeyer(*prefixes).key
        self._ruleset: RuleSet | None = None
        self._by_endpoint = False
        self._raw: dict[tuple[str, int, int, str], tuple[_RawPair, _RawPair]] = {}
        self._warned = False
        self.plain = key is None and identify is None
        """Whether ``base`` needs nothing of the request but its facts."""

    # ------------------------------------------------------------------ the limiter's own rules

    @property
    def resolver(self) -> IdentityResolver:
        """By the rules in force."""
        return self.limiter._live.resolver

    def meet(self, limits: RequestLimits, read: Callable[[], tuple[Facts, Seen]]) -> None:
        """A request that another door has met before: its facts become those that this door's rules make of it.

        ``read`` gives them. Where these rules say nothing about identity the facts stay, but for headers that only these look at.
        """
        resolver = self.resolver
        if limits.made_by is resolver:
            return
        identity = self.limiter._live.ruleset.identity
        if isinstance(identity, IdentityConfig) and identity != _NOBODY:
            limits.adopt(read()[0], resolver)
        elif resolver.looks_at_headers and not self.keyed:
            known = {**(read()[0].headers or {}), **(limits.facts.headers or {})}
            limits.facts = msgspec.structs.replace(limits.facts, headers=known)

    @property
    def by_endpoint(self) -> bool:
        """Whether some rule in force counts by route template, so that it must be known."""
        ruleset = self.limiter._live.ruleset
        if ruleset is not self._ruleset:
            active = [rule for rule in ruleset.rules if rule.mode is not Mode.OFF]
            self._by_endpoint = any("endpoint" in rule.per.dimensions for rule in active)
            self._ruleset = ruleset
        return self._by_endpoint

    def base(self, facts: Facts, request: Any) -> Asked | None:
        """What the limiter's own rules are asked; None where it has none, or a quota limiter has nothing to count by."""
        if self.keyed:
            key = self._by_address(facts) if self._key is None else no_awaitable("key", self._key(request))
            return self._keyed(key)
        if self._identify is not None:
            facts = _vouched(facts, no_awaitable("identify", self._identify(request)))
        elif not (self.limiter._live.ruleset.rules or self.limiter.known.active):
            return None
        return Asked(self._owner, self.limiter, facts, 1)

    async def abase(self, facts: Facts, request: Any) -> Asked | None:
        """``base``, with functions that may be coroutine functions."""
        if self.keyed:
            key = self._by_address(facts) if self._key is None else await awaited(self._key(request))
            return self._keyed(key)
        if self._identify is not None:
            facts = _vouched(facts, await awaited(self._identify(request)))
        return Asked(self._owner, self.limiter, facts, 1)

    def _keyed(self, key: Any) -> Asked | None:
        """A key function that gives None says that this request is not to be counted; an empty text is an error."""
        if key is None:
            return None
        if not isinstance(key, str):
            raise ConfigurationError(f"key: gave {type(key).__name__}, want a text, or None for a request not to count")
        return Asked(self._owner, self.limiter, key, 1)

    def _by_address(self, facts: Facts) -> str | None:
        if facts.ip is not None:
            return self._ip_key(facts.ip)
        self.warn_no_address()
        return None

    def warn_no_address(self) -> None:
        """Say once that a limit by address did not apply, because the client's address is not known."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "a request has no client address, so limits by address do not apply to it; behind a proxy on a Unix "
                "socket, set identity.trusted_peers: [unix] and identity.ip.header in the rules file, which needs no rules "
                "for that, or give no_rules or Limiter.from_quota the same as identity="
            )

    # ------------------------------------------------------------------ limits beside routes

    def declared(self, limits: RequestLimits, limit: Limit, facts: Facts, request: Any) -> Asked:
        """What a limit is asked about this request. ``facts.route`` must be known, if the route is."""
        key = None if limit.key is None else no_awaitable("key", limit.key(request))
        cost = no_awaitable("cost", limit.cost(request)) if callable(limit.cost) else 1
        return self._declared(limits, limit, facts, key, cost)

    async def adeclared(self, limits: RequestLimits, limit: Limit, facts: Facts, request: Any) -> Asked:
        """``declared``, with functions that may be coroutine functions."""
        key = None if limit.key is None else await awaited(limit.key(request))
        cost = await awaited(limit.cost(request)) if callable(limit.cost) else 1
        return self._declared(limits, limit, facts, key, cost)

    def _declared(self, limits: RequestLimits, limit: Limit, facts: Facts, key: Any, cost: int) -> Asked:
        base = limit.limiter or self.limiter
        if not (key is None or isinstance(key, str)):
            raise ConfigurationError(f"key: gave {type(key).__name__}, want a text, or None where there is none")
        if not key and facts.ip is None and "ip" in (*limit.per, limit._options.get("on_missing")):
            self.warn_no_address()
        owner: object = limit
        if not limit.apart:
            owner = (base, limit.name)
            limits.claim(owner, limit)
        if not limit.by_path:
            facts = limits.pathless(facts)
        if limit.headers:
            # The facts have those that the base limiter's rules look at, and those that the application vouches for.
            sent = self.resolver.visible(*limits.seen, limit.headers)
            facts = msgspec.structs.replace(facts, headers={**sent, **(facts.headers or {})})
        if facts.route is None and limit.place is not None:
            facts = msgspec.structs.replace(facts, route=limit.place)
        if key is not None:
            facts = msgspec.structs.replace(facts, attrs={**(facts.attrs or {}), _KEY: key})
        return Asked(owner, limit.limiter_for(base, limits.name_of(limit)), facts, cost)

    def switched_on(self, limit: Limit | None = None) -> bool:
        """Whether anything is decided: ``limiter.enabled`` switches the limits beside routes, too."""
        base = self.limiter if limit is None or limit.limiter is None else limit.limiter
        return base.enabled

    # ------------------------------------------------------------------ what clients are told

    def told(self, limits: RequestLimits) -> Decision | None:
        """What the client is told: the decision, or the part of it that is told; with jitter, the same however often it is asked for."""
        if limits.told is not None:
            return limits.told
        if limits.refused is None and self.headers.delta_only:
            # This dialect tells of one rule, so the others need not be put together.
            return limits.nearest
        decision = limits.decision
        if self._jitter_s and decision is not None and not decision.allowed:
            if limits.later_s is None:
                limits.later_s = self._random.randint(0, self._jitter_s)
            decision = limits.told = delayed(decision, limits.later_s)
        return decision

    def items(self, limits: RequestLimits, status: int) -> list[tuple[str, str]]:
        """The rate headers for an answer with this status; on a refusal with Retry-After.

        An application that catches a refusal and succeeds all the same has refused nothing: below 300 there is no Retry-After, and none
        where no limit has stopped the request.
        """
        decision = self.told(limits)
        if decision is None:
            return []
        found = self.headers.items(decision, self.limiter.clock.now_us() if self.headers.needs_now else 0)
        wait = limits.refused is not None and status >= _TOLD_TO_WAIT
        return found if wait else [pair for pair in found if pair[0] != "Retry-After"]

    def replaced(self, limits: RequestLimits) -> frozenset[str]:
        """The fields, in lower case, that an answer with our fields must not have from somebody else."""
        return self._own_refused if limits.refused is not None else self._own

    def raw_items(self, limits: RequestLimits, status: int) -> list[tuple[bytes, bytes]]:
        """``items`` for ASGI: bytes, names in lower case."""
        decision = self.told(limits)
        if decision is None:
            return []
        result = decision.decisive
        if self.headers.delta_only and result is not None and decision.allowed:
            # What nearly every answer has, without writing and parsing lines.
            key = (result.rule, result.limit, result.window_us, result.algorithm)
            fixed = self._raw.get(key) or self._prepare_raw(key)
            remaining, reset_s = result.remaining, seconds_up(decision.summary.reset_after_us)
            return [
                fixed[0],
                (b"x-ratelimit-remaining", b"%d" % remaining),
                (b"x-ratelimit-reset", b"%d" % reset_s),
                fixed[1],
            ]
        found = _pairs(self.headers.block(decision, self.limiter.clock.now_us() if self.headers.needs_now else 0))
        wait = limits.refused is not None and status >= _TOLD_TO_WAIT
        return found if wait else [pair for pair in found if pair[0] != b"retry-after"]

    def _prepare_raw(self, key: tuple[str, int, int, str]) -> tuple[_RawPair, _RawPair]:
        """The two fields of a rule that never change, as ``RateHeaders`` writes them."""
        if len(self._raw) >= POLICY_TEXTS_MAX:
            self._raw.clear()
        policy = self.headers.policy(*key)
        (limit, _) = _pairs(f"{policy.x_start}0\r\n".encode("ascii"))
        (told,) = _pairs(policy.x_end.encode("ascii"))
        self._raw[key] = (limit, told)
        return limit, told

    def reply(self, limits: RequestLimits) -> Reply:
        """The answer to a refused request, by the rule that refused it."""
        decision = self.told(limits)
        assert decision is not None
        assert limits.refused is not None
        return refusal(decision, respond_of(*limits.refused))

    def clear(self) -> None:
        """Forget every counter, for tests. Raises ConfigurationError where other processes share the store."""
        store = self.limiter.store
        if not isinstance(store, MemoryStore):
            raise ConfigurationError(f"reset: {store!r} is shared with other processes; use a namespace for each test")
        store.clear()


def _pairs(block: bytes) -> list[_RawPair]:
    """Header lines as pairs."""
    lines = [line.split(b": ", 1) for line in block.split(b"\r\n") if line]
    return [(name.lower(), value) for name, value in lines]


def _vouched(facts: Facts, known: Mapping[str, Any] | None) -> Facts:
    """Facts with those the application vouches for."""
    if known is None:
        return facts
    if not isinstance(known, Mapping):
        raise ConfigurationError(f"identify: gave {type(known).__name__}, want a mapping of facts, or None")
    unknown = sorted(set(known) - set(Facts.__struct_fields__))
    if unknown:
        raise ConfigurationError(f"identify: gave {unknown[0]!r}, which is no fact")
    for name, value in known.items():
        if name in _TEXTS and not (value is None or isinstance(value, str)):
            raise ConfigurationError(f"identify: gave {type(value).__name__} as {name!r}, want a text, or None")
    return msgspec.structs.replace(facts, **known)
