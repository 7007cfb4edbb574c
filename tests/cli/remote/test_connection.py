"""How commands find a rules service, and what they say where they do not."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LINE = "sluicegate: "


@contextmanager
def answering(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives every connection one answer, or none, and what it was sent."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                heard.append(connection.recv(65_536))
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in kept:
            connection.close()


def failed(ran: Any, *, secret: str = "") -> str:
    """What a command said that ended with 2, in one line, without a secret."""
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    if secret:
        assert secret not in ran.err
    return str(ran.err.removeprefix(LINE).rstrip("\n"))


def test_nobody_is_asked_without_being_named(command: Any, tmp_path: Path) -> None:
    """Without a service, and without a database here, a command says how to name one, and makes none."""
    assert failed(command("pause")).startswith("there is no rules service in '.sluicegate': name one with --server")
    assert "both" in failed(command("pause", "--server", "http://127.0.0.1:1", "--data", "x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://a", "is not http://HOST:PORT, https://HOST:PORT or unix:PATH"),
        ("http://", "is not http://HOST:PORT"),
        ("http://u:p@127.0.0.1", "is not http://HOST:PORT"),
        ("http://127.0.0.1/?x=1", "is not http://HOST:PORT"),
        ("http://[::1", "is no URL"),
        ("http://example.org:8090", "would get the token in the clear"),
        ("unix:/nowhere/control.sock", "cannot reach the rules service at unix:/nowhere/control.sock: No such file"),
        ("http://127.0.0.1:1", "cannot reach the rules service at http://127.0.0.1:1: Connection refused"),
    ],
)
def test_what_cannot_be_asked_is_one_line(command: Any, url: str, expected: str) -> None:
    """A URL that is none, and a service that is not there, are one line that names it, without the token."""
    assert expected in failed(command("nodes", "--server", url, "--token", "a-secret"), secret="a-secret")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "no answer within 0.3 s"),
        (b"", "if the service speaks TLS, its address begins with https://"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "is this the rules service?"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{", "not JSON"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            "a redirect, which is not followed",
        ),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops", "answered 502 Bad Gateway"),
        (b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", "try again in 7 s"),
    ],
    ids=["none", "closed", "html", "half", "redirect", "gateway", "busy"],
)
def test_odd_answers_are_one_line(command: Any, answer: bytes | None, expected: str) -> None:
    """Silence, a broken connection, another server and a redirect are told in one line, without the token."""
    with answering(answer) as (url, heard):
        ran = command(
            "nodes", "--server", url, "--token", "a-secret", "--timeout", "300ms" if answer is None else "30s"
        )
        assert expected in failed(ran, secret="a-secret")
        assert b"authorization: bearer a-secret" in heard[0].lower()


def test_tokens_that_cannot_be_sent(command: Any, tmp_path: Path) -> None:
    """No token, an empty file, one that cannot be read, and characters that no token has are told without the token."""
    server = ("--server", "http://127.0.0.1:1")
    assert "needs a token" in failed(command("nodes", *server))
    (tmp_path / "empty").write_text("\n")
    assert "needs a token" in failed(command("nodes", *server, "--token-file", "empty"))
    assert "No such file" in failed(command("nodes", *server, "--token-file", "nowhere"))
    for bad in ("two words", "né", "x" * 9_000):
        assert "no token has" in failed(command("nodes", *server, "--token", bad), secret=bad)


@pytest.mark.slow
def test_roles_and_wrong_tokens(remote: Any, service: Any, tmp_path: Path) -> None:
    """A wrong token, and a role that does not reach, are told with what to do; a token may come from a file."""
    wrong = failed(remote("nodes", "--token", "sgt_wrong"), secret="sgt_wrong")
    assert "give one with --token, --token-file or SLUICEGATE_TOKEN" in wrong
    viewer = remote("tokens", "create", "vic", "--role", "viewer").out.strip()
    (tmp_path / "token").write_text(f"{viewer}\n")
    refused = failed(remote("pause", "--token", viewer), secret=viewer)
    assert "(the role 'editor' is needed)" in refused


@pytest.mark.slow
def test_a_token_from_a_file(command: Any, service: Any, tmp_path: Path) -> None:
    """--token-file holds the token, with a line end or without."""
    (tmp_path / "token").write_text(f"{service.token}\n")
    assert command("nodes", "--server", service.address, "--token-file", "token").status == 0


@pytest.mark.slow
def test_what_the_service_refuses_is_told_with_pointers(remote: Any) -> None:
    """Every fault of what was sent is a line with its pointer; a reason of two lines is refused here."""
    made = remote("rules", "set", "odd", "--create", "quota=5/minte", "per=[ipp]")
    assert (made.status, made.out) == (2, "")
    lines = made.err.splitlines()
    assert lines[0].endswith("refused, because of what was sent:")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["#/quota", "#/per/0"]
    assert "did you mean 'minute'" in made.err
    assert "one line" in failed(remote("pause", "--reason", "a\nb"))


@pytest.mark.slow
def test_tls_and_certificates_of_clients(
    command: Any, start_service: Any, authority: Any, other_authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with TLS is asked with its authority and a client's certificate; without either it is not, and says why."""
    certificate, key = authority.issue("control")
    mine, my_key = authority.issue("ops")
    flags = ("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", authority.path)
    with start_service(*map(str, flags)) as service:
        known = ("--server", service.address, "--token", service.token)
        trusted = (*known, "--ca", str(authority.path))
        assert command("nodes", *trusted, "--cert", str(mine), "--key", str(my_key)).status == 0
        assert "its certificate is not accepted" in failed(command("nodes", *known))
        stranger = command("nodes", *known, "--ca", str(other_authority.path))
        assert "its certificate is not accepted" in failed(stranger)
        assert "give --cert and --key" in failed(command("nodes", *trusted))
        assert "needs both" in failed(command("nodes", *trusted, "--cert", str(mine)))
        assert "there is no file" in failed(command("nodes", *known, "--ca", "nowhere.pem"))
        assert "cannot be used" in failed(command("nodes", *known, "--ca", str(my_key)))
        plain = service.address.replace("https:", "http:")
        ran = command("nodes", "--server", plain, "--token", service.token)
        assert "its address begins with https://" in failed(ran, secret=service.token)


