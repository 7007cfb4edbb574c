"""Rules services as processes: started on free ports, ended by their fixture, by pid."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START_TIMEOUT_S = 90.0


class Control:
    """One process and what it printed."""

    def __init__(self, arguments: tuple[str, ...], directory: Path, **environment: str) -> None:
        self.out = directory / "out.txt"
        self.err = directory / "err.txt"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluicegate", "control", "--control", "127.0.0.1:0", *arguments],
                stdout=out, stderr=err, cwd=directory, env=inherited | environment,
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.out.read_text().endswith("\n"):
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, "the service did not become ready"
            time.sleep(0.05)

    @property
    def url(self) -> str:
        return self._line("control")

    @property
    def token(self) -> str:
        return self._line("token")

    def _line(self, name: str) -> str:
        found = re.search(rf"^{name} +(\S+)", self.out.read_text(), re.MULTILINE)
        assert found, self.out.read_text()
        return found[1]

    def stop(self) -> int:
        """Its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


Start = Callable[..., Control]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a service in the directory of the test; with ``ready=False`` one that is to end by itself."""
    started: list[Control] = []

    def begin(*arguments: str, ready: bool = True, **environment: str) -> Control:
        directory = tmp_path / f"process-{len(started)}"
        directory.mkdir()
        data = () if "--data" in arguments else ("--data", str(tmp_path / "data"))
        started.append(Control((*data, *arguments), directory, **environment))
        if ready:
            started[-1].wait_until_ready()
        return started[-1]

    yield begin
    for control in started:
        control.stop()


class Authority:
    """Signs certificates for 127.0.0.1, into files of a directory."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self._write(self.file, self._signed(self._name, self._key.public_key(), authority=True))

    def issue(self, name: str, *, expired: bool = False) -> tuple[Path, Path]:
        """Certificate and key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._write(certificate, self._signed(subject, key.public_key(), authority=False, expired=expired))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key_file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return certificate, key_file

    def _signed(self, subject: x509.Name, key: object, *, authority: bool, expired: bool = False) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        end = now - dt.timedelta(hours=1) if expired else now + dt.timedelta(hours=1)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=2))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def authority(tmp_path: Path) -> Callable[[str], Authority]:
    return lambda name: Authority(tmp_path, name)
