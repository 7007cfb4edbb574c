"""Facts from the environment of WSGI (PEP 3333), which Django's ``request.META`` is too.

A WSGI server has decoded the path, so it is taken as the application routes it: ``SCRIPT_NAME`` and ``PATH_INFO``. It has joined
repeated headers, so an identity header sent twice is one value with a comma in it, which is nobody's name. And it may not tell
``X_User_Id`` from ``X-User-Id``: a server or a proxy in front must drop names with underscores, as nginx, gunicorn and waitress do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from sluicegate.doors.web.door import Door
from sluicegate.doors.web.request import Seen
from sluicegate.rules.facts import Facts

__all__ = ["ENVIRON_KEY", "environ_facts"]

_WAITRESS_UNIX = "localhost"
"""What waitress gives for a peer on a Unix socket; no server gives a name for an address."""
ENVIRON_KEY = "sluicegate.rate_limit"
"""Where in the environment the ``RequestLimits`` are."""


def environ_facts(door: Door, environ: Mapping[str, Any]) -> tuple[Facts, Seen]:
    """The facts of a request, but for its route template, and what they were made from."""
    path = _bytes(environ.get("SCRIPT_NAME", "")) + _bytes(environ.get("PATH_INFO", ""))
    # A server on a Unix socket gives an empty address or none; a TCP server always gives one.
    peer = environ.get("REMOTE_ADDR") or None
    if peer == _WAITRESS_UNIX:
        peer = None
    host = environ.get("HTTP_HOST")
    seen = Seen(list(_headers(environ)), peer)
    return door.resolver.facts(environ["REQUEST_METHOD"], quote(path) or "/", host, *seen), seen


def _headers(environ: Mapping[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in environ.items():
        if name.startswith("HTTP_") and isinstance(value, str):
            yield name[5:].replace("_", "-").encode("latin-1", "replace"), _bytes(value)


def _bytes(text: str) -> bytes:
    """What stood on the wire: PEP 3333 has it as Latin-1, Django's META may hold more."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
