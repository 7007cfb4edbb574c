from __future__ import annotations

import contextlib
import json
import signal
import socket
import sqlite3
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

RULES = "version: 1\nrules: [{name: login, per: [ip], quota: 5/minute}]\n"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sluicegate", *arguments], capture_output=True, text=True, timeout=90)


def test_a_service_lives_and_ends(start: Any, tmp_path: Path) -> None:
    """The first start makes a database only its owner reads, prints one token of an admin once, and keeps what it was told."""
    first = start()
    assert stat.S_IMODE((tmp_path / "data" / "control.db").stat().st_mode) == 0o600
    with httpx.Client(base_url=first.url, headers=bearer(first.token), timeout=60) as client:
        made = client.post("/v1/rules", json={"name": "login", "quota": "5/minute"})
        assert made.status_code == 201
        assert client.get("/readyz", headers={"Authorization": ""}).json() == {"status": "ready", "version": 1}
    assert first.stop() == 0
    second = start()
    assert "token" not in second.out.read_text()
    read = httpx.get(f"{second.url}/v1/rules/login", headers=bearer(first.token), timeout=60)
    assert read.json() == {"name": "login", "quota": "5/minute"}
    for printed in (first.err.read_text(), second.err.read_text()):
        assert first.token not in printed


@pytest.mark.measured
def test_a_long_poll_does_not_delay_the_end(start: Any) -> None:
    """SIGTERM ends a service at once though nodes wait in long polls, which get their answer."""
    control = start("--admin-token", "an-admin-token-chosen")
    node = run("tokens", "create", "n", "--role", "node", "--data", str(control.out.parents[1] / "data"))
    assert node.returncode == 0, node.stderr
    headers = bearer(node.stdout.strip())
    etag = httpx.get(f"{control.url}/v1/feed/revisions", headers=headers, timeout=60).headers["etag"]
    address = control.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=60) as poll:
        poll.sendall(
            f"GET /v1/feed/revisions HTTP/1.1\r\nHost: x\r\nAuthorization: {headers['Authorization']}\r\n"
            f"If-None-Match: {etag}\r\nPrefer: wait=50\r\n\r\n".encode()
        )
        metrics = f"{control.url}/metrics"
        until(lambda: "sluicegate_control_polls 1.0" in httpx.get(metrics, timeout=60).text, "no poll")
        begun = time.monotonic()
        control.process.send_signal(signal.SIGTERM)
        assert poll.recv(4096).startswith(b"HTTP/1.1 304")
    assert control.process.wait(60) == 0
    assert time.monotonic() - begun < 15


def test_a_file_owns_the_rules(start: Any, tmp_path: Path) -> None:
    """With --rules each edit of the file is a version by it, a bad one is told and changes nothing, and the API refuses others."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    control = start("--rules", str(file), "--admin-token", "an-admin-token-chosen")
    with httpx.Client(base_url=control.url, headers=bearer("an-admin-token-chosen"), timeout=60) as client:
        refused = client.post("/v1/rules", json={"name": "b", "quota": "1/s"})
        assert (refused.status_code, refused.json()["file"]) == (409, str(file))
        file.write_text(RULES.replace("5/minute", "50/minute"))
        until(lambda: client.get("/v1/rules/login").json()["quota"] == "50/minute", "the edit is not live")
        version = client.get("/v1/versions/2").json()["info"]
        assert (version["actor"], version["auth"]) == ("file:rules.yaml", "file")
        file.write_text(RULES.replace("5/minute", "5/fortnight"))
        until(lambda: "rules_rejected" in control.err.read_text(), "the bad edit is not told")
        assert "fortnight" in control.err.read_text()
        assert client.get("/v1/ruleset").headers["etag"] == '"r2"'


def test_a_service_takes_no_share_of_the_nodes(start: Any, servers: Any, require_program: Callable[[str], str]) -> None:
    """A service that asks the nodes' Redis for counters is none of the processes that divide a limit while the Redis is away."""
    redis = servers.empty("redis", require_program)
    service = start("--store", redis.url)
    with (
        httpx.Client(base_url=service.url, headers=bearer(service.token), timeout=60) as client,
        contextlib.closing(redis.client()) as counters,
    ):
        assert client.post("/v1/rules", json={"name": "login", "per": ["user"], "quota": "5/minute"}).status_code == 201
        asked = {"rule": "login", "subject": "user:8123"}
        until(lambda: client.post("/v1/counters/read", json=asked).status_code == 200, "the store is asked")
        assert counters.exists("rl1:nodes") == 0


