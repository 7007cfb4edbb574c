"""Key sets of token issuers, fetched beside the requests: once before the first one, then when needed or old.

A token signed by an unknown key asks for a refresh, since issuers change their keys; anybody can send such a token, so
refreshes keep a distance. A fetch that fails leaves the keys as they were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from sluicegate.app import logs
from sluicegate.bounds import JWKS_BYTES_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.rules.identity import IdentityResolver

__all__ = ["KeySets", "fetch"]

_LOOK_INTERVAL_S = 1.0
_DISTANCE_US = 30 * US_PER_S
"""Between two refreshes that unknown keys asked for."""
_AGE_MAX_US = 600 * US_PER_S
"""A key that an issuer withdrew is trusted for at most this long."""
_FETCH_TIMEOUT_S = 5.0


class KeySets:
    """Keeps the key sets of the rules in service fresh. ``resolver`` gives the resolver of now."""

    def __init__(self, resolver: Callable[[], IdentityResolver], clock: Clock, get: Callable[[str], bytes]) -> None:
        self._resolver = resolver
        self._clock = clock
        self._get = get
        self._refreshed: IdentityResolver | None = None
        self._refreshed_us = 0

    @property
    def due(self) -> bool:
        """Whether a refresh should be made now."""
        resolver = self._resolver()
        if not resolver.jwks_urls:
            return False
        if resolver is not self._refreshed:
            return True
        age_us = self._clock.monotonic_us() - self._refreshed_us
        return age_us >= _AGE_MAX_US or (resolver.refresh_wanted and age_us >= _DISTANCE_US)

    def refresh(self) -> None:
        """Fetch all key sets; blocks. What goes wrong is logged and leaves the keys of before."""
        resolver = self._resolver()
        self._refreshed, self._refreshed_us = resolver, self._clock.monotonic_us()
        failed = resolver.refresh(self._get)
        for url in resolver.jwks_urls:
            if url in failed:
                logs.event(logging.ERROR, "key_set_failed", url=url, error=failed[url])
            else:
                logs.event(logging.INFO, "key_set_refreshed", url=url)

    async def keep_fresh(self) -> None:
        """Refresh when due, for as long as the process lives."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            if self.due:
                await asyncio.to_thread(self.refresh)


def fetch(url: str) -> bytes:
    """The document at an http or https URL, within 5 s and ``JWKS_BYTES_MAX``; raises OSError. Redirects are not followed."""
    if not url.startswith(("https://", "http://")):
        raise URLError(f"{url!r} is not an http or https URL")
    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), ProxyHandler()):
        opener.add_handler(handler)
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "sluicegate"})  # noqa: S310 (checked above)
    try:
        with opener.open(request, timeout=_FETCH_TIMEOUT_S) as answer:
            if answer.status != 200:
                raise URLError(f"status {answer.status}")
            document = bytes(answer.read(JWKS_BYTES_MAX + 1))
    except HTTPException as error:
        raise URLError(f"not an HTTP answer: {error!r}") from error
    if len(document) > JWKS_BYTES_MAX:
        raise URLError(f"larger than {JWKS_BYTES_MAX} bytes")
    return document
