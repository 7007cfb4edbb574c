"""Certificates and keys: what is refused, with which words, and what becomes of renewals."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluicegate.app import tls as tls_module
from sluicegate.app.tls import ListenerTls, LiveTls, TlsFiles, keep_tls_fresh
from sluicegate.clock import ManualClock, SystemClock
from sluicegate.errors import ConfigurationError

DAY_US = 86_400_000_000


def now_us() -> int:
    return SystemClock().now_us()


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def encrypted(path: Path) -> None:
    path.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


def test_what_the_files_hold(authority: Authority) -> None:
    """Good files give a context, and the moment at which the certificate ends."""
    content = TlsFiles(*authority.issue("server", (-1, 30)), authority.path).load(now_us())
    assert 29 * DAY_US < content.not_after_us - now_us() < 31 * DAY_US
    assert content.client_ca == authority.path.read_bytes()
    assert "PRIVATE" not in repr(content)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda cert, key, other: cert.unlink(), "server.pem': No such file or directory"),
        (lambda cert, key, other: key.unlink(), "server.key': No such file or directory"),
        (lambda cert, key, other: key.write_bytes(other.read_bytes()), "the key is not that of the certificate"),
        (lambda cert, key, other: cert.write_text("not a certificate"), "it is not PEM"),
        (lambda cert, key, other: key.write_text(""), "the key is not PEM"),
        (lambda cert, key, other: encrypted(key), "the key is encrypted"),
        (lambda cert, key, other: cert.write_bytes(b"x" * 1_048_577), "is larger than 1048576 bytes"),
        (lambda cert, key, other: (cert.unlink(), cert.mkdir()), "server.pem': Is a directory"),
        (lambda cert, key, other: piped(key), "server.key': not a regular file"),
    ],
)
def test_files_that_cannot_be_used(authority: Authority, spoil: Callable[[Path, Path, Path], None], says: str) -> None:
    """A missing, empty, mismatched, encrypted, huge or foreign file is an error that names it."""
    certificate, key = authority.issue("server")
    _, other = authority.issue("other")
    spoil(certificate, key, other)
    with pytest.raises(ConfigurationError, match="server") as refused:
        TlsFiles(certificate, key).load(now_us())
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_certificate_out_of_its_time(authority: Authority) -> None:
    """A certificate that has ended, or has not begun, is refused with the moment."""
    with pytest.raises(ConfigurationError, match=r"server.pem' has expired: it was valid until 20..-..-..T..:..Z"):
        TlsFiles(*authority.issue("server", (-30, -1))).load(now_us())
    with pytest.raises(ConfigurationError, match=r"server.pem' is not valid before 20"):
        TlsFiles(*authority.issue("server", (1, 30))).load(now_us())


def test_authorities_that_are_none(authority: Authority, tmp_path: Path) -> None:
    """A file of authorities without a certificate in it would refuse everybody: it is refused itself."""
    empty = tmp_path / "clients.pem"
    empty.write_text("\n")
    with pytest.raises(
        ConfigurationError, match=r"the client CA '.*clients.pem' cannot be used: it holds no certificate"
    ):
        TlsFiles(*authority.issue("server"), empty).load(now_us())


def test_a_renewal_is_taken(authority: Authority) -> None:
    """A renewed certificate is in service when two looks saw the same files."""
    live = LiveTls(TlsFiles(*authority.issue("server")), SystemClock())
    first = live.context()
    assert not live.poll()
    authority.issue("server", (-1, 60))
    assert not live.poll()
    assert live.context() is first
    assert live.poll()
    assert live.context() is not first
    assert live.left_s > 59 * 86_400 - 60
    assert not live.poll()


def test_a_bad_renewal_changes_nothing(authority: Authority) -> None:
    """A renewal that cannot be used leaves the old certificate in service, and is told once."""
    certificate, key = authority.issue("server")
    live = LiveTls(TlsFiles(certificate, key), SystemClock())
    first = live.context()
    certificate.write_text("half of")
    assert [live.poll() for _ in range(5)] == [False, True, False, False, False]
    assert live.error is not None
    assert "server.pem" in live.error
    assert live.context() is first
    authority.issue("server")
    assert [live.poll() for _ in range(3)] == [False, True, False]
    assert live.error is None
    assert live.context() is not first


def test_a_certificate_without_its_key_waits_for_it(authority: Authority, tmp_path: Path) -> None:
    """A certificate that is written a moment before its key is no error."""
    certificate, key = authority.issue("server")
    live = LiveTls(TlsFiles(certificate, key), SystemClock())
    new_certificate, new_key = authority.issue("renewed")
    os.replace(new_certificate, certificate)
    assert not live.poll()
    os.replace(new_key, key)
    assert not live.poll()
    assert live.poll()
    assert live.error is None


def test_a_renewal_that_becomes_good_without_being_written(authority: Authority) -> None:
    """A certificate whose time has not begun when it is renewed is taken when it begins, with no further change of the file."""
    clock = ManualClock(now_us())
    live = LiveTls(TlsFiles(*authority.issue("server", (-1, 30))), clock)
    first = live.context()
    authority.issue("server", (1, 60))
    assert [live.poll() for _ in range(3)] == [False, True, False]
    assert live.context() is first
    clock.advance(DAY_US + 60_000_000)
    assert live.poll()
    assert live.error is None
    assert live.context() is not first
    assert not live.poll()


async def test_a_fault_does_not_end_the_watch(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with one look at a file, the next look takes its renewal."""
    monkeypatch.setattr(tls_module, "TLS_POLL_S", 0.01)
    listener = ListenerTls("api", TlsFiles(*authority.issue("server")), SystemClock())
    first, poll, looks = listener.live.context(), listener.live.poll, 0

    def fails_once() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("a version of certificates that nobody knows")
        return poll()

    monkeypatch.setattr(listener.live, "poll", fails_once)
    watch = asyncio.create_task(keep_tls_fresh({"api": listener}))
    authority.issue("server", (-1, 60))
    async with asyncio.timeout(60):
        while listener.live.context() is first and not watch.done():
            await asyncio.sleep(0.01)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    assert listener.live.context() is not first
