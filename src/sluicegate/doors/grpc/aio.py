"""The other engine: the server of the gRPC project (grpcio), for where ngh2 has no wheel.

It gives the same answers by the same handlers, at a tenth or less of the speed. It keeps its own connections and its own time: of the settings it takes
``message_bytes_max``, ``streams_max``, ``idle_s``, ``age_s``, ``age_grace_s`` and ``token``; what it does to peers that mean harm is its own
affair. A call whose deadline is over is cancelled by grpcio, which tells its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import grpc

from sluicegate.bounds import GRPC_SERVICE_CHARS_MAX, GRPC_WATCHES_MAX
from sluicegate.doors.grpc.calls import INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAUTHENTICATED, Route
from sluicegate.doors.grpc.codec import NOT_SERVING, decode_health, encode_health
from sluicegate.doors.grpc.reflection import add_reflection
from sluicegate.doors.grpc.service import HEALTH_SERVICE
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.grpc.stats import GrpcStats
from sluicegate.doors.grpc.traced import traced
from sluicegate.doors.listen import Address, bind
from sluicegate.doors.tracing import Tracer, parent_of
from sluicegate.errors import ConfigurationError, InvalidRequest

__all__ = ["AioListener", "AioServer"]

_LOG: Final = logging.getLogger("sluicegate.grpc")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_MS_PER_S: Final = 1_000


class AioListener:
    """An open listener. ``close`` leaves it to the drain: grpcio stops accepting and begins to end its calls in one step."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def close(self) -> None:
        """Nothing; see the class."""


class _Call:
    """A call whose answer is waited for: ``(status code, message or words)``."""

    __slots__ = ("answered",)

    def __init__(self) -> None:
        self.answered: asyncio.Future[tuple[int, bytes | str]] = asyncio.get_running_loop().create_future()

    def answer(self, message: bytes) -> None:
        self._settle(0, message)

    def fail(self, code: int, detail: str) -> None:
        self._settle(code, detail)

    def _settle(self, code: int, content: bytes | str) -> None:
        # It is cancelled where the client has given up, or waited long enough.
        if not self.answered.done():
            self.answered.set_result((code, content))