@pytest.mark.slow
def test_a_unix_socket(command: Any, start_service: Any, tmp_path: Path) -> None:
    """unix:PATH asks a service on a socket."""
    path = tmp_path / "c.sock"
    with start_service("--control", f"unix:{path}") as service:
        ran = command("rules", "list", "--server", f"unix:{path}", "--token", service.token)
        assert (ran.status, ran.out) == (0, "there are no rules\n")


@pytest.mark.slow
def test_offline_beside_a_running_service(remote: Any, service: Any) -> None:
    """--data on the command line goes to the database though a server is named in the environment; the service knows at once who it was."""
    made = remote("subjects", "set", "user:77", "--factor", "2x", "--data", str(service.data))
    assert made.status == 0, made.err
    assert "2 times" in remote("subjects", "show", "user:77").out
    assert "offline:" in remote("audit", "list", "--resource", "subject:user:77").out


@pytest.mark.slow
def test_feeds_from_standard_input(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed of JSON lines is known by its first character; a line that is wrong is named, and none is taken."""

    def typed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))

    typed('{"value": "8123", "kind": "user"}\n{"value": "192.0.2.0/24"}\n')
    ran = remote("lists", "import", "block", "-", "--source", "json")
    assert ran.out == "2 lines of 'json': 2 added, 0 changed, 0 removed, 0 unchanged\n"
    assert remote("lists", "get", "block", "user:8123").status == 0
    typed("192.0.2.1\nnot-an-address\n")
    bad = remote("lists", "import", "block", "-", "--source", "bad")
    assert (bad.status, "2" in bad.err, "not-an-address" in bad.err) == (2, True, True)
    assert remote("lists", "show", "block", "--source", "bad").out == "the block list has no such entry\n"
    assert "a span from now" in remote("lists", "import", "block", "-", "--source", "x", "--expires", "2030-01-01").err
    assert remote("lists", "import", "block", "nowhere", "--source", "x").status == 2