def test_two_services_on_one_database(start: Any) -> None:
    """What is changed at one service on a database is read at the other, and wakes who waits there."""
    one, two = start("--admin-token", "an-admin-token-chosen"), start("--admin-token", "an-admin-token-chosen")
    headers = bearer("an-admin-token-chosen")
    assert (
        httpx.post(f"{one.url}/v1/rules", json={"name": "a", "quota": "1/s"}, headers=headers, timeout=60).status_code
        == 201
    )
    until(lambda: httpx.get(f"{two.url}/readyz", timeout=60).json()["version"] == 1, "the other does not see it")
    stale = httpx.put(
        f"{two.url}/v1/rules/a", json={"quota": "2/s"}, headers={**headers, "If-Match": '"r9"'}, timeout=30
    )
    assert stale.status_code == 412


def test_tls(start: Any, authority: Any) -> None:
    """With a certificate the service speaks TLS to who trusts it, and nothing else to anybody."""
    ca = authority("ca")
    certificate, key = ca.issue("server")
    control = start("--tls-cert", str(certificate), "--tls-key", str(key), "--admin-token", "an-admin-token-chosen")
    assert control.url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(ca.file))
    with httpx.Client(verify=trusting, base_url=control.url, timeout=60) as client:
        assert client.get("/v1/rules", headers=bearer("an-admin-token-chosen")).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(control.url, timeout=60)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        httpx.get(control.url.replace("https", "http"), timeout=60)


