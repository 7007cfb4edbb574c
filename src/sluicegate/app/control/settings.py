"""What the process of a rules service is told: the values of its flags, checked as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from sluicegate.app.tls import TlsFiles
from sluicegate.bounds import TOKEN_CHARS_MIN
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError

__all__ = ["ControlSettings", "database_url", "node_networks"]

_DATABASE = "control.db"


def database_url(db: str | None, data: Path) -> str:
    """The URL of the database: the given one, else that of ``control.db`` in the directory of what is kept, which is made.

    The file can be read by its owner only. Raises ConfigurationError where the directory cannot be written.
    """
    if db is not None:
        return db
    path = (data / _DATABASE).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(f"--data: cannot write {str(path)!r}: {error.strerror}") from error
    return f"sqlite:///{path}"


def node_networks(texts: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    """Networks, or single addresses. Raises ConfigurationError naming the one that is none."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise ConfigurationError(
                f"--node-api-allow: {text!r} is neither an address nor a network: {error}"
            ) from error
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """One rules service. Raises ConfigurationError where the values contradict each other.

    ``db``: URL of the database; None: SQLite in ``data/control.db``. ``rules``: a file that owns the rules, and is watched; None: the
    database owns them. ``tls``: of the listener; without it an address that other machines reach needs ``allow_plaintext``.
    ``store``: URL of the store that the nodes share, to operate on counters there; ``node_api_token``: the API token of the nodes, to ask them. None: there is none.
    ``node_api_allow``: networks in which nodes may be asked besides where their reports come from.
    ``push``: URL of a Redis on which changes are told; None: on none. ``admin_token``: becomes a token of an admin; None: one is made
    where there is none, and printed. ``node_token``: of nodes that were started with the service, in no database. ``own_api``: Unix socket at which the one
    node that was started with the service lets who has that token operate on its counters; None: there is none.
    ``analytics``: what is known about traffic can be asked of the service, and nodes may bring it; ``clickhouse``: where it is kept, None: in ``data/analytics.db``;
    ``analytics_secret_file``: secrets of the digests that clients are looked up by, None: those in ``data``.
    ``drain_delay_s``: after SIGTERM, how long to go on accepting while ``/readyz`` says no; ``drain_timeout_s``: how long requests
    in flight may take to finish after that.
    """

    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 8090))
    db: str | None = field(default=None, repr=False)
    data: Path = Path(".sluicegate")
    rules: Path | None = None
    tls: TlsFiles | None = None
    allow_plaintext: bool = False
    push: str | None = field(default=None, repr=False)
    store: str | None = field(default=None, repr=False)
    node_api_token: str | None = field(default=None, repr=False)
    node_api_allow: tuple[str, ...] = ()
    admin_token: str | None = field(default=None, repr=False)
    node_token: str | None = field(default=None, repr=False)
    own_api: Path | None = None
    analytics: bool = True
    clickhouse: str | None = field(default=None, repr=False)
    analytics_secret_file: Path | None = None
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 10.0
    log_format: str = "auto"

    def __post_init__(self) -> None:
        if not self.listen.is_loopback and self.tls is None and not self.allow_plaintext:
            raise ConfigurationError(
                f"the rules service at {self.listen} can be reached from other machines: give it --tls-cert and --tls-key, or "
                "--allow-plaintext where something in front of it speaks TLS"
            )
        node_networks(self.node_api_allow)
        if self.node_token is not None and len(self.node_token) < TOKEN_CHARS_MIN:
            raise ConfigurationError(f"the node token needs at least {TOKEN_CHARS_MIN} characters")

    @property
    def scheme(self) -> str:
        """What clients speak."""
        return "http" if self.tls is None else "https"