class AioServer:
    """One server for one listener. ``health``: the serving status of a service by name. ``drain`` and ``len`` are those of a registry of connections, of which grpcio tells nothing."""

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        settings: GrpcSettings,
        stats: GrpcStats,
        health: Callable[[str], int],
        certificates: Callable[[], tuple[bytes, bytes, bytes | None]] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._health = health
        self._certificates = certificates
        self._watches = 0
        self._ending = asyncio.Event()
        self._routes = routes
        self._settings = settings
        self._stats = stats
        self._authorization = None if settings.token is None else f"Bearer {settings.token}"
        self._server: Any = None

    def __len__(self) -> int:
        return 0

    async def open(self, address: Address, *, reuse_port: bool = False) -> AioListener:
        """Listen; raises ConfigurationError that names the address and the reason."""
        if address.path is None:
            # grpcio says only that it failed; our own attempt says why, and finds a free port.
            with await bind(address, reuse_port=reuse_port) as probe:
                address = Address(address.host, probe.getsockname()[1])
        server = grpc.aio.server(options=self._options(reuse_port=reuse_port))
        server.add_generic_rpc_handlers(self._handlers())
        if self._authorization is None:
            # With a token the services are nobody's business who does not have it.
            add_reflection(server)
        try:
            if self._certificates is None:
                server.add_insecure_port(str(address))
            else:
                server.add_secure_port(str(address), _credentials(self._certificates))
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server
        return AioListener(address)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new calls, let those under way finish for ``timeout_s``, then cut them; how many were cut is not known: 0."""
        self._ending.set()
        if self._server is not None:
            await self._server.stop(timeout_s)
        return 0

    def _options(self, *, reuse_port: bool) -> list[tuple[str, int]]:
        settings = self._settings
        options = [
            ("grpc.so_reuseport", int(reuse_port)),
            ("grpc.max_receive_message_length", settings.message_bytes_max),
            ("grpc.max_concurrent_streams", settings.streams_max),
            ("grpc.max_connection_idle_ms", int(settings.idle_s * _MS_PER_S)),
        ]
        if settings.age_s:
            options.append(("grpc.max_connection_age_ms", int(settings.age_s * _MS_PER_S)))
            options.append(("grpc.max_connection_age_grace_ms", int(settings.age_grace_s * _MS_PER_S)))
        return options

    def _handlers(self) -> tuple[Any, ...]:
        services: dict[str, dict[str, Any]] = {}
        for path, route in self._routes.items():
            _, service, method = path.decode("ascii").split("/")
            serve: Callable[[bytes, Any], Awaitable[bytes]] = partial(self._serve, route)
            services.setdefault(service, {})[method] = grpc.unary_unary_rpc_method_handler(serve)
        services[HEALTH_SERVICE]["Watch"] = grpc.unary_stream_rpc_method_handler(self._watch)
        return tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items())

    async def _serve(self, route: Route, message: bytes, context: Any) -> bytes:
        call = _Call()
        if self._authorization is not None and route.guarded and not self._vouched(context):
            call.fail(UNAUTHENTICATED, "want the bearer token of this server")
        else:
            try:
                self._traced(route, context).handler(message, call)
            except InvalidRequest as error:
                call.fail(INVALID_ARGUMENT, str(error))
            except Exception:  # noqa: BLE001 - a fault of ours must not take other calls with it
                _LOG.exception("the handler of %s failed", route.name)
                self._stats.internal_errors += 1
                call.fail(INTERNAL, "a fault of the server; whether anything was charged is not known")
        try:
            code, content = await call.answered
        except asyncio.CancelledError:
            self._stats.cancelled += 1
            raise
        route.counts[code] = route.counts.get(code, 0) + 1
        if isinstance(content, str):
            await context.abort(_CODES[code], content)
        assert isinstance(content, bytes)
        return content

    async def _watch(self, message: bytes, context: Any) -> AsyncIterator[bytes]:
        """The status at once, and each one that it changes to; the last is NOT_SERVING, when the server ends."""
        counts = self._stats.calls["Watch"]
        try:
            service = decode_health(message)[:GRPC_SERVICE_CHARS_MAX]
        except InvalidRequest as error:
            counts[INVALID_ARGUMENT] = counts.get(INVALID_ARGUMENT, 0) + 1
            await context.abort(_CODES[INVALID_ARGUMENT], str(error))
        if self._watches >= GRPC_WATCHES_MAX:
            counts[RESOURCE_EXHAUSTED] = counts.get(RESOURCE_EXHAUSTED, 0) + 1
            await context.abort(_CODES[RESOURCE_EXHAUSTED], f"at most {GRPC_WATCHES_MAX} watches at once")
        self._watches += 1
        try:
            told = None
            while not self._ending.is_set():
                status = self._health(service)
                if status != told:
                    yield encode_health(status)
                    told = status
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.sweep_s):
                        await self._ending.wait()
            if told != NOT_SERVING:
                yield encode_health(NOT_SERVING)
        finally:
            self._watches -= 1
            counts[0] = counts.get(0, 0) + 1

    def _traced(self, route: Route, context: Any) -> Route:
        """The route, with a span for this call where its trace is sampled."""
        if self._tracer is None or not route.guarded:
            return route
        given = [str(value) for key, value in context.invocation_metadata() if key == "traceparent"]
        parent = parent_of(given[0].encode()) if len(given) == 1 else None
        return route if parent is None else traced(route, self._tracer, parent)

    def _vouched(self, context: Any) -> bool:
        given = "".join(str(value) for key, value in context.invocation_metadata() if key == "authorization")
        return hmac.compare_digest(given.encode(), (self._authorization or "").encode())


def _credentials(certificates: Callable[[], tuple[bytes, bytes, bytes | None]]) -> Any:
    """What grpcio needs for TLS; it asks at each handshake, so that a renewed certificate is used by the next one."""

    def now() -> Any:
        certificate, key, client_ca = certificates()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)

    _, _, client_ca = certificates()
    return grpc.dynamic_ssl_server_credentials(now(), now, require_client_authentication=client_ca is not None)
