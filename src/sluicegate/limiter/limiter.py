"""The facade: rules, a store and a clock behind a handful of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, ParamSpec, Self, TypeVar

from sluicegate.algorithms.verdict import Outcome
from sluicegate.clock import Clock, SystemClock
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.core import FactsOrKey
from sluicegate.limiter.decorator import Cost, Key, decorate
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.keyed import quota_rules, subject_of_key
from sluicegate.limiter.known import Known
from sluicegate.limiter.lists import Lists
from sluicegate.limiter.live import Live
from sluicegate.limiter.offenders import Offenders
from sluicegate.limiter.operating import Operating
from sluicegate.limiter.recording import Recorder
from sluicegate.limiter.sets import SetPlanner
from sluicegate.limiter.subject_table import SubjectTable
from sluicegate.limiter.watch import Watch
from sluicegate.rules.identity import IdentityResolver, read_identity
from sluicegate.rules.model import FailurePolicy, RuleSet
from sluicegate.rules.watched import RulesFile
from sluicegate.stores.base import Counter, HitStore, Hitter, Store
from sluicegate.stores.near import NEAR, NearSettings

__all__ = ["FactsOrKey", "Limiter"]

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(Operating):
    """Decides requests. Safe to use from any number of threads and from any event loop.

    Made by ``from_file``, ``from_rules`` or ``from_quota``. ``enabled`` may be set at any time: while it is False every
    request is allowed, nothing is charged, and ``stats.bypassed`` counts. A fork continues with a copy of an in-process store;
    pickling is refused, because counters belong to one process.
    """

    def __init__(
        self,
        ruleset: RuleSet,
        *,
        store: Store | str,
        clock: Clock,
        namespace: str,
        base_dir: Path | None,
        keyed: bool,
        nodes: int = 1,
        known: Known | None = None,
        near: NearSettings | None = NEAR,
    ) -> None:
        super().__init__(
            ruleset,
            store=store,
            clock=clock,
            namespace=namespace,
            base_dir=base_dir,
            keyed=keyed,
            nodes=nodes,
            known=known,
            near=near,
        )
        self._hitter: Hitter | None = None
        self._hits_told: Recorder | None = None
        self._watch: Watch | None = None
        self._quicken()

    # ------------------------------------------------------------------ making one

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        store: Store | str = "memory://",
        clock: Clock | None = None,
        *,
        namespace: str = "default",
        nodes: int = 1,
        watch: bool = False,
        near: NearSettings | None = NEAR,
    ) -> Limiter:
        """A limiter by the rules in a YAML file. Files that the rules name are relative to it.

        ``watch``: a thread looks at the file, and those it names, five times a second; an edit is in service within a second, unless it
        is a bad one, which changes nothing and is logged. It ends with ``close``, and goes on in a forked process. ``near``: see ``from_rules``.

        Raises ConfigurationError: RulesInvalid with every problem of the file, or why it or the store cannot be used.
        """
        path = Path(path)
        clock = clock or SystemClock()
        file = RulesFile(path.absolute() if watch else path, clock, rules_needed=False)
        limiter = cls.from_rules(
            file.load(), store, clock, namespace=namespace, base_dir=file.path.parent, nodes=nodes, near=near
        )
        if watch:
            limiter._watch = Watch(file, limiter)
            limiter._watch.start()
        return limiter

    @classmethod
    def from_rules(
        cls,
        ruleset: RuleSet,
        store: Store | str = "memory://",
        clock: Clock | None = None,
        *,
        namespace: str = "default",
        base_dir: Path | None = None,
        nodes: int = 1,
        known: Known | None = None,
        near: NearSettings | None = NEAR,
    ) -> Limiter:
        """A limiter by a rule set. ``namespace`` keeps services apart that share a store.

        ``nodes`` (1 to ``FLEET_NODES_MAX``): the least number of processes that share the store's limits. Each takes its part of
        them while the store is away; a store that knows of more processes has the last word. ``known``: the lists and subjects of another
        limiter, to share them; None: its own. ``near``: what of a store over a network is answered in this process, by leases and by a memory of
        refusals; None: nothing, every check is a call of the store. ``terms`` in it must be the same wherever the store is used.
        """
        return cls(
            ruleset,
            store=store,
            clock=clock or SystemClock(),
            namespace=namespace,
            base_dir=base_dir,
            keyed=False,
            nodes=nodes,
            known=known,
            near=near,
        )

    @classmethod
    def from_quota(
        cls,
        quota: str,
        algorithm: str = "token_bucket",
        store: Store | str = "memory://",
        clock: Clock | None = None,
        *,
        name: str = "quota",
        namespace: str = "default",
        on_store_failure: str = FailurePolicy.LOCAL.value,
        nodes: int = 1,
        identity: Mapping[str, object] | None = None,
        near: NearSettings | None = NEAR,
    ) -> Limiter:
        """A limiter with one quota, such as ``"100/minute"``, for every key. ``name`` appears as ``decision.rule``.

        ``identity``: whose word counts for what, as in a rules file (``{"trusted_peers": ["10.0.0.0/8"]}``), for doors that count
        by address; files in it are relative to the working directory. None believes nobody.
        ``near``: see ``from_rules``.
        """
        ruleset = quota_rules(quota, algorithm=algorithm, name=name, version=1, on_store_failure=on_store_failure)
        return cls(
            ruleset if identity is None else replace(ruleset, identity=read_identity(identity)),
            store=store,
            clock=clock or SystemClock(),
            namespace=namespace,
            base_dir=None,
            keyed=True,
            nodes=nodes,
            near=near,
        )

    # ------------------------------------------------------------------ deciding

    def hit(self, key: str, cost: int = 1) -> bool:
        """``check(key, cost).allowed``, without the description: the fastest call there is for a quota limiter."""
        return self.check(key, cost).allowed

    def limit(self, *, key: Key = None, cost: Cost = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator that runs a function, sync or async, only where its call is allowed; else it raises RateLimited.

        ``key``: a function of the call's arguments that gives the key (facts, for a limiter with rules), or a fixed key. None
        puts all calls of the function on one counter, named by module and qualified name. ``cost``: a number or a function
        of the arguments.
        """
        if self._live.keyed is None and not callable(key):
            raise ConfigurationError("key: a limiter with rules needs a function that gives the Facts of a call")
        return decorate(self, key, cost)

    # ------------------------------------------------------------------ operating

    def apply(self, rules: RuleSet | str) -> None:
        """Put other rules in service while traffic flows: a rule set, or for a quota limiter a quota.

        Each request is decided wholly by the old rules or wholly by the new ones. Counters survive a change of numbers.
        Raises ConfigurationError where the new rules cannot be served; the old ones stay then.
        """
        with self._lock:
            live = self._live
            ruleset = live.next_ruleset(rules)
            fresh = Live(
                ruleset,
                namespace=self._namespace,
                clock=self._clock,
                base_dir=self._base_dir,
                keyed=live.keyed is not None,
                matched=self.stats.matched,
                known=self.known,
            )
            if live.sets is not None:
                fresh.sets = SetPlanner(fresh.engine)
            # Fetched key sets and identity counts outlive the edit: no token is unknown until the next fetch.
            fresh.resolver.adopt(live.resolver)
            if self._recorder is not None:
                self._recorder.retire()
            fresh.record(self._recorder)
            self._live = fresh
            if self._near is not None:
                self._near.forget()
            self._quicken()
            self.stats.applies += 1

    def record(self, recorder: Recorder | None) -> None:
        """Have every decision from now on remembered by ``recorder``, which belongs to no other limiter; None: by nobody.

        Where one recorder follows another, or none, what the earlier one has not told can still be taken from it.
        Raises ConfigurationError for a recorder that is in use, also here.
        """
        with self._lock:
            if recorder is not None:
                recorder.attach(self.stats.offenders)
            before, self._recorder = self._recorder, recorder
            self._live.record(recorder)
            self._quicken()
            if before is not None:
                before.detach()

    @property
    def recorder(self) -> Recorder | None:
        """What remembers the decisions of this limiter; None: nothing does."""
        return self._recorder

    @property
    def enabled(self) -> bool:
        """Whether requests are decided at all."""
        return self._enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        with self._lock:
            self._enabled = bool(enabled)
            self._quicken()

    @property
    def lists(self) -> Lists:
        """Who passes uncharged and who is refused, whatever the rules say. Not for a quota limiter, which knows keys only."""
        return self.known.lists

    @property
    def subjects(self) -> SubjectTable:
        """Tiers and overrides of single subjects, beside those of the rule set. Not for a quota limiter, which knows keys only."""
        return self.known.subjects

    @property
    def version(self) -> int:
        """The version of the rules in service; of a quota limiter, 1 plus the number of quotas applied."""
        return self._live.version

    @property
    def ruleset(self) -> RuleSet:
        """The rules in service."""
        return self._live.ruleset

    @property
    def resolver(self) -> IdentityResolver:
        """How requests get their identity by the rules in service; another object after ``apply``."""
        return self._live.resolver

    @property
    def engine(self) -> Engine:
        """The compiled rules in service; another object after ``apply``."""
        return self._live.engine

    @property
    def planner(self) -> SetPlanner:
        """Plans requests of several sets of charges by the rules in service; another object after ``apply``.

        The first call compiles the rules for it; from then on ``apply`` does, and not the request that comes next.
        """
        live = self._live
        if live.sets is None:
            live.sets = SetPlanner(live.engine)
        return live.sets

    @property
    def offenders(self) -> Offenders:
        """The clients that were refused most, or would have been by shadow rules, until they are taken."""
        return self.stats.offenders

    @property
    def store(self) -> Store:
        """Where the counters live, as it was given; ``near`` may stand in front of it."""
        return self._given

    @property
    def clock(self) -> Clock:
        """What dates the counters of an in-process store."""
        return self._clock

    def close(self) -> None:
        """Release the store; every later decision finds it closed and is made by the rules' failure policies."""
        self._end_watch()
        self._store.close()

    async def aclose(self) -> None:
        """``close`` for coroutines: also the connections made in the running event loop are closed when it returns."""
        self._end_watch()
        await super().aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        live = self._live
        return f"<Limiter {len(live.ruleset.rules)} rules version={live.version} store={self._given!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Limiter cannot be pickled: its counters belong to this process. Make one in each process with "
            "from_file or from_quota; to count together they need a shared store"
        )

    # ------------------------------------------------------------------ inside

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def _quicken(self) -> None:
        """Shadow the method ``hit`` by a fast path of the store, where the rules and the store have one.

        The earlier fast path is retired: whoever kept a reference to it is from then on decided by the rules in force.
        """
        if self._hitter is not None:
            self._hitter.retire()
            if self._hits_told is not None:
                self._hits_told.unwatch_hits(self._hitter.passed)
            self._hitter = self._hits_told = None
            self.__dict__.pop("hit", None)
        keyed = self._live.keyed
        recorder = self._recorder
        quick = self._enabled and (recorder is None or not recorder.follows)
        if quick and keyed is not None and len(keyed.counters) == 1 and isinstance(self._store, HitStore):
            (counter,) = keyed.counters
            otherwise = partial(Limiter.hit, self)
            # After an outage a request must pass the local counters too, which are on the long way only.
            hitter = self._store.hitter if self._near is None else partial(self._near.hitter, gate=self._outage)
            self._hitter = hitter(
                counter,
                lambda name: counter.prefix + subject_of_key(name),
                otherwise,
                self._hit_refused(counter, keyed.version),
                None if recorder is None else partial(recorder.next_hits, keyed.cell),
            )
            if recorder is not None:
                recorder.watch_hits(self._hitter.passed, counter, keyed.version)
                self._hits_told = recorder
            self.__dict__["hit"] = self._hitter.hit

    def _hit_refused(self, counter: Counter, version: int) -> Callable[[str], None]:
        """What counts a refusal of the fast path."""
        stats, recorder, name = self.stats, self._recorder, counter.name
        never = not counter.spec.capacity
        outcome = Outcome.NEVER_FITS if never else Outcome.DENIED

        def refused(key: str) -> None:
            stats.count_refusal(name, outcome)
            if recorder is not None:
                recorder.hit_refused(counter, subject_of_key(key), version, fits_never=never)

        return refused
