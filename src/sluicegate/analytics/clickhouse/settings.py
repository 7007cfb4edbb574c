"""Where a ClickHouse server is and how to reach it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sluicegate.errors import ConfigurationError

__all__ = ["ClickHouseSettings"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_OPTIONS: Final = frozenset({"secure", "verify", "ca", "password_file", "cluster"})
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickHouseSettings:
    """A server, a user and a database. ``password`` is in no text made of this.

    ``secure``: TLS; ``verify``: whether the server's certificate is checked, by the authorities in the file ``ca`` where given. ``cluster``: tables
    are made on every server of this cluster, replicated; "": on the one server. Raises ConfigurationError.
    """

    host: str
    port: int = 8123
    user: str = "default"
    database: str = "sluicegate"
    secure: bool = False
    verify: bool = True
    ca: str = ""
    cluster: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigurationError("clickhouse: names no host; expected clickhouse://USER@HOST:PORT/DATABASE")
        for name, value in (("database", self.database), *([("cluster", self.cluster)] if self.cluster else [])):
            if not _NAME.fullmatch(value):
                raise ConfigurationError(
                    f"clickhouse: {name} must be letters, digits and _, at most 63, and not begin with a digit, got {value!r}"
                )

    def __str__(self) -> str:
        return f"clickhouse://{self.user}@{self.host}:{self.port}/{self.database}"

    @classmethod
    def from_url(cls, url: str, password: str | None = None) -> ClickHouseSettings:
        """Read ``clickhouse://USER@HOST:PORT/DATABASE?secure=1&verify=1&ca=FILE&password_file=FILE&cluster=NAME``; only the host must be there.

        A password comes from ``password`` (an environment variable) or the first line of ``password_file``, never from the URL, which command
        lines and logs show. The port is 8443 with ``secure``, else 8123. Raises ConfigurationError without repeating the URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # The reader's own words may repeat the password, where it holds a "/".
            raise ConfigurationError(
                "clickhouse: the URL cannot be read, want clickhouse://USER@HOST:PORT/DATABASE"
            ) from None
        if parts.scheme != "clickhouse":
            raise ConfigurationError("clickhouse: the URL must begin with clickhouse://")
        if parts.password is not None:
            raise ConfigurationError(
                "clickhouse: the URL holds a password; put it in SLUICEGATE_CLICKHOUSE_PASSWORD or in a file named by password_file"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in sorted(options.keys() - _OPTIONS):
            raise ConfigurationError(f"clickhouse: unknown option {name!r}; known are {', '.join(sorted(_OPTIONS))}")
        secure = _switch(options, "secure", default=False)
        made = cls(
            host=parts.hostname or "",
            port=port or (8443 if secure else 8123),
            user=unquote(parts.username or "default"),
            database=unquote(parts.path.strip("/")) or "sluicegate",
            secure=secure,
            verify=_switch(options, "verify", default=True),
            ca=options.get("ca", ""),
            cluster=options.get("cluster", ""),
        )
        if "password_file" in options:
            return replace(made, password=_first_line(options["password_file"]))
        return replace(made, password=password or "")


def _switch(options: dict[str, str], name: str, *, default: bool) -> bool:
    if name not in options:
        return default
    if options[name] not in _SWITCHES:
        raise ConfigurationError(f"clickhouse: {name} must be 1 or 0, got {options[name]!r}")
    return _SWITCHES[options[name]]


def _first_line(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"clickhouse: password_file {path!r} cannot be read: {error}") from None
    return text.split("\n", 1)[0].rstrip("\r")
