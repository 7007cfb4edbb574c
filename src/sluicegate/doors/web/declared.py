"""Limits that are written beside a route: ``limit("100/minute")``.

Such a limit is a rule like those of a rules file, with a name of its own, decided by the same engine on the same store, under
a namespace of its own, so that it never shares a counter with a rule of the file. Its counters are kept per route
template unless it is ``shared``: two functions of the same name on two routes are two counters, and ``/users/1`` and
``/users/2`` are one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sluicegate.clock import Clock
from sluicegate.doors.web.callables import described, require_function, require_target
from sluicegate.doors.web.outages import tell_outages
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.keyed import KEY_DIMENSION
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.identity import IdentityConfig, read_identity
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import OnMissing, RuleSet
from sluicegate.stores.base import Store

__all__ = ["DEFAULT_NAME", "Limit", "Stacked", "limits_on", "no_rules", "stack", "texts"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME: Final = "limit"
_NAMESPACE: Final = "#routes"
"""Added to the limiter's namespace; no namespace that anybody writes in a flag or a file ends so by accident."""
_MARK: Final = "__sluicegate_limits__"
_ON_MISSING: Final = tuple(choice.value for choice in OnMissing)
_HEADER: Final = "header."
_METHOD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_NAME_CHARS_MAX: Final = 56
"""Of a name made from a function's: it leaves room for a number, within the 64 characters of a rule's name."""


class Limit:
    """A quota for one route, or for all that share it.

    ``quota``: as in a rules file (``"100/minute"``, ``"10/second; 1000/day"``). ``per``: dimensions, as in a rules file; none: all clients together; ``key``: a
    function of the request that gives the key instead, which may be a coroutine function where the door can await it. Where the
    key or a dimension is unknown (None or an empty text) ``on_missing`` says what happens: ``ip`` counts by address,
    ``skip`` lets the request pass this limit, ``deny`` refuses it. ``name``: the rule's name in headers and decisions; where one is
    given, limits of that name are one rule, charged once per request. ``shared``: one counter for all routes; needs a name.
    ``cost``: a whole number >= 1 or a function of the request. ``methods``: the only methods it is for, or one. ``limiter``: whose
    store, clock and switch it uses; None: the one of the door that serves the request, which says who the client is in any case.

    Immutable and safe to share. Raises ConfigurationError, naming the field, for what cannot be read.
    """

    __slots__ = (
        "_bound",
        "_options",
        "apart",
        "by_path",
        "cost",
        "headers",
        "key",
        "limiter",
        "methods",
        "name",
        "per",
        "place",
        "quota",
        "shared",
    )

    def __init__(
        self,
        quota: str,
        *,
        per: str | Sequence[str] = ("ip",),
        key: Callable[..., Any] | None = None,
        name: str | None = None,
        shared: bool = False,
        cost: int | Callable[..., Any] = 1,
        methods: str | Sequence[str] = (),
        algorithm: str = "token_bucket",
        on_missing: str = "ip",
        on_store_failure: str = "local",
        limiter: Limiter | None = None,
    ) -> None:
        if not isinstance(quota, str):
            raise ConfigurationError(f"quota: want a text such as '100/minute', got {quota!r:.64}")
        if shared and name is None:
            raise ConfigurationError("shared: a limit that several routes share needs a name")
        if limiter is not None and not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: want a Limiter, got {limiter!r:.64}")
        if not (callable(cost) or type(cost) is int):
            raise ConfigurationError(f"cost: want a whole number or a function, got {cost!r:.64}")
        if on_missing not in _ON_MISSING:
            raise ConfigurationError(f"on_missing: want one of {', '.join(_ON_MISSING)}, got {on_missing!r:.64}")
        require_function("key", key)
        self.quota = quota
        self.per = (KEY_DIMENSION,) if key is not None else texts("per", per)
        self.key = key
        self.name = name
        self.apart = name is None
        """Whether it is one rule by itself; limits that were given one name are one rule together."""
        self.place: str | None = None
        """The function it stands on, which is the endpoint where no route is known."""
        self.shared = shared
        self.cost = cost
        self.headers = frozenset(name[len(_HEADER) :].lower() for name in self.per if name.startswith(_HEADER))
        """Lower-case names of the headers it counts by."""
        self.by_path = "path" in self.per
        self.methods = texts("methods", methods)
        for method in self.methods:
            if not _METHOD.fullmatch(method):
                raise ConfigurationError(f"methods: {method!r:.64} is no method")
        self.limiter = limiter
        self._options: dict[str, object] = {"algorithm": algorithm, "on_store_failure": on_store_failure}
        if self.per and "ip" not in self.per:
            self._options["on_missing"] = on_missing
        if isinstance(cost, int) and cost != 1:
            self._options["cost"] = cost
        self._bound: WeakKeyDictionary[Limiter, dict[str, tuple[RuleSet, Limiter]]] = WeakKeyDictionary()
        self.rules(name or DEFAULT_NAME)

    @property
    def plain(self) -> bool:
        """Whether nothing has to be asked of the request but its facts."""
        return self.key is None and not callable(self.cost)

    def says_the_same(self, other: Limit) -> bool:
        """Whether both stand for the same rule; their functions may be two of the same meaning."""
        name = self.name or DEFAULT_NAME
        return self is other or self.rules(name) == other.rules(name)

    def named(self, name: str) -> Limit:
        """The same limit for one function or blueprint, named after it; raises ConfigurationError for what is no name."""
        self.rules(name)
        other = object.__new__(Limit)
        for field in Limit.__slots__:
            setattr(other, field, getattr(self, field))
        other.name = name
        other.apart = True
        other._bound = WeakKeyDictionary()
        return other

    def rules(self, name: str) -> RuleSet:
        """The one rule this limit stands for."""
        per = [*self.per, *(() if self.shared else ("endpoint",))]
        rule: dict[str, object] = {"name": name, "quota": self.quota, **self._options}
        if per:
            rule["per"] = per
        if self.methods:
            rule["match"] = {"methods": list(self.methods)}
        # JSON is YAML: the limit is read, checked and refused as a rules file is.
        return load_rules(json.dumps({"version": 1, "rules": [rule]}), "limit")

    def limiter_for(self, base: Limiter, name: str) -> Limiter:
        """What decides this limit for requests that ``base`` serves: on its store and clock, by its identity settings,
        lists and subjects.

        Made on first use and kept as long as ``base`` lives; follows ``base.apply``.
        """
        served = base.ruleset
        known = self._bound.setdefault(base, {})
        found = known.get(name)
        if found is not None and found[0] is served:
            return found[1]
        rules = replace(self.rules(name), tiers=served.tiers, subjects=served.subjects, identity=_prefixes_of(served))
        if found is not None:
            found[1].apply(rules)
            limiter = found[1]
        else:
            limiter = Limiter.from_rules(
                rules,
                base.store,
                base.clock,
                namespace=base._namespace + _NAMESPACE,
                known=base.known,
                near=None if base.near is None else base.near.settings,
            )
            tell_outages(base, limiter)
        known[name] = (served, limiter)
        return limiter

    def __repr__(self) -> str:
        return f"Limit({self.quota!r}, per={list(self.per)!r}, name={self.name!r})"


