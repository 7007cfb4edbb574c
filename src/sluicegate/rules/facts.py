"""What is known of one request."""

from __future__ import annotations

import msgspec

__all__ = ["Facts"]


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Everything a rule may look at. None means unknown, and an unknown dimension is never a shared key.

    Whoever builds it vouches for it: doors fill in only verified identity. ``path`` is the raw request
    target's path (a query is ignored); rules see its normal form. ``route`` is a route template such as
    ``/users/{id}``, where the framework knows it. ``headers`` has lower-case names. ``attrs`` holds custom dimensions.
    """

    method: str | None = None
    path: str | None = None
    route: str | None = None
    host: str | None = None
    ip: str | None = None
    user: str | None = None
    api_key: str | None = None
    tenant: str | None = None
    tier: str | None = None
    headers: dict[str, str] | None = None
    domain: str | None = None
    descriptors: dict[str, str] | None = None
    attrs: dict[str, str] | None = None

    @property
    def authenticated(self) -> bool:
        """True where a user, an API key or a tenant is known; the empty text is not."""
        return bool(self.user or self.api_key or self.tenant)
