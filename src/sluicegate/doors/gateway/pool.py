"""Connections to all upstreams: which upstream takes a request, and on which connection.

A request takes a kept connection at once, without a task. Otherwise it waits in its upstream's queue while a connection is
made; whichever comes free first goes to whoever has waited longest. A connection attempt that fails fails one
waiting request, which then tries an upstream it has not tried: nothing was sent, so any request may do so.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from sluicegate.doors.connections import Connections
from sluicegate.doors.gateway.settings import Settings
from sluicegate.doors.gateway.stats import Stats
from sluicegate.doors.gateway.target import Target
from sluicegate.doors.gateway.upstream import Seeker, Upstream, UpstreamConnection
from sluicegate.errors import ConfigurationError

__all__ = ["Pool"]


class Pool:
    """All upstreams of a gateway (at least one). Runs on the loop's thread only."""

    def __init__(self, targets: Sequence[Target], settings: Settings, stats: Stats, clients: Connections) -> None:
        if not targets:
            raise ConfigurationError("a gateway needs at least one upstream")
        tls = _tls_context(settings) if any(target.tls for target in targets) else None
        self.upstreams = tuple(Upstream(target, tls if target.tls else None) for target in targets)
        self._only = self.upstreams[0] if len(self.upstreams) == 1 else None
        self._settings = settings
        self._stats = stats
        self._clients = clients
        self._turn = 0
        self._attempts: set[asyncio.Task[None]] = set()
        self._by_load = settings.balance == "least_outstanding"

    def assign(self, seeker: Seeker) -> None:
        """Give a connection now or later, or say that there is none."""
        upstream = self._only
        if upstream is None or seeker.tried:
            upstream = self._pick(seeker.tried)
            if upstream is None:
                seeker.unserved("connect")
                return
        idle = upstream.idle
        while idle:
            connection = idle.pop()
            if connection.expires_s > self._clients.now_s and not connection.transport.is_closing():
                self._hand_over(connection, seeker)
                return
            connection.close()
        if len(upstream.waiting) >= self._settings.waiting_max:
            seeker.unserved("busy")
            return
        upstream.waiting.append(seeker)
        self._connect_if_wanted(upstream)

    def withdraw(self, seeker: Seeker) -> None:
        """Stop waiting."""
        for upstream in self.upstreams:
            if seeker in upstream.waiting:
                upstream.waiting.remove(seeker)

    def release(self, connection: UpstreamConnection, *, keep: bool, keep_alive_s: int | None = None) -> None:
        """A flow is done with its connection. ``keep``: it is clean and the upstream keeps it open.

        ``keep_alive_s``: how long the upstream says it does; we leave a second earlier.
        """
        upstream = connection.upstream
        connection.flow = None
        upstream.outstanding -= 1
        if not keep or not connection.alive or connection.transport.is_closing():
            connection.close()
            return
        connection.reused = True
        if upstream.waiting:
            self._hand_over(connection, upstream.waiting.popleft())
            return
        kept_s = self._settings.upstream_idle_timeout_s
        if keep_alive_s is not None:
            kept_s = min(kept_s, keep_alive_s - 1)
        connection.expires_s = self._clients.now_s + kept_s
        upstream.idle.append(connection)

    def forget_kept(self, upstream: Upstream) -> None:
        """Close all kept connections: one of them was found dead, so the others probably are."""
        while upstream.idle:
            upstream.idle.pop().close()

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection is closed, by whomever."""
        upstream = connection.upstream
        upstream.open -= 1
        if connection in upstream.idle:
            upstream.idle.remove(connection)
        self._connect_if_wanted(upstream)

    def crashed(self, error: Exception) -> None:
        """See ``upstream.Owner``."""
        self._stats.internal_errors += 1
        report = {"message": "gateway upstream connection failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(report)

    def failed(self, upstream: Upstream) -> None:
        """A request to this upstream failed for a reason of its own."""
        upstream.failures += 1
        limit = self._settings.eject_after
        if limit and upstream.failures >= limit and self._only is None:
            # One more failure after its return is enough to be left out again.
            upstream.failures = limit - 1
            upstream.ejected_until_s = self._clients.now_s + self._settings.eject_s
            self._stats.ejections += 1

    def expire(self, now_s: float) -> None:
        """Close kept connections that nobody used for long enough."""
        for upstream in self.upstreams:
            for connection in [kept for kept in upstream.idle if kept.expires_s <= now_s]:
                connection.close()

    @property
    def in_use(self) -> bool:
        """There are connections to upstreams, or attempts to make one."""
        return any(upstream.open or upstream.connecting for upstream in self.upstreams)

    async def close(self) -> None:
        """Close kept connections and give up attempts."""
        for attempt in tuple(self._attempts):
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        for upstream in self.upstreams:
            self.forget_kept(upstream)

    def _pick(self, tried: tuple[Upstream, ...]) -> Upstream | None:
        fresh = [upstream for upstream in self.upstreams if upstream not in tried]
        now_s = self._clients.now_s
        well = [upstream for upstream in fresh if upstream.ejected_until_s <= now_s] or fresh
        if not well:
            return None
        if not tried:
            self._turn += 1
        first = self._turn % len(well)
        if not self._by_load:
            return well[first]
        # Starting at a moving place spreads equal loads.
        return min(well[first:] + well[:first], key=lambda upstream: upstream.load)

    def _hand_over(self, connection: UpstreamConnection, seeker: Seeker) -> None:
        connection.upstream.outstanding += 1
        connection.flow = seeker
        seeker.attach(connection)

    def _connect_if_wanted(self, upstream: Upstream) -> None:
        room = self._settings.upstream_connections_max - upstream.open - upstream.connecting
        if room > 0 and len(upstream.waiting) > upstream.connecting:
            upstream.connecting += 1
            attempt = asyncio.get_running_loop().create_task(self._connect(upstream))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)

    async def _connect(self, upstream: Upstream) -> None:
        failure: str | None = None
        connection = UpstreamConnection(upstream, self)
        self._stats.upstream_connects += 1
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._open(upstream, connection)
        except TimeoutError:
            failure = "connect_timeout"
        except (OSError, UnicodeError):  # UnicodeError: a name that DNS cannot hold
            failure = "connect"
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            upstream.connecting -= 1
        if failure is None and not connection.alive:
            failure = "connect"  # closed by the other side at once
        if failure is None:
            if upstream.waiting:
                self._hand_over(connection, upstream.waiting.popleft())
            else:
                connection.expires_s = self._clients.now_s + self._settings.upstream_idle_timeout_s
                upstream.idle.append(connection)
        else:
            # An attempt that is given up may have made its connection just now; it would belong to nobody.
            connection.close()
            self._stats.count(self._stats.upstream_errors, failure)
            self.failed(upstream)
            if upstream.waiting:
                self._fail_over(upstream, upstream.waiting.popleft(), failure)
        self._connect_if_wanted(upstream)

    async def _open(self, upstream: Upstream, connection: UpstreamConnection) -> None:
        loop = asyncio.get_running_loop()
        target = upstream.target
        if target.path is not None:
            await loop.create_unix_connection(lambda: connection, target.path)
        else:
            name = target.host if upstream.tls is not None else None
            await loop.create_connection(
                lambda: connection, target.host, target.port, ssl=upstream.tls, server_hostname=name
            )

    def _fail_over(self, upstream: Upstream, seeker: Seeker, failure: str) -> None:
        seeker.tried = (*seeker.tried, upstream)
        if len(seeker.tried) < len(self.upstreams):
            self._stats.failovers += 1
            seeker.seek()
        else:
            seeker.unserved(failure)


def _tls_context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"tls_ca_file {settings.tls_ca_file!r} cannot be used: {error}") from error
    # HTTP/1.1 is what is spoken here; without this a server may choose HTTP/2.
    context.set_alpn_protocols(["http/1.1"])
    return context
