"""The commands that run until they are told to stop: ``up``, ``serve`` and ``gateway``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from sluicegate.app.control.beside import is_control_installed
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.run import run
from sluicegate.app.settings import Settings, default_store
from sluicegate.cli.feed import feed_of, feed_options
from sluicegate.cli.near import near_of, near_options
from sluicegate.cli.options import AddressType, DurationType, ListenerType, all_of, config_option, flag, option
from sluicegate.cli.regions import region_options, regions_of
from sluicegate.cli.tls import general_tls_options, listener_tls_option, tls_of
from sluicegate.cli.traffic_options import analytics_of, analytics_options
from sluicegate.doors.gateway.settings import Settings as Proxying
from sluicegate.doors.grpc.door import ENGINES, is_installed
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.headers import DIALECTS
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.stores.redis.settings import SCHEMES

__all__ = ["gateway", "serve", "up"]

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

_ADDRESS = AddressType()
_DURATION = DurationType()
_PATH = click.Path(path_type=Path)
_PROXY_DEFAULTS = Proxying()
_API_DEFAULTS = HttpSettings()
_GRPC_DEFAULTS = GrpcSettings()

_PROXY_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("header-timeout", "header_timeout_s", "For a request's head to arrive; then 408."),
    ("idle-timeout", "idle_timeout_s", "For a kept client connection to send its next request; then it is closed."),
    ("body-timeout", "body_timeout_s", "Without a byte of a request body that is due; then 408."),
    ("send-timeout", "send_timeout_s", "Without the client taking any of its answer; then it is cut off."),
    ("connect-timeout", "connect_timeout_s", "For a connection to an upstream; then the next one, or 504."),
    ("response-timeout", "response_timeout_s", "For the head of the upstream's answer; then 504."),
    ("upstream-body-timeout", "upstream_body_timeout_s", "Between two pieces of the upstream's answer."),
    ("tunnel-idle-timeout", "tunnel_idle_timeout_s", "For a WebSocket without a byte in either direction."),
    ("upstream-idle-timeout", "upstream_idle_timeout_s", "For an unused connection to an upstream to be kept."),
    ("upstream-connections-max", "upstream_connections_max", "Connections to one upstream; requests beyond wait."),
    ("waiting-max", "waiting_max", "Requests waiting for a connection, per upstream; beyond it 503."),
    ("held-max", "held_max", "Requests held by leaky_bucket rules at once; beyond it 429."),
    ("connections-max", "connections_max", "Client connections at once; beyond it a new one is answered 503."),
    ("head-bytes-max", "head_bytes_max", "Bytes of one message's head, in either direction; beyond it 431 or 502."),
    ("request-line-bytes-max", "request_line_bytes_max", "Bytes of a request line; beyond it 414."),
    ("fields-max", "fields_max", "Header fields of one message; beyond it 431 or 502."),
    ("balance", "balance", "How an upstream is chosen: least_outstanding or round_robin."),
    ("eject-after", "eject_after", "Failures in a row after which an upstream is left out; 0: never."),
    ("eject", "eject_s", "How long a failing upstream is left out."),
    ("proto", "proto", "What X-Forwarded-Proto says: http, or https behind a balancer that ends TLS."),
    ("via", "via", "Name in the Via header of forwarded requests; empty: no header."),
    ("tls-ca-file", "tls_ca_file", "Certificates to trust for https upstreams; without it the system's."),
)
_PROXY_SWITCHES: tuple[tuple[str, str, str], ...] = (
    (
        "proxy-protocol",
        "proxy_protocol",
        "Expect a PROXY protocol header (v1, v2) from a trusted peer on every connection.",
    ),
    ("preserve-host", "preserve_host", "Forward the client's Host; otherwise the upstream's address."),
    ("strip-identity", "strip_identity", "Remove identity headers of the rules where the peer may not set them."),
    ("forwarded", "forwarded", "Add the Forwarded header (RFC 7239) beside X-Forwarded-For."),
)
_API_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("api-head-bytes-max", "head_bytes_max", "Bytes of a request's head; beyond it 431."),
    ("api-fields-max", "fields_max", "Header fields of a request; beyond it 431."),
    ("api-body-bytes-max", "body_bytes_max", "Bytes of a request's body; beyond it 413."),
    ("api-connections-max", "connections_max", "Connections at once; beyond it 503."),
    ("api-idle", "idle_s", "Silence allowed between two requests."),
    ("api-head", "head_s", "For a request's head to arrive; then 408."),
    ("api-body", "body_s", "For a request's body to arrive after its head; then 408."),
    ("api-write", "write_s", "For a client to take its answer; then it is cut off."),
    ("api-linger", "linger_s", "For what a client still sends after an early answer to be thrown away."),
)
_GRPC_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("grpc-message-bytes-max", "message_bytes_max", "Bytes of one gRPC message; beyond it RESOURCE_EXHAUSTED."),
    ("grpc-streams-max", "streams_max", "Calls under way on one gRPC connection; a stream beyond it is refused."),
    ("grpc-connections-max", "connections_max", "gRPC connections at once; beyond it a new one is told to go away."),
    ("grpc-preface", "preface_s", "For a gRPC client's first settings to arrive."),
    ("grpc-request", "request_s", "For a gRPC call to arrive in full; then DEADLINE_EXCEEDED."),
    ("grpc-write", "write_s", "Without a gRPC client taking any of its answers; then it is cut off."),
    ("grpc-idle", "idle_s", "Silence allowed on a gRPC connection."),
    ("grpc-age", "age_s", "How long a gRPC connection lives, a tenth more or less; 0: for ever."),
    ("grpc-age-grace", "age_grace_s", "For the last calls of a gRPC connection that has lived so long."),
    ("grpc-linger", "linger_s", "For what a gRPC client still sends after our last word to be thrown away."),
)


def _address(name: str, default: str | None, help: str) -> Callable[[Function], Function]:  # noqa: A002
    address = option(name, type=_ADDRESS, default=default, metavar="HOST:PORT", help=help)
    return all_of(address, listener_tls_option(name))


def _listener(name: str, default: str | None, help: str) -> Callable[[Function], Function]:  # noqa: A002
    address = option(name, type=ListenerType(), default=default, metavar="HOST:PORT|off", help=help)
    return all_of(address, listener_tls_option(name))


def _common_options() -> Callable[[Function], Function]:
    return all_of(
        config_option(),
        option(
            "rules",
            type=_PATH,
            metavar="FILE",
            help="Rule file, watched while it runs. Without it DATA/rules.yaml, written from the embedded rules if absent.",
        ),
        option(
            "store",
            metavar="URL",
            help="Where counters live: memory://, embedded:// (a Valkey that is started for it), redis://, rediss://, redis+unix://, "
            "redis+sentinel:// or redis+cluster://.  [default: memory://; with several workers embedded://]",
        ),
        option("workers", type=int, default=1, help="Processes that share the listeners. The memory store allows 1."),
        option(
            "nodes",
            type=int,
            default=1,
            help="Processes assumed at least, on all machines, by the local limits while the store is down; never fewer than workers.",
        ),
        option("data", type=_PATH, default=".sluicegate", metavar="DIR", help="Directory of what is kept."),
        option(
            "headers",
            default="x-ratelimit",
            metavar="DIALECTS",
            help=f"Rate headers: {', '.join(DIALECTS)}; or several.",
        ),
        option(
            "retry-jitter",
            type=_DURATION,
            default="0s",
            help="Tell refused clients to come back up to this many whole seconds later than they may, so that not all come at once.",
        ),
        *general_tls_options(),
        option("drain-delay", type=_DURATION, default="0s", help="After SIGTERM, time to go on while /readyz says no."),
        option(
            "drain-timeout", type=_DURATION, default="10s", help="Time for requests in flight to finish after that."
        ),
        option(
            "log-format",
            type=click.Choice(["auto", "json", "plain"]),
            default="auto",
            help="Lines on standard error; auto is plain on a terminal, else json.",
        ),
        flag("otel", help="Send traces and metrics by OTLP, as the variables OTEL_* say; needs the extra otel."),
        *near_options(),
        *region_options(),
        *feed_options(),
        *analytics_options(),
    )


def _setting(name: str, default: Any, field: str, help: str) -> Callable[[Any], Any]:  # noqa: A002
    """The flag of one field of a door's settings; its type follows from the default and the unit in the field's name."""
    if field.endswith("_s"):
        return option(name, type=_DURATION, default=f"{default:g}s", help=help)
    return option(name, type=int if isinstance(default, int) else str, default=default, help=help)


def _proxy_options() -> Callable[[Function], Function]:
    decorators = [_setting(name, getattr(_PROXY_DEFAULTS, field), field, text) for name, field, text in _PROXY_FLAGS]
    for name, field, text in _PROXY_SWITCHES:
        if getattr(_PROXY_DEFAULTS, field):
            decorators.append(option(f"{name}/--no-{name}", default=True, help=text))
        else:
            decorators.append(flag(name, help=text))
    return all_of(*decorators)


def _api_options() -> Callable[[Function], Function]:
    return all_of(
        _address("api", "127.0.0.1:8081", "Listener of the decision API, health and metrics."),
        option("api-token", metavar="TOKEN", help="Bearer token the API asks for; required off loopback."),
        option(
            "authz-nginx-deny-status",
            type=int,
            default=403,
            help="Status with which /authz/nginx refuses: 403 or 401 for auth_request, or 429.",
        ),
        *(_setting(name, getattr(_API_DEFAULTS, field), field, text) for name, field, text in _API_FLAGS),
    )


def _grpc_options() -> Callable[[Function], Function]:
    flags = [_setting(name, getattr(_GRPC_DEFAULTS, field), field, text) for name, field, text in _GRPC_FLAGS]
    engine = option(
        "grpc-engine",
        type=click.Choice(ENGINES),
        default="auto",
        help="What speaks HTTP/2 on the gRPC listener; auto is ngh2 where it is installed, else grpcio.",
    )
    return all_of(engine, *flags)


@click.command()
@_common_options()
@_address("gateway", "127.0.0.1:8080", "Listener of the gateway.")
@_api_options()
@_listener("grpc", "127.0.0.1:8082", "Listener of Envoy's rate limit service; off: none.")
@_grpc_options()
@_listener("control", "127.0.0.1:8090", "Listener of the rules service, a process of its own; off: none.")
@option(
    "admin-token",
    metavar="TOKEN",
    help="Becomes a token of an admin of the rules service. Without it one is made where there is none, and printed once.",
)
@option(
    "clickhouse",
    metavar="URL",
    help="ClickHouse in which the rules service looks traffic up: clickhouse://USER@HOST:PORT/DATABASE.  [default: DATA/analytics.db]",
)
@flag("allow-plaintext", help="--control off loopback without TLS: something in front of it speaks TLS.")
@option(
    "upstream",
    multiple=True,
    metavar="URL",
    help="Backend behind the gateway, may be repeated. Without it a demo backend.",
)
@_proxy_options()
def up(control: Address | None, **values: Any) -> int:
    """Run everything on one machine: gateway, decision API, rules service and, without --upstream, a demo backend."""
    ctx = click.get_current_context()
    asked = {name for name in ("grpc", "control") if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    missing = []
    if "grpc" not in asked and not is_installed():
        values["grpc"] = None
        missing.append("grpc")
    if control is not None and values["control_url"]:
        # The rules come from a service elsewhere; another one here would be asked by nobody.
        if "control" in asked:
            raise ConfigurationError("--control and --control-url exclude each other: the rules come from one service")
        control = None
    elif control is not None and not is_control_installed():
        if "control" in asked:
            raise MissingExtra("control", "the rules service")
        missing.append("control")
        control = None
    return run(_settings(values, missing, control=control, asked=asked))


def _control(address: Address, values: dict[str, Any]) -> ControlSettings:
    """The rules service of ``up``."""
    store = values["store"] or ""
    shared = store if store.partition("://")[0].lower() in SCHEMES else None
    return ControlSettings(
        listen=address,
        data=values["data"],
        rules=values["rules"],
        tls=tls_of({**values, "control": address}, ("control",)).get("control"),
        allow_plaintext=values["allow_plaintext"],
        push=shared,
        store=shared,
        node_api_token=values["api_token"],
        admin_token=values["admin_token"],
        drain_delay_s=values["drain_delay"],
        drain_timeout_s=values["drain_timeout"],
        log_format=values["log_format"],
        analytics=values["analytics"] != "off",
        clickhouse=values["clickhouse"] or None,
        analytics_secret_file=values["analytics_secret_file"],
    )


@click.command()
@_common_options()
@_api_options()
@_listener("grpc", None, "Listener of Envoy's rate limit service; without it there is none.")
@_grpc_options()
def serve(**values: Any) -> int:
    """Run the decision API only, over HTTP and, with --grpc, for Envoy."""
    return run(_settings(values))


@click.command()
@_common_options()
@_address("gateway", "127.0.0.1:8080", "Listener of the gateway.")
@option("upstream", multiple=True, required=True, metavar="URL", help="Backend behind the gateway; may be repeated.")
@_address("health", None, "Listener of /livez, /readyz, /healthz and /metrics; without it there is none.")
@_proxy_options()
def gateway(**values: Any) -> int:
    """Run the reverse proxy only: every request is decided before it reaches an upstream."""
    return run(_settings(values))


def _unused_keys() -> tuple[str, ...]:
    """What the configuration file holds for another of the commands that serve; the other commands' keys are no mistake."""
    ctx = click.get_current_context()
    flags = {each.name for command in (up, serve, gateway) for each in command.params}
    return tuple(key for key in ctx.meta.get("sluicegate.unused", ()) if key.replace("-", "_") in flags)


