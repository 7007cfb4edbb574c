"""The Lua scripts: the parts they are put together from, and their digests."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["DECIDE", "REFUND", "Script"]

_FOLDER = Path(__file__).parent
_SHARED = ("exact.lua", "frame.lua", "buckets.lua", "windows.lua", "log.lua")


class Script(NamedTuple):
    """A script's text and the digest a server knows it by."""

    name: str
    text: bytes
    digest: bytes


def _put_together(name: str) -> Script:
    """A script is one text for the server; the shebang lets it refuse the whole call up front when memory is full."""
    parts = ["#!lua\n", *((_FOLDER / part).read_text("utf-8") for part in (*_SHARED, f"{name}.lua"))]
    text = "\n".join(parts).encode()
    # The digest is a name that Redis chose, not a protection.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


DECIDE: Final = _put_together("decide")
REFUND: Final = _put_together("refund")
