"""Certificates made for a test, by an authority of its own."""

from __future__ import annotations

import datetime as dt
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates for 127.0.0.1. ``path``: its own, which clients are to trust."""

    def __init__(self, directory: Path, name: str = "tests") -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {name}")])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = directory / f"{name}-ca.pem"
        own = self._builder(self._name, self._key, (-1, 365)).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.path.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, days: tuple[int, int] = (-1, 30)) -> tuple[Path, Path]:
        """Certificate and key, in NAME.pem and NAME.key, valid between these days from now; written over what is there."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key, days).add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]),
            critical=False,
        )
        certificate, private = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def trusting(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, perhaps with a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.path))
        if client is not None:
            context.load_cert_chain(*client)
        return context

    def _builder(self, subject: x509.Name, key: Any, days: tuple[int, int]) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        begins, ends = (now + dt.timedelta(days=number) for number in days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority whose files lie in the test's directory."""
    return Authority(tmp_path)


@pytest.fixture
def other_authority(tmp_path: Path) -> Authority:
    """One that nobody trusts."""
    return Authority(tmp_path, "strangers")
