"""Where an upstream is: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:PATH``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from sluicegate.errors import ConfigurationError, without_login

__all__ = ["Target"]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream's address. ``path`` is a Unix socket's, None for TCP; ``authority`` is its own ``Host``."""

    url: str
    host: str
    port: int
    authority: bytes
    tls: bool = False
    path: str | None = None

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read the URL; a path, query or user in it is an error, because requests are forwarded with theirs unchanged."""
        if url.startswith("unix:"):
            path = url.removeprefix("unix:")
            if not path or "\0" in path:
                raise ConfigurationError(f"upstream {without_login(url)!r} has no socket path")
            return cls(url, "", 0, b"localhost", path=path)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigurationError(f"upstream {without_login(url)!r} is not a URL") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ConfigurationError(
                f"upstream {without_login(url)!r}: use http://HOST:PORT, https://HOST:PORT or unix:PATH"
            )
        if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username or parts.password:
            raise ConfigurationError(
                f"upstream {without_login(url)!r} has more than a host and a port; paths are forwarded unchanged"
            )
        if any(c.isspace() or not c.isprintable() for c in url) or not parts.netloc.isascii():
            raise ConfigurationError(f"upstream {without_login(url)!r} has characters a URL may not have")
        default = _PORTS[parts.scheme]
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        authority = host if port in {None, default} else f"{host}:{port}"
        return cls(url, parts.hostname, port or default, authority.encode("ascii"), tls=parts.scheme == "https")
