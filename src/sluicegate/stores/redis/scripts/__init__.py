"""The Lua scripts: the parts they are put together from, and their digests."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["BEAT", "DECIDE", "DECIDE_ONE", "GRANT", "LEASE", "LOADED", "REFUND", "Script"]

_FOLDER = Path(__file__).parent
_GENERAL = ("frame", "exact", "states", "ledger", "buckets", "windows", "log", "algorithms")


class Script(NamedTuple):
    """A script's text and the digest a server knows it by."""

    name: str
    text: bytes
    digest: bytes


def _read(*names: str) -> str:
    return "\n".join((_FOLDER / f"{name}.lua").read_text("utf-8") for name in names)


def _script(name: str, *parts: str) -> Script:
    """A script is one text for the server; the shebang lets it refuse the whole call up front when memory is full."""
    text = "\n".join(("#!lua", *parts)).encode()
    # The digest is a name that Redis chose, not a protection.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


_DECIDING = (
    "local function general(now, hold_ms, peek)",
    _read(*_GENERAL, "deciding"),
    "return decide_any\nend",
    _read("usual", "place"),
)

DECIDE: Final = _script("decide", *_DECIDING, _read("call", "decide"))
DECIDE_ONE: Final = _script("decide_one", *_DECIDING, _read("decide_one"))
REFUND: Final = _script("refund", _read("place", "call", *_GENERAL, "counters", "refund"))
GRANT: Final = _script("grant", _read("place", "call", *_GENERAL, "counters", "grant"))
LEASE: Final = _script("lease", _read("place", "call", *_GENERAL, "lease"))
BEAT: Final = _script("beat", _read("beat"))
LOADED: Final = (DECIDE, DECIDE_ONE, REFUND, GRANT, LEASE)
"""The scripts that are called by their digest."""
