"""Who asks, and how often: bearer tokens, with wrong ones and changes limited by the product itself.

A token is looked at before any limit is: whoever has a valid one is let in, whatever others at the same address do. So a limit of
wrong tokens locks nobody out. It does not have to slow guessing down either, because nobody guesses 256 random bits; it keeps a
flood of wrong ones from looking like logins that nearly work.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import Final

from sluicegate.clock import US_PER_S, Clock
from sluicegate.control.errors import NotAuthenticated
from sluicegate.control.http.problems import Refused
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import UP_AUTH, Actor, Role
from sluicegate.control.service import RulesService
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.identity.addresses import IpKeyer

__all__ = ["Access", "LocalAccess"]

_KEYER: Final = IpKeyer(ipv6_prefix=64)
"""Who has one address of IPv6 has all of the network it is in."""

_QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"


class Access:
    """Tokens and limits of one interface. ``refused_logins`` counts wrong tokens, ``limited`` what was answered with 429, by limit."""

    def __init__(self, service: RulesService, settings: ApiSettings, clock: Clock) -> None:
        self.refused_logins = 0
        self.limited = {"failed_logins": 0, "writes": 0}
        self._service = service
        self._node_token = (settings.node_token or "").encode()
        self._logins = Limiter.from_quota(
            f"{settings.failed_logins_per_minute}/minute", clock=clock, name="failed_logins", namespace="control"
        )
        self._writes = Limiter.from_quota(
            f"{settings.writes_per_minute}/minute", clock=clock, name="writes", namespace="control"
        )

    async def identify(self, token: str, source_ip: str, request_id: str) -> Actor:
        """Who a token stands for. Raises NotAuthenticated; Refused (429) where too many wrong ones came from the address."""
        given = token.encode(errors="replace")
        if self._node_token and hmac.compare_digest(given, self._node_token):
            return Actor("nodes", UP_AUTH, source_ip, request_id, Role.NODE)
        try:
            return await self._service.tokens.verify(token, source_ip=source_ip, request_id=request_id)
        except NotAuthenticated:
            self.refused_logins += 1
            decision = self._logins.check(_network(source_ip))
            if not decision.allowed:
                raise self._too_many("failed_logins", decision, "too many wrong tokens from this address") from None
            raise

    def count_write(self, actor: Actor) -> None:
        """Before a change; raises Refused (429) where the token has made too many in the last minute."""
        decision = self._writes.check(actor.auth)
        if not decision.allowed:
            raise self._too_many("writes", decision, "too many changes with this token")

    def _too_many(self, limit: str, decision: Decision, what: str) -> Refused:
        self.limited[limit] += 1
        wait_s = max(1, _seconds_up(decision.retry_after_us or 0))
        headers = {
            "Retry-After": str(wait_s),
            "X-RateLimit-Limit": str(decision.limit or 0),
            "X-RateLimit-Remaining": str(decision.remaining or 0),
            "X-RateLimit-Reset": str(_seconds_up(decision.reset_after_us)),
        }
        return Refused(429, f"{what}; try again in {wait_s} s", headers=headers, kind=_QUOTA_EXCEEDED)


class LocalAccess(Access):
    """Everybody who asks is ``actor``, whatever the token, and nothing is limited: for who has the database itself."""

    def __init__(self, service: RulesService, settings: ApiSettings, clock: Clock, actor: Actor) -> None:
        super().__init__(service, settings, clock)
        self._actor = actor

    async def identify(self, token: str, source_ip: str, request_id: str) -> Actor:  # noqa: ARG002 - the base's signature
        return replace(self._actor, request_id=request_id)

    def count_write(self, actor: Actor) -> None:
        pass


def _network(address: str) -> str:
    """What a client is counted by: its address, of IPv6 its network; all clients of a Unix socket are one."""
    try:
        return _KEYER.key(address)
    except ValueError:
        return address or "local"


def _seconds_up(us: int) -> int:
    return -(-us // US_PER_S)