def test_mutual_tls(start: Any, authority: Any) -> None:
    """With a client CA a connection needs a certificate of it, and a request the token all the same."""
    ca, people, strangers = authority("ca"), authority("people"), authority("strangers")
    certificate, key = ca.issue("server")
    flags = ["--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(people.file)]
    control = start(*flags, "--admin-token", "an-admin-token-chosen")

    def status(issuer: Any = None, **options: Any) -> int:
        context = ssl.create_default_context(cafile=str(ca.file))
        if issuer is not None:
            context.load_cert_chain(*issuer.issue("client", **options))
        url = f"{control.url}/v1/rules"
        return httpx.get(url, verify=context, headers=bearer("an-admin-token-chosen"), timeout=60).status_code

    assert status(people) == 200
    for wrong in ({}, {"issuer": strangers}, {"issuer": people, "expired": True}):
        with pytest.raises(httpx.TransportError):
            status(**wrong)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--control", "0.0.0.0:0"], "--allow-plaintext"),
        (["--tls-cert", "{tmp}/no.pem"], "--tls-key is missing"),
        (["--tls-cert", "{tmp}/no.pem", "--tls-key", "{tmp}/no.key"], "no.pem"),
        (["--tls-cert", "{tmp}/text", "--tls-key", "{tmp}/text"], "not PEM"),
        (["--tls-cert", "{tmp}/a.pem", "--tls-key", "{tmp}/b.key"], "not that of the certificate"),
        (["--db", "mysql://x/y"], "--db: database"),
        (["--db", "sqlite:////nowhere/at/all/x.db"], "--db: the database '/nowhere/at/all/x.db' cannot be opened"),
        (["--db", "postgresql://u:secret-word@127.0.0.1:1/x"], "--db: the database does not answer"),
        (["--data", "{tmp}/text/data"], "--data: cannot write"),
        (["--rules", "{tmp}/text"], "text"),
        (["--rules", "{tmp}/missing.yaml"], "missing.yaml"),
        (["--push", "http://x"], "--push: "),
        (["--admin-token", "short"], "--admin-token: "),
        (["--control", "{taken}"], "the address is in use"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_it_cannot_start_with(start: Any, authority: Any, tmp_path: Path, flags: list[str], said: str) -> None:
    """A service that cannot start says why, in words that name the flag or the file, and exits 2; no secret is in them."""
    (tmp_path / "text").write_text("this is neither rules nor a certificate")
    ca = authority("ca")
    ca.issue("a")
    ca.issue("b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"{tmp}": str(tmp_path), "{taken}": f"127.0.0.1:{taken.getsockname()[1]}"}
        for name, value in values.items():
            flags = [flag.replace(name, value) for flag in flags]
        control = start(*flags, ready=False)
        assert control.process.wait(90) == 2
    told = control.err.read_text()
    assert said in told
    assert "Traceback" not in told
    assert "secret-word" not in told
    assert control.out.read_text() == ""


def test_the_first_token_is_not_lost(start: Any, tmp_path: Path) -> None:
    """A start that ends before anything is served has not made the first token: the next one shows it."""
    file = tmp_path / "rules.yaml"
    file.write_text("version: one")
    assert start("--rules", str(file), ready=False).process.wait(90) == 2
    file.write_text(RULES)
    control = start("--rules", str(file))
    assert httpx.get(f"{control.url}/v1/rules", headers=bearer(control.token), timeout=60).status_code == 200


def test_tables_of_a_newer_release(start: Any, tmp_path: Path) -> None:
    """Tables that a newer release made are left alone: one line, exit 2."""
    assert run("control", "upgrade", "--data", str(tmp_path / "data")).returncode == 0
    with sqlite3.connect(tmp_path / "data" / "control.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    control = start(ready=False)
    assert control.process.wait(90) == 2
    assert "newer release" in control.err.read_text()


def test_tokens_offline(start: Any, tmp_path: Path) -> None:
    """Tokens are made, listed and revoked in the database beside a running service, which heeds them at once."""
    control = start()
    data = ["--data", str(tmp_path / "data")]
    made = run("tokens", "create", "ci", "--role", "editor", "--expires", "90d", *data)
    assert made.returncode == 0, made.stderr
    headers = bearer(made.stdout.strip())
    assert httpx.get(f"{control.url}/v1/rules", headers=headers, timeout=60).status_code == 200
    listed = run("tokens", "list", "--json", *data).stdout
    assert made.stdout.strip() not in listed
    number = next(str(row["id"]) for row in json.loads(listed) if row["name"] == "ci")
    assert run("tokens", "revoke", number, *data).returncode == 0
    assert httpx.get(f"{control.url}/v1/rules", headers=headers, timeout=60).status_code == 401
    assert run("tokens", "revoke", number, *data).returncode == 2
    assert run("control", "adopt", "--reason", "restored", *data).returncode == 0
    rows = httpx.get(f"{control.url}/v1/audit", headers=bearer(control.token), timeout=60).json()["rows"]
    assert (rows[0]["action"], rows[0]["reason"]) == ("adopt", "restored")
    assert rows[0]["actor"].startswith("offline:")


def test_slow_heads_are_cut_off(start: Any) -> None:
    """A connection that never sends a whole head is closed; bytes that are no HTTP get a problem document."""
    control = start("--admin-token", "an-admin-token-chosen")
    address = control.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=60) as slow:
        slow.sendall(b"GET /livez HTTP/1.1\r\nHost")
        assert slow.recv(100) == b""
    with socket.create_connection((address[0], int(address[1])), timeout=60) as wrong:
        wrong.sendall(b"\x16\x03\x01\x00\x05hello\r\n\r\n")
        answer = wrong.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"application/problem+json" in answer


def test_a_unix_socket(start: Any, tmp_path: Path) -> None:
    """The service listens on a Unix socket, whose file it removes at its end."""
    path = tmp_path / "control.sock"
    control = start("--control", f"unix:{path}", "--admin-token", "an-admin-token-chosen")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=60) as client:
        assert client.get("/v1/rules", headers=bearer("an-admin-token-chosen")).status_code == 200
    assert control.stop() == 0
    assert not path.exists()
