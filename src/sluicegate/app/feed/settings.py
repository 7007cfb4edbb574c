"""What a node is told of its rules service: the values of its flags, checked as a whole."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sluicegate.bounds import (
    DURATION_S_MAX,
    NODE_NAME_CHARS_MAX,
    REPORT_INTERVAL_S_MAX,
    REPORT_INTERVAL_S_MIN,
    UNIX_PATH_BYTES_MAX,
)
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError

__all__ = ["NO_PUSH", "FeedSettings"]

NO_PUSH = "off"

_TOKEN_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """A rules service and how to reach it. Raises ConfigurationError where the values contradict each other. ``repr`` shows no secret.

    ``url``: ``http://HOST:PORT``, ``https://...`` or ``unix:PATH``. ``token`` or ``token_file``: of the role node; the file is read again
    when the service refuses what it held. ``ca``: certificates to trust, None: the system's. ``certificate`` and ``key``: the node's own, for a
    service that asks for one. All three are read again after a request that failed. ``push``: URL of the Redis or PostgreSQL that tells of changes, ``off`` for none; None: the store's Redis, if
    the store is one. ``node``: the node's name; "": the machine's name and the process's number. ``report_interval_s``: between two
    reports. ``wait_s``: how long to wait at start for rules, where there are none to begin with. ``prefer_first``: begin with the rules file,
    where there is one, even if rules were kept: it was edited since.
    ``kept_as``: what stands for the service where what it told is kept; "": its URL.
    ``first_watched``: as long as the service was not heard of, edits of that file are served. ``allow_plaintext``: the token may go to
    another machine without TLS.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    push: str | None = field(default=None, repr=False)
    node: str = ""
    report_interval_s: float = 5.0
    wait_s: float = 10.0
    prefer_first: bool = False
    first_watched: bool = False
    kept_as: str = field(default="", repr=False)
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self._in_the_clear and not self.allow_plaintext:
            raise ConfigurationError(
                f"--control-url: {self.url} would get the token in the clear: use https, or say --control-allow-plaintext"
            )
        if (self.token is None) == (self.token_file is None):
            raise ConfigurationError(
                "--control-url needs --control-token or --control-token-file, and one of them only"
            )
        if self.token is not None:
            _check_token(self.token, "--control-token")
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("--control-cert and --control-key belong together: give both, or none")
        tls = self.url.startswith("https://")
        if not tls and any(path is not None for path in (self.ca, self.certificate)):
            raise ConfigurationError(
                "--control-ca, --control-cert and --control-key are for a --control-url of https://"
            )
        if len(self.node) > NODE_NAME_CHARS_MAX or not self.node.isprintable():
            raise ConfigurationError(f"--node-name: want at most {NODE_NAME_CHARS_MAX} printable characters")
        if not REPORT_INTERVAL_S_MIN <= self.report_interval_s <= REPORT_INTERVAL_S_MAX:
            raise ConfigurationError(
                f"--report-interval must be {REPORT_INTERVAL_S_MIN} to {REPORT_INTERVAL_S_MAX} s, got {self.report_interval_s:g}s"
            )
        if not 0 <= self.wait_s <= DURATION_S_MAX:
            raise ConfigurationError(f"--control-wait must be 0 to {DURATION_S_MAX} s, got {self.wait_s:g}s")

    @property
    def _in_the_clear(self) -> bool:
        """Whether the token would leave this machine without TLS."""
        if not self.url.startswith("http://"):
            return False
        parts = urlsplit(self.url)
        return not Address(parts.hostname or "", parts.port or 80).is_loopback

    def node_name(self, worker: int | None) -> str:
        """The name of this process; ``worker``: its number among several, None where it is alone."""
        if not self.node:
            return f"{socket.gethostname()}-{os.getpid()}"[-NODE_NAME_CHARS_MAX:]
        return self.node if worker is None else f"{self.node}-{worker}"

    def read_token(self) -> str:
        """The token, from its file where it is in one. Raises ConfigurationError."""
        if self.token_file is None:
            assert self.token is not None, "checked when it was made"
            return self.token
        try:
            with self.token_file.open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
        except OSError as error:
            raise ConfigurationError(
                f"--control-token-file: cannot read {self.token_file}: {error.strerror}"
            ) from error
        except ValueError as error:
            raise ConfigurationError(f"--control-token-file: {self.token_file} holds no token") from error
        _check_token(token, f"--control-token-file: the token in {self.token_file}")
        return token

    def tls(self) -> ssl.SSLContext | None:
        """What a connection needs; None where it has no TLS. Raises ConfigurationError naming the file at fault."""
        if not self.url.startswith("https://"):
            return None
        try:
            made = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"--control-ca: cannot use {self.ca}: {_reason(error)}") from error
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        self._bring_certificate(made)
        return made

    def renew_tls(self, context: ssl.SSLContext) -> None:
        """Put what the files hold now into what ``tls`` has made, for connections to come; authorities are added. Raises ConfigurationError: nothing has changed then."""
        # A context that has got a certificate and then not its key would be of no use.
        self.tls()
        if self.ca is not None:
            context.load_verify_locations(self.ca)
        self._bring_certificate(context)

    def _bring_certificate(self, context: ssl.SSLContext) -> None:
        if self.certificate is None:
            return
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"--control-cert: cannot use {self.certificate} with {self.key}: {_reason(error)}"
            ) from error


def _check_url(url: str) -> None:
    if url.startswith("unix:"):
        if not 0 < len(os.fsencode(url.removeprefix("unix:"))) <= UNIX_PATH_BYTES_MAX:
            raise ConfigurationError(f"--control-url: unix:PATH needs a path of at most {UNIX_PATH_BYTES_MAX} bytes")
        return
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
        parts = urlsplit("")
    if not named or parts.scheme not in ("http", "https"):
        raise ConfigurationError("--control-url: want http://HOST:PORT, https://HOST:PORT or unix:PATH")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigurationError("--control-url: no user, password, query or fragment may be in it")


def _check_token(token: str, where: str) -> None:
    # What a header cannot carry would fail at every request, with a message that shows it.
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"{where} is empty, or holds what no token does")


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal, and a server would wait for somebody to type.
    raise ConfigurationError("--control-key: the key is encrypted; give one without a passphrase")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