def _settings(
    values: dict[str, Any],
    not_installed: Sequence[str] = (),
    *,
    control: Address | None = None,
    asked: Collection[str] = ("grpc", "control"),
) -> Settings:
    """``control``: where the rules service of ``up`` listens. ``asked``: what was named, of the listeners that are left out otherwise where they cannot be had."""

    def made(kind: Callable[..., T], *tables: tuple[tuple[str, str, str], ...]) -> T:
        flags = {field: name for table in tables for name, field, _ in table}
        places = {field: name.replace("-", "_") for field, name in flags.items()}
        try:
            return kind(**{field: values[place] for field, place in places.items() if place in values})
        except ConfigurationError as error:
            # A setting is named by its field; who starts a server knows the flag.
            name = flags.get(str(error).partition(" ")[0])
            raise ConfigurationError(f"--{name}: {error}" if name else str(error)) from error

    tls = tls_of(values, ("gateway", "api", "grpc", "health"))
    if "gateway" in tls and click.get_current_context().get_parameter_source("proto") is ParameterSource.DEFAULT:
        values = {**values, "proto": "https"}
    return Settings(
        rules=values["rules"],
        feed=feed_of(values),
        # An empty one is a variable that was not set, and must not silently mean counters in memory.
        store=default_store(values["workers"]) if values["store"] is None else values["store"],
        workers=values["workers"],
        nodes=values["nodes"],
        near=near_of(values),
        regions=regions_of(values),
        data=values["data"],
        gateway=values.get("gateway"),
        api=values.get("api"),
        health=values.get("health"),
        grpc=values.get("grpc"),
        tls=tls,
        upstreams=tuple(values.get("upstream", ())),
        headers=values["headers"],
        retry_jitter_s=values["retry_jitter"],
        authz_nginx_deny_status=values.get("authz_nginx_deny_status", 403),
        proxying=made(Proxying, _PROXY_FLAGS, _PROXY_SWITCHES),
        serving=made(partial(HttpSettings, api_token=values.get("api_token")), _API_FLAGS),
        grpc_engine=values.get("grpc_engine", "auto"),
        calling=made(partial(GrpcSettings, token=values.get("api_token")), _GRPC_FLAGS),
        drain_delay_s=values["drain_delay"],
        drain_timeout_s=values["drain_timeout"],
        log_format=values["log_format"],
        otel=values["otel"],
        not_installed=tuple(not_installed),
        grpc_by_default="grpc" not in asked and "grpc" not in not_installed,
        control=None if control is None else _control(control, values),
        control_by_default=control is not None and "control" not in asked,
        node_name=values["node_name"],
        analytics=analytics_of(values),
        unused_keys=_unused_keys(),
    )
