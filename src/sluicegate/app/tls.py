"""Certificates of listeners: checked before anything is served with them, and read again when they are renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sluicegate.app import logs
from sluicegate.bounds import CERTIFICATE_BYTES_MAX, TLS_EXPIRY_WARNING_S, TLS_POLL_S
from sluicegate.clock import US_PER_S, Clock
from sluicegate.doors.tls import TlsLayer
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.rules.identity.files import Signature, read_file, signature_if_there

__all__ = ["HTTP_1", "HTTP_2", "ListenerTls", "LiveTls", "TlsContent", "TlsFiles", "keep_tls_fresh", "tls_files"]

HTTP_1: Final = ("http/1.1",)
HTTP_2: Final = ("h2",)

_Signatures = tuple[Signature | None, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: a certificate (with its chain), its key, and the authorities that clients' certificates must come from; None: none is asked for."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def load(self, now_us: int, protocols: tuple[str, ...] = HTTP_1) -> TlsContent:
        """What the files hold, for a listener that speaks ``protocols`` (ALPN), TLS 1.2 or newer. Raises ConfigurationError naming the file at fault.

        A certificate that is not valid at ``now_us`` is at fault too. Blocks.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        # A client that renegotiates over and over would cost far more than it pays.
        made.options |= ssl.OP_NO_RENEGOTIATION
        made.set_alpn_protocols(list(protocols))
        certificate, key = (read_file(path, CERTIFICATE_BYTES_MAX) for path in (self.certificate, self.key))
        client_ca = None if self.client_ca is None else read_file(self.client_ca, CERTIFICATE_BYTES_MAX)
        not_after_us = _checked_not_after_us(self.certificate, certificate, now_us)
        try:
            made.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the certificate {str(self.certificate)!r} and the key {str(self.key)!r} cannot be used: {_reason(error)}"
            ) from error
        if self.client_ca is not None:
            made.verify_mode = ssl.CERT_REQUIRED
            try:
                made.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(
                    f"the client CA {str(self.client_ca)!r} cannot be used: {_reason(error)}"
                ) from error
        return TlsContent(made, certificate, key, client_ca, not_after_us)

    def signature(self) -> _Signatures:
        """Differs where a file was changed or replaced."""
        return tuple(
            signature_if_there(path) for path in (self.certificate, self.key, self.client_ca) if path is not None
        )


@dataclass(frozen=True, slots=True)
class TlsContent:
    """What was read of ``TlsFiles``: PEM, and a context made of it. ``not_after_us``: when the certificate ends."""

    context: ssl.SSLContext
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    not_after_us: int

    def __repr__(self) -> str:
        return f"TlsContent(not_after_us={self.not_after_us})"


class LiveTls:
    """Files in service. ``error``: None, or why the files as they are now are not in service.

    Raises ConfigurationError where they cannot be used to begin with.
    """

    def __init__(self, files: TlsFiles, clock: Clock, protocols: tuple[str, ...] = HTTP_1) -> None:
        self.files = files
        self.error: str | None = None
        self._clock = clock
        self._protocols = protocols
        self._judged = files.signature()
        self._pending: _Signatures | None = None
        self.content = files.load(clock.now_us(), protocols)

    def context(self) -> ssl.SSLContext:
        """For a new connection; those that are open keep theirs."""
        return self.content.context

    def pem(self) -> tuple[bytes, bytes, bytes | None]:
        """Certificate, key and authorities of clients, for a server that has contexts of its own kind."""
        return self.content.certificate, self.content.key, self.content.client_ca

    @property
    def left_s(self) -> float:
        """Seconds until the certificate ends; negative where it has."""
        return (self.content.not_after_us - self._clock.now_us()) / US_PER_S

    def poll(self) -> bool:
        """Look at the files once, and take them if they are new, good, and were the same at the last look. True where anything changed.

        Blocks for as long as reading takes. What is in service stays where the files are bad; those are tried again at each look, because
        they may become good without being written: a certificate's time begins, the rights of a file change.
        """
        signature = self.files.signature()
        if signature == self._judged:
            self._pending = None
            if self.error is None:
                return False
        elif signature != self._pending:
            self._pending = signature
            return False
        self._pending, self._judged = None, signature
        try:
            content = self.files.load(self._clock.now_us(), self._protocols)
        except ConfigurationError as error:
            changed, self.error = str(error) != self.error, str(error)
            return changed
        if self.files.signature() != signature:
            # Written while it was read: the next looks will tell.
            return False
        self.content, self.error = content, None
        return True


