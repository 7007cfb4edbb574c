"""Proxies that ask before they forward: Envoy's ext_authz in HTTP mode, nginx's auth_request, and others.

    /authz/envoy/**   method and path are those of the request line; what the client sent stands behind ``/authz/envoy``
    /authz/nginx      method and path come in X-Original-Method and X-Original-URI, which the proxy sets
    /authz/forward    they come in X-Forwarded-Method and X-Forwarded-Uri, and the host in X-Forwarded-Host, as Caddy's forward_auth and
                      Traefik's ForwardAuth set them

The other fields are what the proxy passes on of its client's. Identity comes from them by the rules' settings, as for any peer: the proxy
is the peer, and what it says of its client counts where it is trusted. Nothing in a query or a field configures the door.

An answer that lets the request pass is 200. A refusal is what the client is to get: 429, or 503 for a rule that fails closed. nginx knows
two refusals only, 401 and 403, and takes everything else for a fault, so it is given a status of the operator's choice and the true
one in X-Sluicegate-Status. To it a request that cannot be decided (its path is too long) is a refusal as well: clients can make such
requests, and a proxy that is told to let pass what it gets no answer for would let them pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from sluicegate.clock import Clock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.faults import fault_reply
from sluicegate.doors.http.head import Subrequest
from sluicegate.doors.http.replies import store_down
from sluicegate.doors.http.respond import Reply, problem_reply
from sluicegate.doors.http.site import TOKEN_FIELD, Answer
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.problem import problem
from sluicegate.doors.refusals import Refusals, bad_request, too_many_held
from sluicegate.doors.refusals import Reply as Refusal
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter

__all__ = ["DENY_STATUSES", "ENVOY", "FORWARD", "NGINX", "Authz"]

ENVOY: Final = "/authz/envoy"
NGINX: Final = "/authz/nginx"
FORWARD: Final = "/authz/forward"

DENY_STATUSES: Final = (403, 401, 429)
"""What nginx may be told on a refusal: auth_request knows 403 and 401; programs of its own (Lua, njs) can do with 429."""

_METHOD: Final = b"x-original-method"
_URI: Final = b"x-original-uri"
_FORWARDED_METHOD: Final = b"x-forwarded-method"
_FORWARDED_URI: Final = b"x-forwarded-uri"
_FORWARDED_HOST: Final = b"x-forwarded-host"
_OWN: Final = frozenset((_METHOD, _URI, TOKEN_FIELD))
_OWN_FORWARDED: Final = frozenset((_FORWARDED_METHOD, _FORWARDED_URI, _FORWARDED_HOST, TOKEN_FIELD))

_Told: TypeAlias = Callable[[Refusal, str], Reply]
"""The answer to a refusal, given its rate headers."""


class Authz:
    """Handlers for ``Route.asking``. Every request is answered exactly once, within the store's deadline."""

    def __init__(
        self,
        limiter: Limiter,
        headers: RateHeaders,
        refusals: Refusals,
        stats: HttpStats,
        clock: Clock,
        *,
        nginx_deny_status: int = 403,
    ) -> None:
        self._limiter = limiter
        self._headers = headers
        self._refusals = refusals
        self._stats = stats
        self._clock = clock
        self._deny_status = nginx_deny_status

    def envoy(self, head: Subrequest, peer: str | None, _body: bytes, answer: Answer) -> None:
        """``/authz/envoy/**``."""
        self._ask(ENVOY, head, (head.method, head.path[len(ENVOY) :] or "/"), peer, answer, _as_it_is)

    def nginx(self, head: Subrequest, peer: str | None, _body: bytes, answer: Answer) -> None:
        """``/authz/nginx``."""
        asked = _asked(head, _METHOD, _URI)
        if asked is None:
            answer(_misused("X-Original-Method to $request_method and X-Original-URI to $request_uri"))
        else:
            self._ask(NGINX, head, asked, peer, answer, self._for_nginx)

    def forward(self, head: Subrequest, peer: str | None, _body: bytes, answer: Answer) -> None:
        """``/authz/forward``."""
        asked = _asked(head, _FORWARDED_METHOD, _FORWARDED_URI)
        if asked is None:
            answer(_misused("X-Forwarded-Method and X-Forwarded-Uri"))
        else:
            self._ask(FORWARD, head, asked, peer, answer, _as_it_is)

    def _ask(
        self, route: str, head: Subrequest, asked: tuple[str, str], peer: str | None, answer: Answer, told: _Told
    ) -> None:
        method, target = asked
        hosts, own = head.values(b"host"), _OWN
        if route == FORWARD:
            # Traefik's own Host is that of this server.
            hosts, own = head.values(_FORWARDED_HOST) or hosts, _OWN_FORWARDED
        try:
            facts = self._limiter.resolver.facts(
                method,
                # To a server a fragment is no part of the path, if it takes one at all.
                target.partition("#")[0],
                hosts[0].decode("latin-1") if hosts else None,
                [line for line in head.lines if line[0] not in own],
                peer,
            )
            self._limiter.submit(facts, partial(self._decided, route, answer, told))
        except InvalidRequest as error:
            self._stats.bad_requests["field"] += 1
            answer(told(bad_request(error), ""))
        except StoreError as error:
            answer(store_down(error))

    def _decided(self, route: str, answer: Answer, told: _Told, decision: Decision) -> None:
        try:
            reply = self._reply(decision, told)
        except Exception:  # noqa: BLE001 - a fault of ours must not leave the proxy without an answer
            reply = fault_reply(self._stats, route)
        answer(reply)

    def _reply(self, decision: Decision, told: _Told) -> Reply:
        if decision.allowed and decision.delay_us:
            # The proxy waits for an answer and for nothing else; a request is not held here.
            self._limiter.take_back(decision)
            decision = too_many_held(decision)
        said = self._refusals.told(decision)
        lines = self._headers.block(said, self._clock.now_us() if self._headers.needs_now else 0).decode("ascii")
        return (200, lines, b"") if said.allowed else told(self._refusals.reply(said), lines)

    def _for_nginx(self, refusal: Refusal, lines: str) -> Reply:
        status, lines, body = _as_it_is(refusal, lines)
        return self._deny_status, f"{lines}X-Sluicegate-Status: {status}\r\n", body


def _as_it_is(refusal: Refusal, lines: str) -> Reply:
    status, content_type, body = refusal
    return status, f"Content-Type: {content_type}\r\nCache-Control: no-store\r\n{lines}", body


def _asked(head: Subrequest, method_field: bytes, target_field: bytes) -> tuple[str, str] | None:
    """Method and target that a proxy has put into fields; None where it has not done so once each."""
    methods, targets = head.values(method_field), head.values(target_field)
    if len(methods) != 1 or len(targets) != 1 or not targets[0].startswith((b"/", b"*")):
        return None
    return methods[0].decode("latin-1"), targets[0].decode("latin-1")


def _misused(what: str) -> Reply:
    return problem_reply(400, problem(400, f"the proxy must set {what}, once each"))
