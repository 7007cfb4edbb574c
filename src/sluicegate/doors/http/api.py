"""The routes of the decision API: translation only. Every decision is the limiter's.

The handlers here have their decisions at once; where counters are not in this process those of ``waiting`` take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from sluicegate.bounds import HTTP_DUE_MAX
from sluicegate.clock import Clock
from sluicegate.doors.grpc.service import Services
from sluicegate.doors.grpc.stats import GrpcStats
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.authz import ENVOY, FORWARD, NGINX, Authz
from sluicegate.doors.http.bodies import decision_id_of, items_of
from sluicegate.doors.http.counters import CountersApi
from sluicegate.doors.http.inline import InlineDecider
from sluicegate.doors.http.peers import Peers
from sluicegate.doors.http.policies import InlinePolicies
from sluicegate.doors.http.rate_limit_json import JSON_PATH, RateLimitJson
from sluicegate.doors.http.replies import Replies, store_down
from sluicegate.doors.http.respond import Reply, json_reply
from sluicegate.doors.http.ruleset import RulesetReplies
from sluicegate.doors.http.schema import Check, Checks, PlainCheck, as_check
from sluicegate.doors.http.scrapes import Scrapes
from sluicegate.doors.http.site import Route
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.http.templates import PlainBatch
from sluicegate.doors.http.waiting import WaitingApi
from sluicegate.doors.refusals import Refusals
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter

__all__ = ["DecisionApi"]

_NO_STORE: Final = "Cache-Control: no-store\r\n"


class DecisionApi:
    """Handlers by route, for a ``Site``.

    ``ready`` gives readiness and its JSON detail, ``metrics`` a content type and the exposition; both are called per
    request and must be quick. ``open_metrics``: the same as OpenMetrics, for who prefers that; None: it is not spoken. ``peers``: other processes that serve the same clients; None: there are none. ``namespace`` sets
    apart the inline counters of services that share a store. ``refusals``: what refused clients are told; None: by the rules, without
    jitter. ``nginx_deny_status``: what nginx is told on a refusal, one of ``DENY_STATUSES``. ``ruleset``: the rules in
    service as a document; None: the route is not there. It gives the same object while they are the same. ``operated``: counters can be
    read and changed, which must be for those only who have a token.
    """

    def __init__(
        self,
        limiter: Limiter,
        headers: RateHeaders,
        stats: HttpStats,
        clock: Clock,
        *,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        metrics: Callable[[], tuple[str, bytes]],
        open_metrics: Callable[[], tuple[str, bytes]] | None = None,
        peers: Peers | None = None,
        refusals: Refusals | None = None,
        namespace: str = "default",
        nginx_deny_status: int = 403,
        ruleset: Callable[[], bytes] | None = None,
        operated: bool = False,
    ) -> None:
        self._limiter = limiter
        self._headers = headers
        self._ruleset = None if ruleset is None else RulesetReplies(ruleset)
        self._ready = ready
        self._scrapes = Scrapes(metrics, open_metrics, peers)
        self._checks = Checks(InlinePolicies(headers, namespace))
        self._inline = InlineDecider(limiter)
        refusals = refusals or Refusals(limiter)
        self._replies = Replies(headers, stats, clock, refusals)
        self._json = RateLimitJson(
            lambda: Services(limiter, headers, clock, GrpcStats(), ready=ready, refusals=refusals, namespace=namespace),
            self._replies,
            stats,
        )
        self._counters = CountersApi(limiter, self._replies, stats) if operated else None
        self._authz = Authz(limiter, headers, refusals, stats, clock, nginx_deny_status=nginx_deny_status)
        self._waiting = (
            WaitingApi(limiter, headers, self._checks, self._replies, stats, peers) if limiter.waits else None
        )

    def routes(self, *, health_only: bool = False) -> dict[str, Route]:
        """The routes by path; ``health_only`` leaves out what decides."""
        waiting = self._waiting
        if waiting is None:
            deciding = (
                Route("/v1/check", {"POST": self.check}),
                Route("/v1/check/batch", {"POST": self.batch}),
                Route("/v1/refund", {"POST": self.refund}),
            )
        else:
            deciding = (
                # Answers to checks are small, so that some may wait for each other.
                Route("/v1/check", later={"POST": waiting.check}, beside=HTTP_DUE_MAX - 1),
                Route("/v1/check/batch", later={"POST": waiting.batch}),
                Route("/v1/refund", later={"POST": waiting.refund}),
            )
        proxies = (
            Route(JSON_PATH, later={"POST": self._json.decide}, beside=HTTP_DUE_MAX - 1),
            Route(ENVOY, asking=self._authz.envoy, beside=HTTP_DUE_MAX - 1),
            Route(NGINX, asking=self._authz.nginx, beside=HTTP_DUE_MAX - 1),
            Route(FORWARD, asking=self._authz.forward, beside=HTTP_DUE_MAX - 1),
        )
        counters = () if self._counters is None else self._counters.routes()
        documents = () if self._ruleset is None else (self._ruleset.route,)
        operating = (
            Route("/livez", {"GET": self.live}, guarded=False),
            Route("/readyz", {"GET": self.ready}, guarded=False),
            Route("/healthz", {"GET": self.ready}, guarded=False),
            self._scrapes.route,
        )
        return {
            route.path: route
            for route in (operating if health_only else deciding + counters + documents + proxies + operating)
        }

    # ------------------------------------------------------------------ checks

    def check(self, body: bytes) -> Reply:
        """``POST /v1/check``."""
        try:
            check = self._checks.memo.young.get(body) or self._checks.read(body)
            if isinstance(check, PlainCheck):
                if self._headers.delta_only and self._limiter.enabled:
                    return self._plain(check)
                check = as_check(check)
            return self._replies.decided(check, self._decide(check))
        except InvalidRequest as error:
            return self._replies.refused_request(error)
        except StoreError as error:
            return store_down(error)

    def _plain(self, check: PlainCheck) -> Reply:
        (admitted, remaining, wait_us), text = self._inline.one(check)
        lines = self._headers.delta_lines(check.policy.texts, remaining, wait_us, refused=not admitted)
        return json_reply(200 if admitted else 429, text.encode(), lines)

    def batch(self, body: bytes) -> Reply:
        """``POST /v1/check/batch``: each item as if it came alone, in order; one bad item spoils no other."""
        plain = self._checks.read_batch(body) if self._limiter.enabled else None
        if plain is not None:
            return self._replies.batch(self._many(plain))
        try:
            items = items_of(body)
        except InvalidRequest as error:
            return self._replies.refused_request(error)
        return self._replies.batch(self._mixed(items))

    def _many(self, checks: PlainBatch | list[PlainCheck]) -> list[str]:
        try:
            return self._inline.alike(checks) if isinstance(checks, PlainBatch) else self._inline.many(checks)
        except StoreError as error:
            count = len(checks.keys) if isinstance(checks, PlainBatch) else len(checks)
            return [store_down(error)[2].decode()] * count

    def _mixed(self, items: Iterable[bytes]) -> list[str]:
        """Any items in order; neighbours that are plain go to the store together."""
        texts: list[str] = []
        run: list[PlainCheck] = []
        enabled = self._limiter.enabled
        for raw in items:
            try:
                check = self._checks.read(raw)
                if isinstance(check, PlainCheck) and enabled:
                    run.append(check)
                    continue
            except InvalidRequest as error:
                text = self._replies.bad(error).decode()
                texts += self._many(run) if run else []
            else:
                texts += self._many(run) if run else []
                text = self._item(as_check(check) if isinstance(check, PlainCheck) else check)
            texts.append(text)
            run = []
        return texts + (self._many(run) if run else [])

    def _item(self, check: Check) -> str:
        try:
            return self._replies.item(check, self._decide(check))
        except InvalidRequest as error:
            return self._replies.bad(error).decode()
        except StoreError as error:
            return store_down(error)[2].decode()

    def _decide(self, check: Check) -> Decision:
        charge = check.charge
        if charge is not None:
            counter, subject, cost = charge
            return self._limiter.check_counter(counter, subject, cost, peek=check.peek, receipt=check.receipt)
        if check.facts is None:
            raise InvalidRequest("facts", "missing")
        return self._limiter.check(check.facts, check.cost, peek=check.peek, receipt=check.receipt)

    # ------------------------------------------------------------------ refunds

    def refund(self, body: bytes) -> Reply:
        """``POST /v1/refund``: give back what the decision with this id charged; good once."""
        try:
            return self._replies.refunded(self._limiter.refund(decision_id_of(body), strict=True))
        except InvalidRequest as error:
            return self._replies.refused_request(error)
        except StoreError as error:
            return store_down(error)

    # ------------------------------------------------------------------ operations

    def live(self, _body: bytes) -> Reply:
        """``GET /livez``: the process answers; nothing else is asked."""
        return json_reply(200, b'{"live":true}', _NO_STORE)

    def ready(self, _body: bytes) -> Reply:
        """``GET /readyz`` and ``/healthz``: whether traffic is wanted here, with the reasons."""
        ready, detail = self._ready()
        return json_reply(200 if ready else 503, msgspec.json.encode({"ready": ready, **detail}), _NO_STORE)