class ListenerTls:
    """TLS of the listener ``name``: the files, and the handshakes made with them. Raises ConfigurationError naming listener and file."""

    def __init__(self, name: str, files: TlsFiles, clock: Clock, protocols: tuple[str, ...] = HTTP_1) -> None:
        try:
            self.live = LiveTls(files, clock, protocols)
        except ConfigurationError as error:
            raise ConfigurationError(f"TLS of --{name}: {error}") from error
        self.layer = TlsLayer(self.live.context)


async def keep_tls_fresh(listeners: Mapping[str, ListenerTls]) -> None:
    """Take renewed certificates, and say when one is about to end, for as long as the process lives. By names of listeners."""
    warned: dict[str, int] = {}
    while True:
        for name, listener in listeners.items():
            _warn(name, listener.live, warned)
        await asyncio.sleep(TLS_POLL_S)
        for name, listener in listeners.items():
            live = listener.live
            try:
                changed = await asyncio.to_thread(live.poll)
            except Exception:  # noqa: BLE001
                # A fault of ours with one file must not end the watch over all of them.
                logs.LOGGER.exception("tls_watch_failed")
                continue
            if not changed:
                continue
            if live.error is None:
                logs.event(logging.INFO, "tls_renewed", listener=name, valid_until=_day(live.content.not_after_us))
            else:
                logs.event(logging.ERROR, "tls_rejected", listener=name, error=live.error)


def _warn(name: str, live: LiveTls, warned: dict[str, int]) -> None:
    """Once for each certificate, and once more when it has ended."""
    ends_us, left_s = live.content.not_after_us, live.left_s
    if left_s > TLS_EXPIRY_WARNING_S:
        return
    mark = ends_us if left_s > 0 else -ends_us
    if warned.get(name) != mark:
        warned[name] = mark
        level, event = (logging.WARNING, "tls_expires") if left_s > 0 else (logging.ERROR, "tls_expired")
        logs.event(level, event, listener=name, certificate=str(live.files.certificate), valid_until=_day(ends_us))


def tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """The files that were named, None where none was; raises ConfigurationError where some are missing."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise ConfigurationError(f"{missing} is missing: TLS needs a certificate and its key")
    return TlsFiles(certificate, key, client_ca)


def _checked_not_after_us(path: Path, pem: bytes, now_us: int) -> int:
    """When a certificate ends; raises ConfigurationError where it has ended, or has not begun."""
    try:
        from cryptography import x509
    except ModuleNotFoundError as error:
        raise MissingExtra("server", "TLS on a listener") from error
    try:
        # The first one is the listener's own; the chain follows.
        found = x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise ConfigurationError(f"the certificate {str(path)!r} cannot be used: it is not PEM") from error
    begins_us, ends_us = (
        int(moment.timestamp()) * US_PER_S for moment in (found.not_valid_before_utc, found.not_valid_after_utc)
    )
    if now_us > ends_us:
        raise ConfigurationError(f"the certificate {str(path)!r} has expired: it was valid until {_day(ends_us)}")
    if now_us < begins_us:
        raise ConfigurationError(f"the certificate {str(path)!r} is not valid before {_day(begins_us)}")
    return ends_us


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal, and a server would wait for somebody to type.
    raise ConfigurationError("the key is encrypted; give one without a passphrase, readable by the server only")


def _reason(error: OSError) -> str:
    words = {
        "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
        "NO_START_LINE": "it is not PEM",
        "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate",
        # What OpenSSL says of a file without anything in it that it knows; it gives no reason.
        None: "the key is not PEM",
    }
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return words.get(reason, (reason or "").replace("_", " ").lower())


def _day(us: int) -> str:
    return datetime.fromtimestamp(us / US_PER_S, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
