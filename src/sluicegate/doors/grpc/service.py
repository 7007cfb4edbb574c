"""Envoy's rate limit service and the health service: messages in, decisions out.

Most requests do nothing but charge, and are decided by one call of the store. One that also looks (``hits_addend`` 0) or gives back
(``is_negative_hits``) takes steps: look first, since a look that refuses means that nothing is charged; then charge; then give back,
whatever the other descriptors came to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from sluicegate.algorithms.verdict import ALLOWED, Verdict
from sluicegate.bounds import GRPC_MEMO_BYTES_MAX, GRPC_MEMO_MAX, GRPC_SERVICE_CHARS_MAX
from sluicegate.clock import Clock
from sluicegate.doors.grpc.answers import Answers, Part
from sluicegate.doors.grpc.calls import INTERNAL, NOT_FOUND, UNAVAILABLE, Call, Route
from sluicegate.doors.grpc.codec import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    RateLimitRequest,
    decode_health,
    decode_request,
    encode_health,
)
from sluicegate.doors.grpc.prepared import CHARGE, GIVE_BACK, Overrides, Prepared, client_of, prepare
from sluicegate.doors.grpc.stats import GrpcStats
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.memo import Memo
from sluicegate.doors.refusals import Refusals, too_many_held
from sluicegate.errors import StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.listed import Listed
from sluicegate.limiter.plan import Plan
from sluicegate.limiter.sets import PlannedSets
from sluicegate.rules.facts import Facts

__all__ = ["HEALTH_SERVICE", "RATE_LIMIT_SERVICE", "Services"]

RATE_LIMIT_SERVICE: Final = "envoy.service.ratelimit.v3.RateLimitService"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"

_HEALTH_NAMES: Final = frozenset(("", RATE_LIMIT_SERVICE, "ratelimit"))
"""What a health check may ask about; the last is what envoyproxy/ratelimit calls itself."""

_OUT_OF_REACH: Final = "the counters that decide this request are out of reach, and a rule fails closed"

_LOG: Final = logging.getLogger("sluicegate.grpc")


class _Known:
    """A request message that was read, with the charges it comes to by the rules that were in service when it was last used.

    ``client``: who is looked up in the lists; not made before there are any.
    """

    __slots__ = ("_client", "prepared", "request")

    def __init__(self, request: RateLimitRequest) -> None:
        self.request = request
        self.prepared: Prepared | None = None
        self._client: Facts | None = None

    @property
    def client(self) -> Facts:
        if self._client is None:
            self._client = client_of(self.request)
        return self._client


class Services:
    """The methods of the door. ``routes``: by path, as bytes.

    ``ready``: whether new requests are welcome, as ``/readyz`` says. ``refusals``: what refused clients are told; None: by the rules. A refusal by a rule that fails closed is UNAVAILABLE, so that the failure mode
    of the proxy decides; nothing else that the store does is an error.
    """

    def __init__(
        self,
        limiter: Limiter,
        headers: RateHeaders,
        clock: Clock,
        stats: GrpcStats,
        *,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        refusals: Refusals | None = None,
        namespace: str = "default",
    ) -> None:
        self._limiter = limiter
        self._ready = ready
        self._stats = stats
        self._answers = Answers(headers, clock, refusals or Refusals(limiter))
        self._overrides = Overrides(namespace)
        # Compiled now, and not with the first request.
        _ = limiter.planner
        self._memo: Memo[_Known] = Memo(GRPC_MEMO_MAX, GRPC_MEMO_BYTES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        calls = stats.calls
        self.routes: dict[bytes, Route] = {
            f"/{RATE_LIMIT_SERVICE}/ShouldRateLimit".encode(): Route(
                "ShouldRateLimit", self.should_rate_limit, calls["ShouldRateLimit"], True
            ),
            f"/{HEALTH_SERVICE}/Check".encode(): Route("Check", self.check_health, calls["Check"], False),
        }

    # ------------------------------------------------------------------ methods

    def should_rate_limit(self, message: bytes, call: Call) -> None:
        """Decide one RateLimitRequest; raises InvalidRequest for one that cannot be decided, and then nothing is charged."""
        known = self._memo.young.get(message) or self._memo.recall(message)
        if known is None:
            known = _Known(decode_request(message))
            self._memo.remember(message, known)
        prepared = known.prepared
        limiter = self._limiter
        if limiter.lists.active:
            listed = limiter.lists.find(known.client)
            if listed is not None:
                self._decide_listed(known.request, listed, call)
                return
        planner = limiter.planner
        if prepared is None or prepared.planner is not planner:
            prepared = known.prepared = prepare(known.request, planner, self._overrides)
        charge = prepared.charge
        if not prepared.usual or charge is None:
            self._begin_steps(prepared, call)
        elif limiter.waits:
            limiter.submit_plan(charge.plan, partial(self._arrived, charge, call))
        else:
            self._decided(charge, call, limiter.check_plan(charge.plan))

    def check_health(self, message: bytes, call: Call) -> None:
        """The standard health check; an unknown service is NOT_FOUND."""
        service = decode_health(message)
        status = self.health(service)
        if status == SERVICE_UNKNOWN:
            call.fail(NOT_FOUND, f"no such service: {service[:GRPC_SERVICE_CHARS_MAX]!r}")
            return
        call.answer(encode_health(status))

    def health(self, service: str) -> int:
        """The serving status of a service, as the health protocol numbers it."""
        if service not in _HEALTH_NAMES:
            return SERVICE_UNKNOWN
        return SERVING if self._ready()[0] else NOT_SERVING

    # ------------------------------------------------------------------ inside

    def _arrived(self, planned: PlannedSets, call: Call, decision: Decision) -> None:
        """``_decided``, called by the store: what is raised here would reach nobody who knows of the call."""
        try:
            self._decided(planned, call, decision)
        except Exception:  # noqa: BLE001 - a fault of ours must not leave the proxy without an answer
            self._fail_for_fault(call)

    def _decided(self, planned: PlannedSets, call: Call, decision: Decision) -> None:
        if decision.allowed:
            message = self._answers.passed(decision, planned)
            if message is not None:
                call.answer(message)
                return
            if decision.delay_us:
                decision = self._not_held(decision)
        elif decision.refusal == "store":
            call.fail(UNAVAILABLE, _OUT_OF_REACH)
            return
        call.answer(self._answers.encode(decision, planned))

    def _decide_listed(self, request: RateLimitRequest, listed: Listed, call: Call) -> None:
        """Answer for a client on a list: all descriptors alike, whatever they ask for, and nothing is charged or given back."""
        plan = Plan([], None, self._limiter.version, (), listed)
        decision = self._limiter.check_plan(plan)
        count = len(request.descriptors)
        self._decided(PlannedSets(plan, ((),) * count, (not decision.allowed,) * count), call, decision)

    def _not_held(self, decision: Decision) -> Decision:
        """A leaky bucket wants the request to wait, which nobody here can make it do: refused, and its place given back."""
        self._limiter.take_back(decision)
        return too_many_held(decision)

    def _begin_steps(self, prepared: Prepared, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(prepared, call))
        # A loop holds its tasks weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, prepared: Prepared, call: Call) -> None:
        try:
            await self._steps(prepared, call)
        except StoreError:
            call.fail(UNAVAILABLE, "the store failed while hits were given back; whether they were is not known")
        except Exception:  # noqa: BLE001 - a fault of ours must not leave the proxy without an answer
            self._fail_for_fault(call)

    def _fail_for_fault(self, call: Call) -> None:
        """Log, count and tell of the exception that is being handled."""
        _LOG.exception("a rate limit request failed")
        self._stats.internal_errors += 1
        call.fail(INTERNAL, "a fault of the server; whether anything was charged is not known")

    async def _steps(self, prepared: Prepared, call: Call) -> None:
        look, charge = prepared.look, prepared.charge
        looked = None if look is None else await self._decision(look.plan, peek=True)
        charged = None
        if charge is not None:
            charged = await self._decision(charge.plan, peek=looked is not None and not looked.allowed)
            if charged.allowed and charged.delay_us:
                charged = self._not_held(charged)
        returned: list[tuple[Verdict, ...]] = []
        for charges in prepared.give_back:
            returned.append(await self._limiter.agive_back(charges) if charges else ())
        refused = [each for each in (looked, charged) if each is not None and not each.allowed]
        if any(each.refusal == "store" for each in refused):
            call.fail(UNAVAILABLE, _OUT_OF_REACH)
            return
        parts = []
        for kind, place in prepared.layout:
            if kind == GIVE_BACK:
                counters = [counter for counter, _, _ in prepared.give_back[place]]
                # A counter that is still used up refuses others, not the request that gives back.
                parts.append(Part(counters, [each._replace(outcome=ALLOWED) for each in returned[place]], False))
                continue
            decision, planned = (charged, charge) if kind == CHARGE else (looked, look)
            assert decision is not None
            assert planned is not None
            parts.append(_part(decision, planned, place))
        told = refused[0] if refused else charged or looked
        call.answer(self._answers.encode_parts(parts, told, over=bool(refused)))

    async def _decision(self, plan: Plan, *, peek: bool) -> Decision:
        limiter = self._limiter
        if not limiter.waits:
            return limiter.check_plan(plan, peek=peek)
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        limiter.submit_plan(plan, decided.set_result, peek=peek)
        return await decided


def _part(decision: Decision, planned: PlannedSets, place: int) -> Part:
    verdicts = decision.summary.verdicts
    places = planned.places[place] if verdicts else ()
    return Part(
        [planned.plan.charges[each][0] for each in places],
        [verdicts[each] for each in places],
        planned.refused[place],
    )