def no_rules(
    store: Store | str = "memory://",
    clock: Clock | None = None,
    *,
    namespace: str = "default",
    identity: Mapping[str, object] | None = None,
) -> Limiter:
    """A limiter without rules, for applications that have only limits beside routes: where those count, and by which clock.

    ``identity``: whose word counts for what, as in a rules file; behind a proxy ``{"trusted_peers": ["10.0.0.0/8"]}``, with its
    addresses. Files in it are relative to the working directory. None: nobody is believed, and a client is who is connected.

    Raises ConfigurationError for what cannot be read.
    """
    ruleset = RuleSet((), identity=None if identity is None else read_identity(identity))
    return Limiter.from_rules(ruleset, store, clock, namespace=namespace)


class Stacked(NamedTuple):
    """A limit as one of those on a function."""

    limit: Limit
    below: tuple[Limit, ...]

    def mark(self, function: F) -> F:
        """Note on a function what limits it; ``functools.wraps`` of decorators above carries the note on."""
        setattr(function, _MARK, (*self.below, self.limit))
        return function


def stack(limit: Limit, function: Callable[..., Any]) -> Stacked:
    """``limit`` for this function: named after it, unless it has a name, and told apart from those below it.

    Raises ConfigurationError for what is no function, and where one below it has its name and says something else.
    """
    require_target(function)
    below = limits_on(function)
    if limit.name is None:
        limit = limit.named(_name_of(function, len(below)))
        limit.place = f"{getattr(function, '__module__', '')}:{described(function)}"
    for other in below:
        if other.name == limit.name and other.limiter is limit.limiter and not other.says_the_same(limit):
            raise ConfigurationError(
                f"{described(function)}: two limits are named {limit.name!r} and differ: {other!r}, {limit!r}"
            )
    return Stacked(limit, below)


def limits_on(function: object) -> tuple[Limit, ...]:
    """The limits that decorate a function."""
    found: tuple[Limit, ...] = getattr(function, _MARK, ())
    return found


def texts(field: str, given: Any) -> tuple[str, ...]:
    """One text or several."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable) or not all(isinstance(text, str) for text in given):
        raise ConfigurationError(f"{field}: want a text or several, got {given!r:.64}")
    return tuple(given)


def _name_of(function: Callable[..., Any], position: int) -> str:
    qualified = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    name = _UNSAFE.sub("-", qualified)[-_NAME_CHARS_MAX:].strip("-_.") or DEFAULT_NAME
    return name if position == 0 else f"{name}-{position + 1}"


def _prefixes_of(ruleset: RuleSet) -> IdentityConfig | None:
    """How addresses are cut to keys; who the client is has been worked out by the base limiter's resolver."""
    identity = ruleset.identity
    if not isinstance(identity, IdentityConfig):
        return None
    return IdentityConfig(ipv4_prefix=identity.ipv4_prefix, ipv6_prefix=identity.ipv6_prefix)
