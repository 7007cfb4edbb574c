"""Certificates of listeners, checked before anything is served with them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from sluicegate.errors import ConfigurationError

__all__ = ["TlsFiles", "tls_files"]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: a certificate (with its chain), its key, and the authorities that clients' certificates must come from; None: none is asked for."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What a listener needs, TLS 1.2 or newer. Raises ConfigurationError naming the file at fault."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        for path in (self.certificate, self.key, self.client_ca):
            _check_readable(path)
        try:
            made.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"the certificate {str(self.certificate)!r} and the key {str(self.key)!r} cannot be used: {_reason(error)}"
            ) from error
        if self.client_ca is not None:
            made.verify_mode = ssl.CERT_REQUIRED
            try:
                made.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ConfigurationError(
                    f"the client CA {str(self.client_ca)!r} cannot be used: {_reason(error)}"
                ) from error
        return made


def tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """The files that were named, None where none was; raises ConfigurationError where some are missing."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise ConfigurationError(f"{missing} is missing: TLS needs a certificate and its key")
    return TlsFiles(certificate, key, client_ca)


def _check_readable(path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal, and a server would wait for somebody to type.
    raise ConfigurationError("the key is encrypted; give one without a passphrase, readable by the server only")


def _reason(error: ssl.SSLError) -> str:
    words = {
        "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
        "NO_START_LINE": "it is not PEM",
        "PEM_LIB": "it is not PEM",
        "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate",
    }
    return words.get(error.reason or "", (error.reason or str(error)).replace("_", " ").lower())
