"""Every listener behind TLS: real servers, real handshakes."""

from __future__ import annotations

import re
import socket
import ssl
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

HEALTH = "/grpc.health.v1.Health/Check"
WAIT_S = 60.0


def flags(pair: tuple[Path, Path], client_ca: Path | None = None) -> list[str]:
    """The flags of all listeners."""
    found = ["--tls-cert", str(pair[0]), "--tls-key", str(pair[1])]
    return found if client_ca is None else [*found, "--tls-client-ca", str(client_ca)]


def ready(url: str, context: ssl.SSLContext) -> dict[str, Any]:
    with httpx.Client(verify=context, timeout=60) as client:
        answer = client.get(f"{url}/readyz")
        assert answer.status_code == 200
        return dict(answer.json())


def shaken(url: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection to a listener, its handshake done."""
    host, _, port = url.partition("://")[2].rpartition(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=60), server_hostname=host)


def serial(url: str, context: ssl.SSLContext) -> str:
    """Of the certificate that a new connection is shown."""
    with shaken(url, context) as connection:
        return str(connection.getpeercert()["serialNumber"])  # type: ignore[index]


def test_the_api(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """The API answers over TLS, says so where it is told of, and gives nothing to who does not speak TLS."""
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", *flags(authority.issue("server")))
    url = server.url("api")
    assert url.startswith("https://127.0.0.1:")
    assert ready(url, authority.trusting())["listeners"]["api"] == url
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url.replace("https", "http") + "/readyz", timeout=60)
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(url + "/readyz", timeout=60)
    assert server.stop() == 0
    assert not [event for event in server.events() if event["level"] == "error"]


def test_old_versions_of_tls_are_refused(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """TLS 1.1 finds no listener; 1.2 and 1.3 do, and HTTP/1.1 is agreed upon."""
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", *flags(authority.issue("server")))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.trusting()
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with shaken(server.url("api"), context) as connection:
            assert connection.version() == version.name.replace("_", ".")
            assert connection.selected_alpn_protocol() == "http/1.1"
    old = authority.trusting()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        # That these versions are out of date is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        shaken(server.url("api"), old)


def test_clients_show_certificates(
    start: Callable[..., Any], rules: Path, authority: Any, other_authority: Any
) -> None:
    """With authorities of clients, who has no certificate of one of them is not answered."""
    arguments = flags(authority.issue("server"), authority.path)
    url = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", *arguments).url("api")
    assert ready(url, authority.trusting(authority.issue("client")))["ready"]
    for client in (None, other_authority.issue("stranger"), authority.issue("late", (-30, -1))):
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            ready(url, authority.trusting(client))


def test_one_listener_differs(start: Callable[..., Any], rules: Path, authority: Any, tmp_path: Path) -> None:
    """A listener's own flag goes before the general ones, and a Unix socket has TLS only by its own."""
    upstream = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0")
    server = start(
        "gateway", "--rules", str(rules), "--gateway", "127.0.0.1:0", "--health", f"unix:{tmp_path}/health",
        "--upstream", upstream.url("api"), *flags(authority.issue("server")), "--gateway-tls", f"client-ca={authority.path}",
    )  # fmt: skip
    gateway = server.url("gateway")
    assert ready(gateway, authority.trusting(authority.issue("client")))["ready"]
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        ready(gateway, authority.trusting())
    with httpx.Client(transport=httpx.HTTPTransport(uds=f"{tmp_path}/health"), timeout=60) as client:
        metrics = client.get("http://gateway/metrics").text
    assert 'sluicegate_tls_files_ok{listener="gateway"} 1.0' in metrics
    assert 'sluicegate_tls_handshakes_total{listener="gateway",outcome="made"}' in metrics
    assert "sluicegate_tls_expiry_timestamp_seconds" in metrics


def test_off_for_one_listener(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """``off`` leaves one listener without TLS."""
    server = start(
        "up", "--rules", str(rules), "--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "off",
        *flags(authority.issue("server")), "--api-tls", "off",
    )  # fmt: skip
    assert server.url("api").startswith("http://")
    assert httpx.get(server.url("api") + "/readyz", timeout=60).status_code == 200
    with httpx.Client(verify=authority.trusting(), timeout=60) as client:
        assert client.get(server.url("gateway") + "/_demo/count").json() == {"count": 0}


def test_the_gateway_says_how_it_was_asked(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """A gateway that ends TLS tells its upstream so."""
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        server = start(
            "gateway", "--rules", str(rules), "--gateway", "127.0.0.1:0",
            "--upstream", f"http://127.0.0.1:{upstream.getsockname()[1]}", *flags(authority.issue("server")),
        )  # fmt: skip
        with shaken(server.url("gateway"), authority.trusting()) as client:
            client.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            upstream.settimeout(10)
            connection, _ = upstream.accept()
            with connection:
                head = connection.recv(65_536).lower()
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n" + b"x" * 1_000_000
                )
            received = b""
            while piece := client.recv(65_536):
                received += piece
    assert b"x-forwarded-proto: https\r\n" in head
    assert received.endswith(b"x" * 1_000_000)


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
def test_grpc(start: Callable[..., Any], rules: Path, authority: Any, engine: str) -> None:
    """Both engines of the gRPC listener speak TLS, and ask clients for certificates where that is wanted."""
    pair = authority.issue("server")
    server = start(
        "serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grpc-engine", engine,
        *flags(pair, authority.path), "--api-tls", "client-ca=",
    )  # fmt: skip
    assert ready(server.url("api"), authority.trusting())["ready"]
    certificate, key = authority.issue("client")
    target = server.url("grpc").removeprefix("https://")
    known = grpc.ssl_channel_credentials(authority.path.read_bytes(), key.read_bytes(), certificate.read_bytes())
    with grpc.secure_channel(target, known) as channel:
        assert channel.unary_unary(HEALTH)(b"", timeout=60) == b"\x08\x01"
    unknown = grpc.ssl_channel_credentials(authority.path.read_bytes())
    with grpc.secure_channel(target, unknown) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(HEALTH)(b"", timeout=60)
    if engine == "ngh2":
        context = authority.trusting((certificate, key))
        context.set_alpn_protocols(["http/1.1", "h2"])
        with shaken(server.url("grpc"), context) as connection:
            assert connection.selected_alpn_protocol() == "h2"


def test_a_renewed_certificate_needs_no_restart(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """New connections get the new certificate, while one that is open goes on with the old; a bad renewal is told and not taken."""
    certificate, key = authority.issue("server")
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", *flags((certificate, key)))
    url, context = server.url("api"), authority.trusting()
    with httpx.Client(verify=context, timeout=60) as kept:
        assert kept.get(f"{url}/livez").status_code == 200
        before = serial(url, context)
        authority.issue("server")
        _until(lambda: serial(url, context) != before, "the new certificate is shown")
        assert kept.get(f"{url}/livez").status_code == 200
    now = serial(url, context)
    key.write_text("nothing")
    _until(lambda: [event for event in server.events() if event["event"] == "tls_rejected"], "the bad renewal is told")
    assert serial(url, context) == now
    assert 'sluicegate_tls_files_ok{listener="api"} 0.0' in httpx.get(f"{url}/metrics", verify=context, timeout=60).text


def test_several_workers(
    start: Callable[..., Any], rules: Path, authority: Any, require_program: Callable[[str], str]
) -> None:
    """Workers share a listener with TLS, and a scrape of one finds the others."""
    server = start(
        "serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--workers", "2", *flags(authority.issue("server"))
    )
    url = server.url("api")
    with httpx.Client(verify=authority.trusting(), timeout=60) as client:
        metrics = client.get(f"{url}/metrics").text
        assert (
            client.post(
                f"{url}/v1/check", json={"facts": {"method": "GET", "path": "/", "ip": "192.0.2.1"}}
            ).status_code
            == 200
        )
    assert metrics.count("sluicegate_tls_files_ok{") == 2
    assert server.stop() == 0


@pytest.mark.measured
def test_a_slow_handshake_ends(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """A client that says nothing is cut off, and is seen in the metrics until then; meanwhile others are served."""
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", *flags(authority.issue("server")))
    url, context = server.url("api"), authority.trusting()
    host, _, port = url.removeprefix("https://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as silent:
        metrics = httpx.get(f"{url}/metrics", verify=context, timeout=60).text
        # The scrape's own may be counted still.
        assert re.search(r'sluicegate_tls_handshakes_now\{listener="api"\} [12]\.0', metrics)
        begun = time.monotonic()
        assert silent.recv(1) == b""
        assert time.monotonic() - begun < 15
    assert 'outcome="failed"} 1.0' in httpx.get(f"{url}/metrics", verify=context, timeout=60).text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tls-cert", "{cert}"], "--tls-key is missing: TLS needs a certificate and its key"),
        (["--tls-key", "{key}"], "--tls-cert is missing: TLS needs a certificate and its key"),
        (["--api-tls", "cert={cert}"], "--api-tls: --tls-key is missing"),
        (["--api-tls", "certificate={cert}"], "want off, or cert=FILE,key=FILE,client-ca=FILE"),
        (["--api-tls", "key=a,key=b"], "want off, or cert=FILE,key=FILE,client-ca=FILE"),
        (["--tls-cert", "{cert}", "--tls-key", "{other}"], "TLS of --api: the certificate"),
        (["--tls-cert", "{old}", "--tls-key", "{old_key}"], "has expired: it was valid until"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", "{key}"], "cannot read '/nowhere.pem': No such file or directory"),
    ],
)
def test_what_cannot_be_used_ends_the_start(
    start: Callable[..., Any], rules: Path, authority: Any, arguments: list[str], says: str
) -> None:
    """Files and flags that cannot be used are one line, and exit status 2."""
    cert, key = authority.issue("server")
    old, old_key = authority.issue("old", (-9, -1))
    _, other = authority.issue("other")
    given = [each.format(cert=cert, key=key, other=other, old=old, old_key=old_key) for each in arguments]
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", *given, ready=False)
    assert server.process.wait(60) == 2
    lines = server.err.read_text().splitlines()
    assert says in lines[-1]
    assert len([line for line in lines if line.startswith(("error", "Error", "sluicegate"))]) == 1, lines


def test_a_proxy_header_would_come_before_the_handshake(start: Callable[..., Any], rules: Path, authority: Any) -> None:
    """The gateway does not start with both TLS and the PROXY protocol."""
    server = start(
        "gateway", "--rules", str(rules), "--upstream", "http://127.0.0.1:9", "--proxy-protocol",
        *flags(authority.issue("server")), ready=False,
    )  # fmt: skip
    assert server.process.wait(60) == 2
    assert "--proxy-protocol is not for a gateway with TLS" in server.err.read_text()


def test_flags_from_the_file(start: Callable[..., Any], rules: Path, authority: Any, tmp_path: Path) -> None:
    """The configuration file holds the same flags, where a bare ``off`` is no TLS."""
    cert, key = authority.issue("server")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"tls-cert: {cert}\ntls-key: {key}\nrules: {rules}\ngrpc: 127.0.0.1:0\napi-tls: off\napi: 127.0.0.1:0\n"
    )
    server = start("serve", "--config", str(config))
    assert server.url("api").startswith("http://")
    assert server.url("grpc").startswith("https://")


def _until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not in {WAIT_S:g} s: {what}"
        time.sleep(0.1)
